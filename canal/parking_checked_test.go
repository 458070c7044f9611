package canal

import (
	"context"
	"errors"
	"testing"
)

// broken is a Parking with a Check.
type broken struct{ lot }

func (*broken) Check(context.Context) error { return errors.New("no such table") }

// A Parking that does not work is reported before anything has to be parked.
func TestParkingIsChecked(t *testing.T) {
	in(t, func(x *world) {
		x.options.Parking = &broken{}
		x.start()
		if got := x.alerted(); len(got) != 1 || got[0] != "parking " || x.Stats().LastError == nil {
			t.Errorf("%q", got)
		}
		x.tell("1", insert(row(1, nil)))
		if s := x.Stats(); s.Position != "1" {
			t.Errorf("%+v", s)
		}
	})
}
