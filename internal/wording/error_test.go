package wording

import (
	"errors"
	"testing"
)

func TestErrorf(t *testing.T) {
	held, other := errors.New("lock: held"), errors.New("driver: down")
	for want, err := range map[string]error{
		"lock: held":                   Errorf("lock: %w", held),
		"lock: acquire: held":          Errorf("lock: acquire: %w", held),
		"lock: acquire: held: held":    Errorf("lock: acquire: %w: %w", held, held),
		"lock: again: acquire: held":   Errorf("lock: again: %w", Errorf("lock: acquire: %w", held)),
		"lock: a padlock: held: b":     Errorf("lock: a padlock: %w: b", errors.New("held")),
		"lock: driver: down":           Errorf("lock: %w", other),
		"bloom: rebuild 7: lock: held": Errorf("bloom: rebuild %d: %w", 7, held),
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	if err := Errorf("lock: %w: %w", held, other); !errors.Is(err, held) || !errors.Is(err, other) {
		t.Error(err)
	}
}
