package lease

import (
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// await counts the caller among those who wait for the lease of a key.
func (b *backend) await(key string, kind Kind) State {
	b.t.Helper()
	a := NewAttempt(key, long)
	b.store.Await(b.ctx, []*Attempt{&a}, "listeners of "+key)
	return wantKind(b.t, "await", a.State, a.Err, kind)
}

// Whoever ends a lease that others wait for learns of them, however the lease ends.
func TestEndOfAnAwaitedLease(t *testing.T) {
	large := Entry{Codec: 4, Payload: make([]byte, 2*maxScriptBytes)}
	for name, end := range map[string]func(b *backend, a single){
		"fill":       func(b *backend, a single) { b.fill(a, Entry{Codec: 4}, long, true) },
		"large fill": func(b *backend, a single) { b.fill(a, large, long, true) },
		"failure":    func(b *backend, a single) { b.fail(a, long) },
		"release":    func(b *backend, a single) { b.release(a) },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b *backend) {
				a := b.attempt("k")
				b.take(a, Mine)
				if s := b.read(b.attempt("k"), Busy); s.Awaited {
					t.Error("a lease is awaited from the beginning")
				}
				for range 2 {
					s := b.await("k", Busy)
					if !s.Awaited || s.Token != a.token {
						t.Errorf("awaited: %v, token %v", s.Awaited, s.Token)
					}
					if s.Left > long || s.Left < long/2 {
						t.Errorf("%v are left of %v", s.Left, long)
					}
				}
				if s := b.read(b.attempt("k"), Busy); !s.Awaited {
					t.Error("a lookup does not show that the lease is awaited")
				}
				refresh := b.attempt("k")
				if s := b.claim(refresh, Busy); !s.Awaited {
					t.Error("a claim does not show that the lease is awaited")
				}
				b.renew(a, true)
				b.life("k", long)
				end(b, a)
				if !a.Awaited {
					t.Error("the end does not show that the lease was awaited")
				}
			})
		})
	}
}

// Await is a lookup of keys without a lease, and changes nothing there. An end without waiting
// processes does not show any.
func TestAwaitWithoutALease(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.await("k", Absent)
		a := b.attempt("k")
		b.take(a, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		if a.Awaited {
			t.Error("no process has waited")
		}
		if s := b.await("k", Stored); string(s.Entry.Payload) != "v" {
			t.Errorf("found %q", s.Entry.Payload)
		}
		b.payload("k", "v")
		foreign := append([]byte{leaseByte}, make([]byte, 2*leaseSize)...)
		if err := b.rdb.Set(b.ctx, "k", foreign, 0).Err(); err != nil {
			t.Fatal(err)
		}
		b.await("k", Unknown)
	})
}

// A lease is awaited if one of awaitedShare listeners waits.
func TestFewWaitingProcesses(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testenv.Redis{
		"redis": testenv.SharedRedis, "valkey": testenv.SharedValkey,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, server(t).Client(t))
			const waiting = 3
			for range (waiting-1)*awaitedShare + 1 {
				sub := b.rdb.Subscribe(b.ctx, "listeners of k")
				t.Cleanup(func() { sub.Close() })
				if _, err := sub.Receive(b.ctx); err != nil {
					t.Fatal(err)
				}
			}
			a := b.attempt("k")
			b.take(a, Mine)
			var got []bool
			for range waiting + 1 {
				got = append(got, b.await("k", Busy).Awaited)
			}
			if want := []bool{false, false, true, true}; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("awaited: %v, expected %v", got, want)
			}
		})
	}
}
