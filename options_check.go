package cacheaside

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/wording"
)

const (
	minMemoryBytes = 64 << 10
	maxMemoryBytes = min(1<<40, math.MaxInt) // within the address space
	maxValueBytes  = 512 << 20
	maxRate        = 1e9
	maxQueue       = 1e9 // by default
)

// withDefaults returns o with defaults in place of zeros.
func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, "cacheaside")
	d.MemoryBytes = cmp.Or(d.MemoryBytes, 64<<20)
	d.RedisTimeout = cmp.Or(d.RedisTimeout, 500*time.Millisecond)
	d.MaxStaleness = cmp.Or(d.MaxStaleness, 2*time.Second)
	d.LeaseTTL = cmp.Or(d.LeaseTTL, 2*time.Second)
	d.ReadTimeout = cmp.Or(d.ReadTimeout, max(d.RedisTimeout/2, time.Millisecond))
	d.MaxLoads = cmp.Or(d.MaxLoads, 100)
	d.MaxQueue = cmp.Or(d.MaxQueue, 10*min(max(d.MaxLoads, 0), maxQueue/10), 1000)
	d.QueueTimeout = cmp.Or(d.QueueTimeout, time.Second)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	return d
}

func (o Options) check() error {
	switch {
	case !keys.ValidName(o.Prefix):
		return fmt.Errorf("Options.Prefix %q: only letters, digits, '_', '.' and '-'", o.Prefix)
	case o.MemoryBytes >= 0 && (o.MemoryBytes < minMemoryBytes || o.MemoryBytes > maxMemoryBytes):
		return fmt.Errorf("Options.MemoryBytes %d: from %d to %d, or negative for no memory tier", o.MemoryBytes,
			minMemoryBytes, int64(maxMemoryBytes))
	case !(o.LoadRate >= 0 && o.LoadRate <= maxRate): // also NaN
		return fmt.Errorf("Options.LoadRate %v: from 0 (no limit) to %v", o.LoadRate, maxRate)
	case isNilPointer(o.Observer):
		return fmt.Errorf("Options.Observer is a nil %T", o.Observer)
	}
	return cmp.Or(
		wording.Range("Options.RedisTimeout", o.RedisTimeout, time.Millisecond, time.Hour),
		wording.Range("Options.ReadTimeout", o.ReadTimeout, time.Millisecond, o.RedisTimeout),
		wording.Range("Options.QueueTimeout", o.QueueTimeout, time.Millisecond, time.Hour),
		wording.Range("Options.ReplicaLag", o.ReplicaLag, 0, time.Minute),
		wording.Range("Options.MaxStaleness", o.MaxStaleness, 20*time.Millisecond, time.Minute),
		wording.Range("Options.LeaseTTL", o.LeaseTTL, 100*time.Millisecond, time.Minute))
}

func (l *LoaderOptions) withDefaults() LoaderOptions {
	var d LoaderOptions
	if l != nil {
		d = *l
	}
	d.Version = cmp.Or(d.Version, "1")
	d.TTL = cmp.Or(d.TTL, 10*time.Minute)
	d.Jitter = cmp.Or(d.Jitter, 0.1)
	d.StaleFor = cmp.Or(d.StaleFor, min(time.Minute, d.TTL))
	d.EarlyRefresh = cmp.Or(d.EarlyRefresh, 1)
	d.BreakAt = cmp.Or(d.BreakAt, 0.9)
	d.BreakFor = cmp.Or(d.BreakFor, time.Second)
	d.NullTTL = cmp.Or(d.NullTTL, min(time.Minute, d.TTL))
	d.MemoryTTL = cmp.Or(d.MemoryTTL, MaxTTL)
	d.LoadTimeout = cmp.Or(d.LoadTimeout, 10*time.Second)
	d.ErrorTTL = cmp.Or(d.ErrorTTL, 200*time.Millisecond)
	d.BatchSize = cmp.Or(d.BatchSize, 100)
	d.MaxValueBytes = cmp.Or(d.MaxValueBytes, 16<<20)
	d.AuditEvery = cmp.Or(d.AuditEvery, time.Second)
	return d
}

func (l LoaderOptions) check() error {
	switch {
	case !keys.ValidName(l.Version):
		return fmt.Errorf("LoaderOptions.Version %q: only letters, digits, '_', '.' and '-'", l.Version)
	case !(l.Jitter <= 0.9): // also NaN
		return fmt.Errorf("LoaderOptions.Jitter %v: at most 0.9", l.Jitter)
	case !(l.EarlyRefresh <= 100):
		return fmt.Errorf("LoaderOptions.EarlyRefresh %v: at most 100", l.EarlyRefresh)
	case !(l.Shadow >= 0 && l.Shadow <= 1):
		return fmt.Errorf("LoaderOptions.Shadow %v: from 0 to 1", l.Shadow)
	case !(l.BreakAt <= 1):
		return fmt.Errorf("LoaderOptions.BreakAt %v: at most 1", l.BreakAt)
	case isNilPointer(l.Filter): // for example from a constructor whose error was ignored
		return fmt.Errorf("LoaderOptions.Filter: a nil %T; for no filter leave it nil", l.Filter)
	case l.RedisDown > FailWhenDown:
		return fmt.Errorf("LoaderOptions.RedisDown %d: LoadWhenDown, StaleWhenDown or FailWhenDown", l.RedisDown)
	}
	for _, f := range []struct {
		field         string
		value, lo, hi int
	}{
		{"LoaderOptions.BatchSize", l.BatchSize, 1, 10_000},
		{"LoaderOptions.CompressAbove", l.CompressAbove, 0, maxValueBytes},
		{"LoaderOptions.MaxValueBytes", l.MaxValueBytes, 1, maxValueBytes},
	} {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("%s %d: from %d to %d", f.field, f.value, f.lo, f.hi)
		}
	}
	memoryTTL := l.MemoryTTL
	if memoryTTL < 0 {
		memoryTTL = MinTTL
	}
	auditEvery := l.AuditEvery
	if auditEvery < 0 {
		auditEvery = MinTTL
	}
	staleFor := l.StaleFor
	if staleFor < 0 || staleFor == Forever {
		staleFor = MaxTTL
	}
	return cmp.Or(
		wording.Range("LoaderOptions.TTL", l.TTL, MinTTL, MaxTTL),
		wording.Range("LoaderOptions.AuditEvery", auditEvery, MinTTL, MaxTTL),
		wording.Range("LoaderOptions.StaleFor", staleFor, time.Millisecond, MaxTTL),
		wording.Range("LoaderOptions.SoftTimeout", l.SoftTimeout, 0, time.Hour),
		wording.Range("LoaderOptions.BreakFor", l.BreakFor, time.Millisecond, time.Hour),
		wording.Range("LoaderOptions.NullTTL", l.NullTTL, MinTTL, MaxTTL),
		wording.Range("LoaderOptions.MemoryTTL", memoryTTL, MinTTL, MaxTTL),
		wording.Range("LoaderOptions.LoadTimeout", l.LoadTimeout, time.Millisecond, time.Hour),
		wording.Range("LoaderOptions.ErrorTTL", l.ErrorTTL, time.Millisecond, time.Hour))
}

func isNilPointer(v any) bool {
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// lag returns how long an invalidation puts its keys on hold. It is rounded up to milliseconds,
// the precision of TTLs in Redis.
func (o Options) lag() time.Duration {
	return (o.ReplicaLag + time.Millisecond - 1).Truncate(time.Millisecond)
}

// holds reports whether keys may be on hold.
func (o Options) holds() bool { return o.ReplicaLag > 0 || o.StrictWrites }

// core returns the options of package rows that do not depend on K and V.
func (l LoaderOptions) core(name string, batch bool) rows.CoreOptions {
	f := fetch.Options{
		Name: name,
		TTL:  l.TTL, NullTTL: l.NullTTL, StaleFor: l.StaleFor, SoftTimeout: l.SoftTimeout, MemoryTTL: l.MemoryTTL,
		LoadTimeout: l.LoadTimeout, ErrorTTL: l.ErrorTTL, AuditEvery: l.AuditEvery, EarlyRefresh: l.EarlyRefresh,
		Jitter:        l.Jitter,
		MaxValueBytes: l.MaxValueBytes, RedisDown: fetch.DownPolicy(l.RedisDown), Locker: l.Locker,
		MustLock: l.MustLock,
	}
	return rows.CoreOptions{
		Fetch: f, Version: l.Version, Batch: batch, BatchSize: l.BatchSize, MaxLoads: l.MaxLoads,
		BreakAt: l.BreakAt, BreakFor: l.BreakFor, NotFound: l.NotFound, BadKey: l.BadKey, Shadow: l.Shadow,
		Filter: l.Filter,
	}
}

// lockable returns an error if the Locker is invalid, or cannot be used by this kind of loader.
func (l LoaderOptions) lockable(batch bool) error {
	switch {
	case l.MustLock && l.Locker == nil:
		return errors.New("LoaderOptions.MustLock: there is no Locker")
	case batch && l.Locker != nil:
		return errors.New("LoaderOptions.Locker: a batch load reads many rows, and would need a lock for each; use " +
			"NewLoader")
	case isNilPointer(l.Locker):
		return fmt.Errorf("LoaderOptions.Locker: a nil %T; for no lock leave it nil", l.Locker)
	}
	return nil
}
