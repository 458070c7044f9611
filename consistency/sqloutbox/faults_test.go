package sqloutbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// environment returns the variables that lead a child process to the outbox.
func (t *outboxTest) environment() []string {
	if t.server != nil {
		return []string{"OUTBOX_DRIVER=mysql", "OUTBOX_DSN=" + t.server.DSN(t.TB)}
	}
	if t.text.dialect == Postgres {
		return []string{"OUTBOX_DRIVER=pgx", "OUTBOX_DSN=" + testenv.SharedPostgres(t.TB).DSN(t.TB)}
	}
	var file string
	t.check(t.db.Get(&file, "SELECT file FROM pragma_database_list"))
	return []string{"OUTBOX_DRIVER=sqlite",
		"OUTBOX_DSN=file:" + file + "?_pragma=busy_timeout(10000)&_txlock=immediate"}
}

func outboxOfChild() (*Outbox, *sqlx.DB) {
	db, err := sqlx.Open(os.Getenv("OUTBOX_DRIVER"), os.Getenv("OUTBOX_DSN"))
	if err != nil {
		panic(err)
	}
	o, err := New(db, dialects[db.DriverName()], &Options{Namespace: testSpace})
	if err != nil {
		panic(err)
	}
	return o, db
}

func init() {
	testenv.RegisterChild("outbox claim", func() {
		o, _ := outboxOfChild()
		for {
			items, err := o.Claim(context.Background(), 7, 300*time.Millisecond)
			if err != nil {
				panic(err)
			}
			var done, later []consistency.Item
			for _, item := range items {
				if item.Attempts == 0 && rand.IntN(3) == 0 {
					item.Attempts++
					later = append(later, item)
				} else {
					done = append(done, item)
				}
			}
			if err := o.Later(context.Background(), later...); err != nil {
				panic(err)
			}
			for _, item := range done {
				fmt.Println(item.Key.Text) // stands for a relay's invalidation
			}
			if err := o.Done(context.Background(), done...); err != nil {
				panic(err)
			}
		}
	})
}

// TestClaimerKilled: the items of a killed relay are done by another one, once the claim has
// expired.
func TestClaimerKilled(t *testing.T) {
	rounds, items := 1, 200
	if testenv.Accepting {
		rounds, items = 100, 500
	}
	eachOutbox(t, func(t *outboxTest) {
		byOthers := 0
		for range rounds {
			t.check(t.Put(t.ctx(), textItems(items)...))
			child := testenv.SpawnChild(t, "outbox claim", t.environment()...)
			seen := map[string]bool{}
			for range rand.IntN(items / 2) {
				line, err := child.ReadLine(testenv.Hang)
				t.check(err)
				seen[line] = true
			}
			time.Sleep(rand.N(5 * time.Millisecond))
			child.Kill()
			for {
				line, err := child.ReadLine(testenv.Hang)
				if err != nil {
					break
				}
				seen[line] = true
			}
			for ctx := t.ctx(); ; time.Sleep(10 * time.Millisecond) {
				got, err := t.Claim(ctx, 50, claimLong)
				t.check(err)
				for _, item := range got {
					if !seen[item.Key.Text] {
						byOthers++
					}
					seen[item.Key.Text] = true
				}
				t.check(t.Done(ctx, got...))
				d, err := t.Depth(ctx)
				t.check(err)
				if d.Items == 0 {
					break
				}
			}
			if len(seen) != items {
				t.Fatalf("%d of %d were done", len(seen), items)
			}
		}
		t.Logf("%d relays killed: all of %d items done, %d of them by others", rounds, rounds*items, byOthers)
	})
}

// TestServerRestarts: items, and claims, outlive a server that is killed.
func TestServerRestarts(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testServerRestarts) }

func testServerRestarts(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	server := testenv.DatabaseOf(t, e)
	if e != testenv.PostgreSQL { // whose shared server loses nothing with its process
		server = testenv.Durable(t, e)
	}
	o.check(o.Put(o.ctx(), textItems(10)...))
	claimed := o.some(o.Outbox, 4)
	tx := o.begin(o.db)
	o.check(o.PutIn(o.ctx(), tx, textItem("lost")))
	server.Restart(t)
	if tx.Commit() == nil {
		t.Error("committed on a server that was killed")
	}
	rest := o.some(o.Outbox, 100)
	if len(claimed) != 4 || len(rest) != 6 {
		t.Fatalf("claimed %d before, and %d of 6 after", len(claimed), len(rest))
	}
	o.check(o.Done(o.ctx(), claimed...))
	o.check(o.Done(o.ctx(), rest...))
	o.holds(0, "done")
}

// TestServerHangs: calls end with their ctx, all before the server resumes, and no interrupted item
// is lost.
func TestServerHangs(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testServerHangs) }

func testServerHangs(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	o.check(o.Put(o.ctx(), textItems(5)...))
	got := o.some(o.Outbox, 2)
	d := testenv.DatabaseOf(t, e)
	d.Pause()
	for what, call := range map[string]func(ctx context.Context) error{
		"Put":   func(ctx context.Context) error { return o.Put(ctx, textItem("a")) },
		"Claim": func(ctx context.Context) error { _, err := o.Claim(ctx, 1, time.Minute); return err },
		"Done":  func(ctx context.Context) error { return o.Done(ctx, got...) },
		"Later": func(ctx context.Context) error { return o.Later(ctx, got...) },
		"Depth": func(ctx context.Context) error { _, err := o.Depth(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if err := call(ctx); err == nil {
			t.Errorf("%s: a server that hangs has replied", what)
		}
		t.Logf("%s took %v", what, time.Since(began))
		cancel()
	}
	d.Resume()
	o.check(o.Done(o.ctx(), o.eventually(o.Outbox, 3)[:3]...))
}

// TestLostReply: a call whose reply is lost may be repeated.
func TestLostReply(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testLostReply) }

func testLostReply(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	d := testenv.DatabaseOf(t, e)
	p := testenv.NewProxy(t, d.Addr)
	db, err := testenv.OpenDSN(strings.Replace(d.DSN(t), d.Addr, p.Addr, 1))
	o.check(err)
	defer db.Close()
	far := o.outbox(db)
	lose := func(text string) {
		var once sync.Once
		p.OnRequest(func(chunk []byte) (a testenv.Action) {
			if strings.Contains(string(chunk), text) {
				once.Do(func() { a = testenv.LoseReply })
			}
			return a
		})
	}
	twice := func(what string, call func() error) {
		t.Helper()
		lose(what)
		if err := call(); err == nil {
			t.Errorf("%s: no error, though the reply was lost", what)
		}
		o.check(call())
	}
	item := textItem("a")
	item.ID = consistency.NewID()
	twice("INSERT", func() error { return far.Put(o.ctx(), item) })
	o.holds(1, "put twice")
	if e == testenv.PostgreSQL {
		lose("SKIP LOCKED")
	} else {
		lose("STRAIGHT_JOIN")
	}
	if _, err := far.Claim(o.ctx(), 1, 50*time.Millisecond); err == nil {
		t.Error("claimed, though the reply was lost")
	}
	got := o.eventually(far, 1)
	got[0].Attempts = 3
	twice("attempts = 3", func() error { return far.Later(o.ctx(), got...) })
	got = o.eventually(far, 1)
	twice("DELETE", func() error { return far.Done(o.ctx(), got...) })
	o.holds(0, "done twice")
}
