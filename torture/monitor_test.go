package torture

import (
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// shape describes the masters according to the servers.
type shape struct {
	masters []string // in order
	normal  bool     // one master for each part of the keys, the others follow, and the sentinels agree
	agreed  string   // the master, according to all sentinels
}

// shape asks all servers concurrently.
func (s *servers) shape() (sh shape) {
	roles := make([]string, len(s.nodes))
	linked := make([]bool, len(s.nodes))
	opinions := make([]string, len(s.watchers))
	var wg sync.WaitGroup
	for n, node := range s.nodes {
		wg.Go(func() { roles[n], linked[n] = role(node.Addr) })
	}
	for n, watcher := range s.watchers {
		wg.Go(func() { opinions[n] = s.masterOf(watcher) })
	}
	wg.Wait()
	sh.normal = true
	for n, node := range s.nodes {
		if roles[n] == "master" {
			sh.masters = append(sh.masters, node.Addr)
		}
		sh.normal = sh.normal && linked[n]
	}
	slices.Sort(sh.masters)
	sh.normal = sh.normal && len(sh.masters) == len(s.nodes)/2
	if len(opinions) > 0 {
		if len(slices.Compact(slices.Clone(opinions))) == 1 {
			sh.agreed = opinions[0]
		}
		sh.normal = sh.normal && sh.agreed == sh.masters[0]
	}
	return sh
}

// heal makes a master that the sentinels do not recognize a replica, as an operator would. A
// cluster does that itself.
func (s *servers) heal(sh shape, former string) {
	if sh.agreed != former && slices.Contains(sh.masters, sh.agreed) && slices.Contains(sh.masters, former) {
		s.follow(former, sh.agreed)
	}
}

// monitor detects unplanned failovers: on a busy machine a slow master may be considered dead. It
// runs until stop is closed. A failover lasts from the last healthy check before it to the first
// healthy check after it.
func (i *injector) monitor(stop <-chan struct{}) {
	if i.topology == "single" {
		return
	}
	well := i.shape()
	at := history.Now()
	changed := false
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		case <-time.After(150 * time.Millisecond):
		}
		asked := history.Now()
		sh := i.shape()
		for _, m := range sh.masters {
			changed = changed || !slices.Contains(well.masters, m)
		}
		// Without a fault, sentinels take much longer.
		if changed && history.Now()-at > int64(5*time.Second) {
			for _, m := range sh.masters {
				i.heal(sh, m)
			}
		}
		if changed && (sh.normal || done) {
			i.mu.Lock()
			i.failovers = append(i.failovers, check.Window{From: at - int64(time.Second), To: history.Now()})
			i.mu.Unlock()
			changed = false
		}
		if sh.normal {
			well, at = sh, asked
		}
	}
}
