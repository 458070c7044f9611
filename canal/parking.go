package canal

import (
	"context"
	"fmt"
	"time"
)

// Parked is what could not be done.
type Parked struct {
	// Binding is whose it is; "" of a message that could not be read.
	Binding string

	// Change is what was to be done, or Message what could not be read.
	Change  Change
	Message []byte

	// Reason is why, and Time when it was given up.
	Reason string
	Time   time.Time

	// Cut tells, of one that was read again, that some of it was too long to be kept (MaxParked): columns that are not known, or the end of the message.
	Cut bool
}

// Parking keeps what could not be done. If it has a method Check(context.Context) error, that is called when a Consumer begins, and what it returns is alerted.
type Parking interface {
	// Park returns nil when it is kept so that it survives a crash of the machine. An error stops everything: it is tried again, for ever. So no Parked, however large or odd, must be one that it never takes; the JSON of a Parked is never longer than MaxParked. The same may be
	// parked more than once.
	Park(ctx context.Context, p Parked) error
}

// checkParking tells at the start that a Parking does not work, and not when it is needed, which stops everything. Those that can tell have a Check.
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
func (s *session) park(ctx context.Context, p Parked, cause error) error {
	p.Time = time.Now()
	if s.options.Parking == nil { // of a message: bindings that park need one
		return fmt.Errorf("%w: what the source cannot read needs Options.Parking: %w", ErrSetup, cause)
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

func handled(ctx context.Context, b *Binding, c *Change) (err error) {
	return guarded(ctx, func(ctx context.Context) error { return b.handle(ctx, *c) })
}
