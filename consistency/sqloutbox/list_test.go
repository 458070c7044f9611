package sqloutbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// rowOf is the row of this text.
func rowOf(t *outboxTest, text string) Row {
	t.Helper()
	rows, err := t.List(t.ctx(), 100)
	t.check(err)
	for _, r := range rows {
		if r.Key.Text == text {
			return r
		}
	}
	t.Fatalf("no row of %q among %d", text, len(rows))
	return Row{}
}

// TestList: List shows due, waiting and claimed items, the due ones first, and changes nothing.
func TestList(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		late, again := textItem("late"), textItem("again")
		late.After, again.After, again.Again, again.Attempts = claimLong-10*time.Minute, time.Minute, time.Second, 3
		t.check(t.Put(t.ctx(), late, again, textItem("claimed")))
		claimed := t.some(t.Outbox, 10)
		t.same(claimed, "claimed")
		t.check(t.Put(t.ctx(), textItem("due")))
		rows, err := t.List(t.ctx(), 100)
		t.check(err)
		var got []string
		for _, r := range rows {
			got = append(got, r.Key.Text)
		}
		if strings.Join(got, " ") != "due again late claimed" {
			t.Errorf("the order is %q", got)
		}
		if r := rowOf(t, "due"); r.After > 0 || r.Claim != "" || r.Attempts != 0 || r.Unreadable {
			t.Errorf("due: %+v", r)
		}
		if r := rowOf(t, "again"); r.After < 30*time.Second || r.After > time.Minute || r.Again != time.Second ||
			r.Attempts != 3 {
			t.Errorf("again: %+v", r)
		}
		if r := rowOf(t, "claimed"); r.Claim != claimed[0].Claim || r.ID != claimed[0].ID {
			t.Errorf("claimed: %+v of %+v", r, claimed[0])
		}
		t.same(t.some(t.Outbox, 10), "due")
		for _, limit := range []int{0, -1, 1001} {
			if _, err := t.List(t.ctx(), limit); err == nil || !strings.Contains(err.Error(), "limit") {
				t.Errorf("a limit of %d: %v", limit, err)
			}
		}
		if rows, err := t.List(t.ctx(), 2); err != nil || len(rows) != 2 {
			t.Errorf("two of four are %d: %v", len(rows), err)
		}
	})
}

// TestRetry: what is named becomes due, and stays in the queue.
func TestRetry(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		a, b := textItem("a"), textItem("b")
		a.ID, b.ID = strings.Repeat("a1", 16), strings.Repeat("b2", 16)
		a.After, b.After = time.Hour, time.Hour
		t.check(t.Put(t.ctx(), a, b))
		t.same(t.some(t.Outbox, 10))
		n, err := t.Retry(t.ctx(), a.ID, strings.Repeat("cc", 16))
		t.check(err)
		if n != 1 {
			t.Errorf("it has made %d due, not one", n)
		}
		t.same(t.some(t.Outbox, 10), "a")
		t.holds(2, "a retry removes nothing")
		if n, err := t.Retry(t.ctx()); n != 0 || err != nil {
			t.Errorf("of no items it has made %d due: %v", n, err)
		}
		if _, err := t.Retry(t.ctx(), "x' OR 1=1"); err == nil || !strings.Contains(err.Error(), "Item.ID") {
			t.Errorf("what is no id: %v", err)
		}
	})
}

// TestSafeUpdates: with sql_safe_updates set, no statement is refused, for any number of rows.
// TestOutbox runs the queue's own calls with it.
func TestSafeUpdates(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		safe := t.outbox(t.open(t.server.DSN(t.TB) + "&sql_safe_updates=1"))
		for _, n := range []int{1, 2, 700} {
			items := textItems(n)
			for i := range items {
				items[i].ID = consistency.NewID()
				items[i].After, items[i].Attempts = time.Hour, 1
			}
			t.check(safe.Put(t.ctx(), items...))
			t.exec(t.db, "ANALYZE TABLE cacheaside_outbox")
			if made, err := safe.Retry(t.ctx(), items[0].ID); err != nil || made != 1 {
				t.Errorf("%d made due: %v", made, err)
			}
			if made, err := safe.RetryAll(t.ctx()); err != nil || int(made) != n-1 {
				t.Errorf("%d made due: %v", made, err)
			}
			got := t.eventually(safe, n)
			half := (n + 1) / 2
			for i := range got {
				got[i].After = time.Duration(i) * time.Hour
			}
			t.check(safe.Later(t.ctx(), got[:half]...))
			t.check(safe.Done(t.ctx(), got[half:]...))
			t.check(safe.Done(t.ctx(), items...)) // as a caller that has put them
			t.holds(0, "all are done")
			c := mysqlClaim{ends: 1, number: 1}
			for _, statement := range []string{t.mine().unclaim(c, []rowID{{1}}), t.mine().repair([]rowID{{1}, {2}})} {
				_, err := safe.changed(t.ctx(), statement)
				t.check(err)
			}
		}
	})
}

// TestRetryLeavesWhatWaits: of all items those become due that have failed, and none that waits for
// its first or second time.
func TestRetryLeavesWhatWaits(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		items := textItems(maxRetry + 5)
		for i := range items {
			items[i].After, items[i].Attempts = time.Hour, 1+i%3
		}
		second := textItem("second time")
		second.After = time.Hour
		t.check(t.Put(t.ctx(), append(items, second)...))
		n, err := t.RetryAll(t.ctx())
		t.check(err)
		if n != int64(len(items)) {
			t.Errorf("it has made %d due, of %d that have failed", n, len(items))
		}
		if d, err := t.Depth(t.ctx()); err != nil || d.Due != len(items) {
			t.Errorf("%d are due: %v", d.Due, err)
		}
		if r := notDue(t); r != 1 {
			t.Errorf("%d items are not due, want the one that waits", r)
		}
	})
}

// notDue is how many are not due.
func notDue(t *outboxTest) int {
	t.Helper()
	d, err := t.Depth(t.ctx())
	t.check(err)
	return d.Items - d.Due
}

// TestGroupRow: a group is stored so that a release without groups reads all keys of its loader,
// and not a key with the name of the group.
func TestGroupRow(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		key := cacheaside.Key{Loader: "user", Text: "category:books", Group: true}
		t.check(t.Put(t.ctx(), consistency.Item{Key: key}))
		var stored int
		t.check(t.db.GetContext(t.ctx(), &stored, "SELECT all_keys FROM cacheaside_outbox"))
		if stored == 0 {
			t.Error("an older release reads a key")
		}
		rows, err := t.List(t.ctx(), 10)
		t.check(err)
		if len(rows) != 1 || rows[0].Key != key || rows[0].Unreadable {
			t.Errorf("listed: %+v", rows)
		}
		if got := t.eventually(t.Outbox, 1); got[0].Key != key {
			t.Errorf("%#v", got[0].Key)
		}
		for _, foreign := range []int{3, -1, 127} { // of later releases
			t.exec(t.db, fmt.Sprintf("UPDATE cacheaside_outbox SET all_keys = %d", foreign))
			if rows, err = t.List(t.ctx(), 10); err != nil || len(rows) != 1 || !rows[0].Key.All {
				t.Errorf("%d is read as %+v, %v", foreign, rows, err)
			}
		}
		t.exec(t.db, "UPDATE cacheaside_outbox SET all_keys = 2, text = "+t.hex(""))
		if rows, err = t.List(t.ctx(), 10); err != nil || len(rows) != 1 || !rows[0].Unreadable {
			t.Errorf("a group without a name is read as %+v, %v", rows, err)
		}
	})
}
