package bloom

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// settle is how long a rebuild waits before it reads.
const settle = 20 * time.Millisecond

// rebuild rebuilds, with other parameters now and then: as a rule as everybody does, one process at
// a time, and sometimes by the steps alone, as if the lock were lost.
func (h *hidden) rebuild() {
	r := rand.New(rand.NewPCG(uint64(clock()), uint64(os.Getpid())))
	for !h.ended() {
		capacity := uint64(2000)
		for int64(capacity) < h.get(next) {
			capacity *= 2
		}
		// The same in all processes, for a while: a rebuild with the same options as another
		// continues that one.
		same := rand.New(rand.NewPCG(h.config.Seed, uint64(clock()/int64(2*time.Second))))
		f := h.filter(capacity<<same.IntN(3)>>1, []float64{0.01, 0.03, 0.001}[same.IntN(3)])
		h.rebuildBy(r, f)
		f.Close()
		time.Sleep(time.Duration(r.Int64N(int64(50 * time.Millisecond))))
	}
}

func (h *hidden) rebuildBy(r *rand.Rand, f *Redis) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var err error
	if r.IntN(3) == 0 {
		err = h.rebuildBySteps(ctx, f)
	} else {
		options := &RebuildOptions{Settle: settle}
		if r.IntN(2) == 0 {
			options.Rate = 1000 + 2*int(h.get(next)) // in more batches, so that it is stopped and killed between them
		}
		var report Report
		if report, err = f.Rebuild(ctx, h.source, options); err == nil && report.Resumed {
			h.count(resumed, 1)
		}
	}
	switch {
	case err == nil:
		h.count(rebuilt, 1)
	case errors.Is(err, ErrRebuilding):
		h.count(outlocked, 1)
	default:
		h.count(failedRebuilds, 1)
	}
}

// rebuildBySteps is a Rebuild that may run at the same time as others.
func (h *hidden) rebuildBySteps(ctx context.Context, f *Redis) error {
	g, err := f.begin(ctx, f.capacity)
	if err != nil {
		return err
	}
	if err := f.prepare(ctx, g); err != nil {
		return err
	}
	time.Sleep(settle)
	var hashes []bitmap.Hash
	flush := func() error {
		err := f.write(ctx, g, hashes)
		hashes = hashes[:0]
		return err
	}
	for key := range h.source(ctx, "") {
		if hashes = append(hashes, bitmap.HashOf(strings.Clone(key))); len(hashes) == 5000 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if err := f.activate(ctx, g); err != nil {
		return err
	}
	return f.remove(ctx)
}
