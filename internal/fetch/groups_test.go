package fetch

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// grouped returns a fetcher of a process without Redis, with a memory tier and groups.
func grouped(t *testing.T) *Fetcher {
	tier, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tier.Close)
	log := groups.New(groups.Options{All: 1 << 60, InUse: true, Local: true, Forget: tier.Forget})
	return &Fetcher{cache: &Shared{}, Options: Options{Memory: tier, Groups: log}}
}

// If an invalidation comes while a value is put into memory, either the value is found outdated, or
// its versions are.
func TestVersionsOfGroupsAreTakenFirst(t *testing.T) {
	f := grouped(t)
	many := make([]uint64, 1<<17) // so that it takes long
	for i := range many {
		many[i] = uint64(i)
	}
	set := groups.SetOf(many...)
	took := time.Hour // by the fastest of some calls
	for range 5 {
		began := time.Now()
		f.takeGroupVersions(&Round{snapshot: snapshot{known: f.Groups.Last(0), groups: set}})
		took = min(took, time.Since(began))
	}
	for range 30 {
		r := &Round{snapshot: snapshot{known: f.Groups.Last(0), groups: set}}
		var both sync.WaitGroup
		both.Go(func() {
			time.Sleep(rand.N(took))
			f.Groups.Invalidate(groups.SetOf(many[len(many)-1]))
		})
		current := f.takeGroupVersions(r)
		both.Wait()
		if current && f.Memory.GroupsCurrent(r.groupVersions) {
			t.Fatal("memory serves a value of an invalidated group")
		}
	}
}
