package bloom

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// scene lets a test act between the commands of a client.
type scene struct {
	after atomic.Pointer[func(cmd redis.Cmder)]
}

func (s *scene) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scene) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.act(cmd)
		return err
	}
}

func (s *scene) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		s.act(cmds[0])
		return err
	}
}

func (s *scene) act(cmd redis.Cmder) {
	if after := s.after.Load(); after != nil {
		(*after)(cmd)
	}
}

// once acts after the first command of this name.
func (s *scene) once(name string, do func()) {
	var done atomic.Bool
	after := func(cmd redis.Cmder) {
		if cmd.Name() == name && !done.Swap(true) {
			do()
		}
	}
	s.after.Store(&after)
}

// staged is a filter, and a replica of it that is just being made, by another client that acts.
func staged(t *testing.T, act func(s *scene, f *Redis, g *generation, r func() *Replica)) *Replica {
	_, rdb := testenv.Mini(t)
	other := redis.NewClient(rdb.Options())
	t.Cleanup(func() { other.Close() })
	f := newFilter(t, rdb, 1000)
	g := built(t, f, "a")
	var s scene
	var r atomic.Pointer[Replica]
	act(&s, f, g, r.Load)
	other.AddHook(&s)
	made := newReplica(t, other, patient)
	r.Store(made)
	copiedBy(t, made)
	return made
}

// awaitReceived waits until r has received n announcements.
func awaitReceived(t *testing.T, r *Replica, n int64) {
	testenv.Eventually(t, "announcements received", func() bool { return r.Stats().Received >= n })
}

// What is added while the segments are being fetched is in the copy.
func TestReplicaReceivesKeysWhileItIsFetched(t *testing.T) {
	r := staged(t, func(s *scene, f *Redis, _ *generation, r func() *Replica) {
		s.once("getrange", func() {
			must(t, f.Add(t.Context(), "other's"))
			awaitReceived(t, r(), 1)
			must(t, r().Add(t.Context(), "own"))
		})
	})
	if !says(r, "other's") || !says(r, "own") || says(r, "absent") {
		t.Error("it is missed")
	}
}

// What is missed while the segments are being fetched has them fetched again.
func TestReplicaMissesWhileItIsFetched(t *testing.T) {
	r := staged(t, func(s *scene, f *Redis, g *generation, r func() *Replica) {
		s.once("getrange", func() {
			err := f.write(t.Context(), g, []bitmap.Hash{bitmap.HashOf("missed")})
			must(t, err)
			busListener{r().Redis}.Void(0)
		})
	})
	if s := r.Stats(); !says(r, "missed") || says(r, "absent") || s.Copies != 1 || s.Gaps != 2 {
		t.Errorf("%+v", s)
	}
}

// What was added to the next generation before the copy was registered is not missed by a copy of
// the one before.
func TestReplicaReadsTheDescriptorAgain(t *testing.T) {
	var wrong atomic.Bool
	r := staged(t, func(s *scene, f *Redis, _ *generation, r func() *Replica) {
		swap := func() {
			next, err := f.begin(t.Context(), f.capacity)
			must(t, err)
			must(t, f.prepare(t.Context(), next))
			must(t, f.activate(t.Context(), next)) // the generation before is not removed
			must(t, f.Add(t.Context(), "new"))
			awaitReceived(t, r(), 2)
		}
		times := 0
		after := func(cmd redis.Cmder) {
			if cmd.Name() != "get" {
				return
			}
			if times++; times == 1 {
				swap()
			}
			if c, h := r().serving.Load(), bitmap.HashOf("new"); c != nil && !c.Has(&h) {
				wrong.Store(true)
			}
		}
		s.after.Store(&after)
	})
	if wrong.Load() || !says(r, "new") || says(r, "absent") {
		t.Error("it is missed")
	}
}

// While the next generation is fetched, the copy of the last one stays in use and gets new keys.
func TestReplicaSwaps(t *testing.T) {
	var s scene
	_, rdb := testenv.Mini(t)
	other := redis.NewClient(rdb.Options())
	t.Cleanup(func() { other.Close() })
	other.AddHook(&s)
	f := newFilter(t, rdb, 1000)
	built(t, f, "a")
	r := newReplica(t, other, patient)
	copiedBy(t, r)
	var during []bool
	done := make(chan struct{})
	s.once("getrange", func() {
		defer close(done)
		must(t, f.Add(t.Context(), "b"))
		awaitReceived(t, r, 3)
		during = []bool{r.Stats().Copied, says(r, "a"), says(r, "b"), !says(r, "absent")}
	})
	f.capacity = 5000
	built(t, f, "a")
	<-done
	if slices.Contains(during, false) {
		t.Error(during)
	}
	testenv.Eventually(t, "the next one", func() bool { return r.Stats().Copies == 2 })
	if c := r.serving.Load(); c.Total() < 40_000 || !says(r, "a") || !says(r, "b") || says(r, "absent") ||
		r.incoming.Load() != nil {
		t.Error("wrong bits")
	}
}

// A key that this process adds while its copy is fetched is in the copy, for either order of the
// two commands in Redis.
func TestReplicaHasWhatIsUnderWay(t *testing.T) {
	_, rdb := testenv.Mini(t)
	built(t, newFilter(t, rdb, 1000), "a")
	other := redis.NewClient(rdb.Options())
	t.Cleanup(func() { other.Close() })
	at, gone := make(chan struct{}), make(chan struct{})
	other.AddHook(&tap{before: func(cmds []redis.Cmder) error {
		if len(cmds) == 1 && len(cmds[0].Args()) > 20 {
			close(at)
			<-gone
		}
		return nil
	}})
	f, err := NewRedis(other, "users", 1000, 0.01, patient)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	added := make(chan error, 1)
	go func() { added <- f.Add(t.Context(), "new") }()
	testenv.Receive(t, "the script", at)
	r, err := NewReplica(f)
	must(t, err)
	copiedBy(t, r)
	close(gone)
	must(t, testenv.Receive(t, "the add", added))
	if !says(r, "new") || says(r, "absent") {
		t.Error("it is missed")
	}
}
