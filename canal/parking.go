package canal

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// Parking keeps changes that could not be done. If it has a method Check(context.Context) error,
// the Consumer calls Check when it begins, and alerts its error.
type Parking interface {
	// Park returns nil when the Parked is kept so that it survives a crash of the machine. An error
	// stops everything: Park is tried again, for ever. So Park must not refuse a Parked for ever,
	// however large or odd; the JSON of a Parked is never longer than parking.MaxSize. The same
	// Parked may be given more than once.
	Park(ctx context.Context, p parking.Parked) error
}

// checkParking tells at the start that a Parking does not work, and not when it is needed, which
// stops everything. Those that can tell have a Check.
func (c *Consumer) checkParking(ctx context.Context) {
	p, can := c.options.Parking.(interface {
		Check(ctx context.Context) error
	})
	if !can {
		return
	}
	limited, cancel := context.WithTimeout(ctx, longPause)
	defer cancel()
	if err := guarded(limited, p.Check); err != nil && ctx.Err() == nil {
		c.alert("parking", "", err)
	}
}

// park insists on it: what is not parked would be lost in silence.
func (s *session) park(ctx context.Context, p parking.Parked, cause error) error {
	p.Time = time.Now()
	if s.options.Parking == nil { // of a message: bindings that park need one
		return fmt.Errorf("%w: messages that the source cannot read need Options.Parking: %w", ErrSetup, cause)
	}
	if err := s.insist(ctx, "parking", func(ctx context.Context) error {
		return s.during("Options.Parking", p.Binding, func() error { return s.options.Parking.Park(ctx, p) })
	}); err != nil {
		return err
	}
	s.parked.Add(1)
	s.alert("parked", p.Binding, cause)
	return nil
}

func handled(ctx context.Context, b *Binding, c *event.Change) (err error) {
	return guarded(ctx, func(ctx context.Context) error { return b.handle(ctx, *c) })
}
