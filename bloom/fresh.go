package bloom

import (
	"context"
	"time"
)

// MightContainFresh is MightContainMany that sees each Add that has returned nil before, in any
// process. If the filter is shared, MightContainFresh takes a trip, and waits until earlier
// announcements have come; if that fails, the answer is "maybe", with the error.
func (l *Local) MightContainFresh(ctx context.Context, keys []string) ([]bool, error) {
	if l.shared == nil {
		return l.MightContainMany(ctx, keys)
	}
	trust, err := l.shared.upToDate(ctx)
	if err == nil {
		return l.many(keys, trust), nil
	}
	maybe := make([]bool, len(keys))
	for i := range maybe {
		maybe[i] = true
	}
	l.counts.failed.Add(int64(len(keys)))
	return maybe, l.wrap(err)
}

// upToDate waits until all that had been announced when it was called has come. It answers the
// trust that tells so.
//
// One asks at a time, and for the next waits until what was announced has come, or as long as
// between two polls: a bus takes what two polls in a row have told of, and has not come, for
// lost.
func (s *sharing) upToDate(ctx context.Context) (trust int64, err error) {
	s.bus.Listen()
	enough := int64(time.Since(s.start) + s.l.options.MaxStaleness) // of a poll that is sent from now on
	ctx, cancel := context.WithTimeoutCause(ctx, s.conn.Timeout(), errDeaf)
	defer cancel()
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if !s.asked.IsZero() { // and what was announced then has not come in time, or not been waited for
		if trust = s.wait(ctx, enough); trust >= enough {
			return trust, nil
		}
	}
	if trust = s.trust.Load(); trust >= enough { // another caller has asked meanwhile
		return trust, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	s.asked = time.Now()
	if err := s.bus.Confirm(ctx, 0); err != nil {
		return 0, err
	}
	if trust = s.wait(ctx, enough); trust < enough {
		return 0, errDeaf
	}
	s.asked = time.Time{}
	return trust, nil
}

// wait waits until trust is enough, as long as is between two polls since the last one that was
// asked for.
func (s *sharing) wait(ctx context.Context, enough int64) (trust int64) {
	ctx, cancel := context.WithDeadline(ctx, s.asked.Add(s.l.options.MaxStaleness/4))
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if trust = s.trust.Load(); trust >= enough {
			return trust
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return trust
		}
	}
}
