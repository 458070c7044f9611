package mysqlbinlog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	"github.com/cacheaside/cacheaside/canal/event"
)

const someSID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

// Transactions that are added one by one, in any order, are the set that go-mysql makes of them.
func TestAddToPosition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tags := []string{"", ":shop"}
	for range 200 {
		p, err := parseSet("", mysql.MySQLFlavor)
		if err != nil {
			t.Fatal(err)
		}
		want, err := mysql.ParseMysqlGTIDSet("")
		if err != nil {
			t.Fatal(err)
		}
		for range r.IntN(40) {
			tag, gno := tags[r.IntN(2)], 1+r.Int64N(20)
			one := fmt.Sprint(someSID, tag, ":", gno)
			if err := want.Update(one); err != nil {
				t.Fatal(err)
			}
			p.add(gtid{mysql: idOf(t, one)})
		}
		if got := string(p.text()); got != mysqlPrefix+want.String() {
			t.Fatalf("%s, want %s", got, want)
		}
	}
}

// idOf reads a GTID.
func idOf(t *testing.T, one string) (id mysqlGTID) {
	t.Helper()
	set, err := mysql.ParseMysqlGTIDSet(one)
	if err != nil {
		t.Fatal(err)
	}
	id.sid = uuid.MustParse(someSID)
	for tag, all := range (*set.(*mysql.MysqlGTIDSet))[id.sid] {
		id.tag, id.gno = tag, all[0].Start
	}
	return id
}

// gaps returns a GTID set from which n transactions are missing.
func gaps(n int) string {
	var b strings.Builder
	b.WriteString(someSID)
	for i := range n {
		fmt.Fprintf(&b, ":%d", 1_000_000+2*i)
	}
	return b.String()
}

// A long position is not written with each transaction; the last one is, when the log is quiet.
func TestLongPositionIsSeldomWritten(t *testing.T) {
	at, err := parse(event.Position(mysqlPrefix+gaps(20_000)), mysql.MySQLFlavor)
	if err != nil {
		t.Fatal(err)
	}
	const transactions = 1000
	out := make(chan part, transactions+10)
	r := &reader{ctx: t.Context(), at: at, out: out}
	began := time.Now()
	for i := range transactions {
		r.transaction = transaction{open: true,
			id: gtid{mysql: mysqlGTID{sid: uuid.MustParse(someSID), gno: int64(1 + i)}}, changes: []event.Change{{}}}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
	}
	written := 0
	for len(out) > 0 {
		if b := <-out; b.Position != "" {
			written++
		}
	}
	if limit := 1 + int(time.Since(began)/(100*time.Millisecond)); written > limit {
		t.Errorf("the position was written %d times in %v", written, time.Since(began))
	}
	r.written = time.Time{} // long ago
	if err := r.idle(); err != nil {
		t.Fatal(err)
	}
	if b := <-out; !strings.HasPrefix(string(b.Position), mysqlPrefix+someSID+":1-1000:1000000:") {
		t.Errorf("when it is quiet the position is %.80q", b.Position)
	}
	if r.unsaved {
		t.Error("it is still unsaved")
	}
}

// What is asked for at once is asked for in parts if not all of it can be seen.
func TestSightAsksForLess(t *testing.T) {
	x := onMySQL(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	source := x.source()
	d := &dialer{options: &source.options}
	defer d.close()
	questions, err := d.session(t.Context())
	x.Check(err)
	s := &visibility{server: &server{session: questions, flavor: mysql.MySQLFlavor}}
	x.one("SET gtid_next = '"+someSID+":77'", "INSERT INTO a VALUES (1)", "SET gtid_next = 'AUTOMATIC'")
	x.one("SET gtid_next = '"+someSID+":tag_2:5'", "INSERT INTO a VALUES (2)", "SET gtid_next = 'AUTOMATIC'")
	var parts []part
	for _, one := range []string{":77", ":tag_2:5", ":78", ":79"} {
		parts = append(parts, part{from: mark{mysql: idOf(t, someSID+one)}})
	}
	for i, want := range []int{0, 2} {
		n, err := s.Query(t.Context(), parts)
		x.Check(err)
		if n != want {
			t.Errorf("after %d questions %d can be seen, not %d", i+1, n, want)
		}
	}
	for range 3 { // 4, 2, 1
		n, err := s.Query(t.Context(), parts[2:])
		x.Check(err)
		if n != 0 {
			t.Errorf("%d can be seen that are not there", n)
		}
	}
	if s.limit != 1 {
		t.Errorf("%d are asked for", s.limit)
	}
}
