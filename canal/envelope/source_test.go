package envelope

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// broker is a channel of messages, and what was acknowledged of them.
type broker struct {
	messages chan Message
	mu       sync.Mutex
	acked    []string
}

func newBroker() *broker { return &broker{messages: make(chan Message, 100)} }

func (b *broker) publish(payloads ...string) {
	for _, p := range payloads {
		b.messages <- Message{Payload: []byte(p), Ack: func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.acked = append(b.acked, p)
		}}
	}
}

func (b *broker) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.acked)
}

// named is a Decoder whose messages are names of tables; of "bad" it can read nothing, and of
// "panic" it panics.
func named(message []byte) ([]event.Change, error) {
	switch m := string(message); m {
	case "bad":
		return nil, errors.New("bad")
	case "half":
		return []event.Change{{Kind: event.Alter, Schema: "d", Table: "half"}}, errors.New("half")
	case "panic":
		panic("private")
	case "none":
		return nil, nil
	default:
		return []event.Change{{Kind: event.Truncate, Schema: "d", Table: m, Time: time.Unix(1, 0)}}, nil
	}
}

// run runs a source until it has delivered n batches, which are not acknowledged, and returns
// these.
func run(t *testing.T, s canal.Source, n int) []event.Batch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	batches, ended := make(chan event.Batch), make(chan error, 1)
	go func() { ended <- s.Run(ctx, event.Need{}, batches) }()
	var all []event.Batch
	for range n {
		all = append(all, <-batches)
	}
	synctest.Wait()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	return all
}

func tables(batches []event.Batch) string {
	var all []string
	for _, b := range batches {
		switch {
		case b.Malformed != nil:
			all = append(all, "malformed")
		case len(b.Changes) == 0:
			all = append(all, "")
		}
		for _, c := range b.Changes {
			all = append(all, c.Table)
		}
	}
	return strings.Join(all, " ")
}

// A Source says first that it can begin, then what each message has, in their order.
func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		s := NewSource(b.messages, named)
		b.publish("a", "none", "bad", "half", "panic", "b")
		got := run(t, s, 7)
		if want := " a  malformed malformed half malformed b"; tables(got) != want {
			t.Errorf("%q, want %q", tables(got), want)
		}
		if m := got[3].Malformed; string(m.Message) != "bad" || m.Err.Error() != "bad" {
			t.Errorf("%q, %v", m.Message, m.Err)
		}
		if p, ok := errors.AsType[*cacheaside.PanicError](got[5].Malformed.Err); !ok || p.Value != "private" {
			t.Error(got[5].Malformed.Err)
		}
		if !got[1].Time.Equal(time.Unix(1, 0)) || got[1].Position != "" || got[0].Ack != nil {
			t.Errorf("%+v", got[:2])
		}
		if len(b.all()) > 0 {
			t.Errorf("acknowledged %q", b.all())
		}
		for _, g := range got[1:] {
			g.Ack()
			g.Ack()
		}
		if want := []string{"a", "none", "bad", "half", "panic", "b"}; !slices.Equal(b.all(), want) {
			t.Errorf("acknowledged %q", b.all())
		}
	})
}

// What a Run has delivered, and was not acknowledged, is delivered by the next, before what is new:
// the broker would take the acknowledgement of that for one of all before.
func TestUnfinishedComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		s := NewSource(b.messages, named)
		b.publish("a", "b", "c", "d")
		got := run(t, s, 4) // of the beginning, of a, b and c; d was taken, and could not be delivered
		got[1].Ack()
		b.publish("e")
		got = run(t, s, 5)
		if tables(got) != " b c d e" {
			t.Fatalf("%q", tables(got))
		}
		for _, g := range got[1:] {
			g.Ack()
		}
		if tables(run(t, s, 1)) != "" || !slices.Equal(b.all(), []string{"a", "b", "c", "d", "e"}) {
			t.Errorf("acknowledged %q", b.all())
		}
	})
}

// A channel that is closed, and one that is nil, never have messages.
func TestClosed(t *testing.T) {
	messages := make(chan Message)
	close(messages)
	for name, s := range map[string]canal.Source{"closed": NewSource(messages, Canal), "nil": NewSource(nil, Canal),
		"no decoder": NewSource(make(chan Message), nil)} {
		if err := s.Run(t.Context(), event.Need{}, make(chan event.Batch, 1)); !errors.Is(err, canal.ErrSetup) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lot is a Parking.
type lot struct {
	mu     sync.Mutex
	parked []string
}

func (l *lot) Park(_ context.Context, p parking.Parked) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked = append(l.parked, p.Reason)
	return nil
}

func (l *lot) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.parked)
}

// What a message does not say surely, or cannot be read of it, leaves nothing stale: also under the
// key that a row may have had.
func TestNothingIsStale(t *testing.T) {
	flat := func(rest string) string { return `{"database":"shop","table":"users",` + rest + `}` }
	whole := DebeziumPostgres(map[event.Table][]string{{Schema: "shop", Name: "users"}: nil})
	byEmail := DebeziumPostgres(map[event.Table][]string{{Schema: "shop", Name: "users"}: {"email"}})
	pg := func(op, before, after string) string { // with the type of the column
		const email = `"fields":[{"field":"email","type":"string","parameters":{"__debezium.source.column.type":"TEXT"}}]`
		return `{"schema":{"fields":[{"field":"before",` + email + `},{"field":"after",` + email + `}]},"payload":{"op":"` + op + `","before":` + before + `,"after":` + after + `,"source":{"connector":"postgresql","db":"db","schema":"shop","table":"users"}}}`
	}
	for name, c := range map[string]struct {
		decode  Decoder
		message string
		stale   string // e-mail addresses that must be loaded again
		parked  int
	}{
		"canal, a row":                    {Canal, flat(`"type":"UPDATE","data":[{"id":"1","email":"new"}],"old":[{"email":"old"}]`), "new old", 0},
		"canal, another column":           {Canal, flat(`"type":"UPDATE","data":[{"id":"1","email":"new","a":"1"}],"old":[{"a":"2"}]`), "new", 0},
		"canal, less old":                 {Canal, flat(`"type":"UPDATE","data":[{"id":"1","email":"new"},{"id":"2","email":"next"}],"old":[{"email":"x"}]`), "new next old other", 0},
		"canal, MINIMAL":                  {Canal, flat(`"type":"UPDATE","data":[{"email":"new"}],"old":[{}]`), "new next old other", 0},
		"canal, a row that cannot be":     {Canal, flat(`"type":"UPDATE","data":["?"]`), "new next old other", 1},
		"canal, a message of nobody":      {Canal, `?`, "new next old other", 1},
		"Maxwell, a row":                  {Maxwell, flat(`"type":"update","data":{"id":1,"email":"new"},"old":{"email":"old"}`), "new old", 0},
		"Maxwell, MINIMAL":                {Maxwell, flat(`"type":"update","data":{"email":"new","id":1}`), "new next old other", 0},
		"Maxwell, output_null=false":      {Maxwell, flat(`"type":"update","data":{"id":1},"old":{"email":"old"}`), "old", 0},
		"Maxwell, NULL that was left out": {Maxwell, flat(`"type":"insert","data":{"id":1}`), "new next old other", 0},
		"Maxwell, RENAME":                 {Maxwell, `{"type":"table-alter","database":"shop","table":"users2","old":{"database":"shop","table":"users2"},"def":{"database":"shop","table":"users"}}`, "new next old other", 0},
		"Debezium, a row":                 {Debezium, `{"op":"u","source":{"db":"shop","table":"users"},"before":{"email":"old"},"after":{"email":"new"}}`, "new old", 0},
		"canal, a FLOAT":                  {Canal, flat(`"type":"INSERT","data":[{"id":"1","email":"1.5"}],"mysqlType":{"email":"float"}`), "new next old other", 0},
		"Maxwell, a FLOAT":                {Maxwell, flat(`"type":"insert","data":{"id":1,"email":1.5}`), "new next old other", 0},
		"Debezium, a DOUBLE":              {Debezium, `{"op":"c","source":{"db":"shop","table":"users"},"after":{"email":1.5}}`, "new next old other", 0},
		"Debezium, BINARY in hex": {Debezium, `{"schema":{"fields":[{"field":"after","fields":[{"field":"email","type":"string","parameters":{"__debezium.source.column.type":"BINARY"}}]}]},"payload":{"op":"c","source":{"db":"shop","table":"users"},"after":{"email":"00ff"}}}`,
			"new next old other", 0},
		"Debezium, a row with a column payload": {Debezium, `{"id":7,"payload":null}`, "new next old other", 1},
		"Debezium, without what was":            {Debezium, `{"op":"u","source":{"db":"shop","table":"users"},"before":null,"after":{"email":"new"}}`, "new next old other", 0},
		"Debezium, unavailable":                 {Debezium, `{"op":"u","source":{"db":"shop","table":"users"},"before":{"email":"__debezium_unavailable_value"},"after":{"email":"new"}}`, "new next old other", 0},
		"PostgreSQL, an unknown identity":       {Debezium, pg("u", `{"email":"old"}`, `{"email":"new"}`), "new next old other", 0},
		"PostgreSQL, FULL":                      {whole, pg("u", `{"email":"old"}`, `{"email":"new"}`), "new old", 0},
		"PostgreSQL, no longer FULL":            {whole, pg("u", `null`, `{"email":"new"}`), "new next old other", 0},
		"PostgreSQL, unavailable":               {whole, pg("u", `{"email":"old"}`, `{"email":"__debezium_unavailable_value"}`), "old", 0},
		"PostgreSQL, of the identity":           {byEmail, pg("u", `null`, `{"email":"new"}`), "new", 0},
		"PostgreSQL, outside the identity": {DebeziumPostgres(map[event.Table][]string{{Schema: "shop", Name: "users"}: {"id"}}), pg("d", `{"id":1,"email":""}`, `null`),
			"new next old other", 0},
		"PostgreSQL, unavailable, and no row before": {byEmail, pg("u", `null`, `{"email":"__debezium_unavailable_value"}`), "new next old other", 0},
		"PostgreSQL, another schema":                 {byEmail, strings.Replace(pg("d", `{"email":"new"}`, `null`), `"schema":"shop"`, `"schema":"other"`, 1), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cache, err := cacheaside.NewLocal(nil)
				check(t, err)
				defer cache.Close()
				version := "1"
				load := func(context.Context, string) (string, error) { return version, nil }
				users, err := cacheaside.NewLoader(cache, "user", load, &cacheaside.LoaderOptions{TTL: time.Hour})
				check(t, err)
				b, parking := newBroker(), &lot{}
				consumer, err := canal.NewConsumer(cache, NewSource(b.messages, c.decode), nil,
					[]canal.Binding{canal.Bind(users, "shop", "users", canal.TextColumn[string]("email"))},
					&canal.Options{Parking: parking})
				check(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- consumer.Run(ctx) }()
				emails := []string{"new", "next", "old", "other"}
				for _, e := range emails {
					_, err := users.Get(ctx, e)
					check(t, err)
				}
				version = "2"
				b.publish(c.message)
				synctest.Wait()
				var stale []string
				for _, e := range emails {
					v, err := users.Get(ctx, e)
					check(t, err)
					if v == "2" {
						stale = append(stale, e)
					}
				}
				if got := strings.Join(stale, " "); got != c.stale {
					t.Errorf("invalidated %q, want %q", got, c.stale)
				}
				if len(b.all()) != 1 || len(parking.all()) != c.parked ||
					strings.Contains(fmt.Sprint(parking.all()), "new") {
					t.Errorf("%d acknowledged, parked %q", len(b.all()), parking.all())
				}
				cancel()
				check(t, <-ended)
			})
		})
	}
}

// DDL that adds rows without reporting them, and messages that cannot be read, make filters be
// rebuilt. Other DDL does not.
func TestGap(t *testing.T) {
	flat := func(table, rest string) string { return `{"database":"shop","table":"` + table + `",` + rest + `}` }
	for name, c := range map[string]struct {
		decode  Decoder
		message string
		gaps    int
	}{
		"canal, RENAME":             {Canal, flat("users", `"type":"RENAME","sql":"RENAME TABLE new TO users"`), 1},
		"canal, RENAME away":        {Canal, flat("old", `"type":"RENAME","sql":"RENAME TABLE users TO old"`), 0},
		"canal, ALTER":              {Canal, flat("users", `"type":"ALTER","sql":"ALTER TABLE users ADD a INT"`), 0},
		"canal, EXCHANGE PARTITION": {Canal, flat("other", `"type":"ALTER","sql":"ALTER TABLE other EXCHANGE PARTITION p WITH TABLE users"`), 1},
		"canal, unreadable":         {Canal, flat("users", `"type":"INSERT","data":["?"]`), 1},
		"canal, another unreadable": {Canal, flat("other", `"type":"INSERT","data":["?"]`), 0},
		"Maxwell, RENAME":           {Maxwell, `{"type":"table-alter","database":"shop","table":"new","def":{"database":"shop","table":"users"}}`, 1},
		"Maxwell, unreadable":       {Maxwell, flat("users", `"type":"insert","data":"?"`), 1},
		"Debezium, unreadable DDL":  {Debezium, `{"source":{"db":"shop","table":"other"},"databaseName":"shop","ddl":["?"]}`, 1},
		"Debezium, unreadable":      {Debezium, `{"op":"c","source":{"db":"shop","table":"users"},"after":1}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cache, err := cacheaside.NewLocal(nil)
				check(t, err)
				defer cache.Close()
				load := func(context.Context, string) (string, error) { return "", nil }
				users, err := cacheaside.NewLoader(cache, "user", load, nil)
				check(t, err)
				b, gaps := newBroker(), 0
				consumer, err := canal.NewConsumer(cache, NewSource(b.messages, c.decode), nil,
					[]canal.Binding{canal.Bind(users, "shop", "users", canal.TextColumn[string]("email"))},
					&canal.Options{Parking: &lot{}, OnGap: func(context.Context) error { gaps++; return nil }})
				check(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- consumer.Run(ctx) }()
				b.publish(c.message)
				synctest.Wait()
				cancel()
				check(t, <-ended)
				if gaps != c.gaps {
					t.Errorf("%d gaps, want %d", gaps, c.gaps)
				}
			})
		})
	}
}
