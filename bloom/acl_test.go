package bloom

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestACL does all that there is as a user of Redis who may do only what the package comment says.
func TestACL(t *testing.T) {
	acl := []string{"~cacheaside*", "&cacheaside*"}
	for c := range strings.FieldsSeq(
		"get set getrange strlen getbit setbit bitop bitcount del unlink hget hset hdel hincrby hgetall hmget " +
			"persist time eval evalsha publish subscribe unsubscribe ping info") {
		acl = append(acl, "+"+c)
	}
	server := testenv.StartRedisTLS(t, acl...)
	rdb := server.Client(t)
	ctx := t.Context()
	f := newFilter(t, rdb, 100_000)
	for range 2 { // the second removes what the first has made
		_, err := f.Rebuild(ctx, Keys(someKeys("key", 3000)...), &RebuildOptions{Settle: -1})
		must(t, err)
	}
	r, err := NewReplica(f)
	must(t, err)
	defer r.Close()
	testenv.Eventually(t, "copied", func() bool { return r.Stats().Copied })
	committed, err := r.Inserting(ctx, []string{"new"})
	must(t, err)
	must(t, committed(ctx))
	must(t, r.AddMany(ctx, someKeys("more", 3000))) // merged
	must(t, r.Deleted(ctx, 1))
	if !mightContain(t, r, "new") || !mightContain(t, f, "key1") || mightContain(t, f, "none") ||
		mightContain(t, r, "none") {
		t.Error("wrong results")
	}
	w := &maintainState{}
	for range 2 {
		due, err := f.due(ctx, (*MaintainOptions)(nil).withDefaults(), w)
		if err != nil || due {
			t.Error(due, err)
		}
	}
	if s := r.Stats(); s.AddErrors+s.Failed+s.Lost+s.Malformed > 0 {
		t.Errorf("%+v", s)
	}
}
