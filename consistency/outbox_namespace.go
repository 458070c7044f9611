package consistency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// owner tells whose rows an SQLOutbox puts and claims.
type owner struct {
	mu        sync.Mutex
	namespace string // "": nobody's yet
	fixed     bool   // by the options
}

func checkNamespace(namespace string) error {
	if namespace != "" && !keys.ValidName(namespace) || len(namespace) > longestName {
		return fmt.Errorf("consistency: SQLOutboxOptions.Namespace %q: only letters, digits, '_', '.' and '-', %d at most", namespace, longestName)
	}
	return nil
}

// bind makes a queue that keeps namespaces apart that of a Cache.
func bind(queue Queue, cache *cacheaside.Cache) error {
	if o, ok := queue.(interface{ bind(prefix string) error }); ok {
		return o.bind(writeside.Of(cache).Prefix())
	}
	return nil
}

// bind makes the prefix the namespace, unless the options have named one.
func (s *SQLOutbox) bind(prefix string) error {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	switch {
	case s.owner.fixed || s.owner.namespace == prefix:
		return nil
	case s.owner.namespace != "":
		return fmt.Errorf("the outbox belongs to a Cache with the Prefix %q, and this one has %q: make an SQLOutbox for each, or set SQLOutboxOptions.Namespace", s.owner.namespace, prefix)
	case len(prefix) > longestName:
		return fmt.Errorf("the Cache's Prefix has %d bytes, and a namespace %d at most: set SQLOutboxOptions.Namespace", len(prefix), longestName)
	}
	s.owner.namespace = prefix
	return nil
}

var errNoNamespace = errors.New("the outbox has no namespace yet: make a Writer or a Relay with it, or set SQLOutboxOptions.Namespace")

// own returns the statements for the rows of the outbox's namespace.
func (s *SQLOutbox) own() (statements, error) {
	name := s.namespace()
	if name == "" {
		return statements{}, errNoNamespace
	}
	return s.text.in(name), nil
}

func (s *SQLOutbox) namespace() string {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	return s.owner.namespace
}

const (
	spacesAtMost = 100 // namespaces that are looked at: each costs a trip

	// othersAtMost bounds what Depth counts of other namespaces.
	othersAtMost = 1001

	namesAtMost   = 10          // that are told
	othersOverdue = time.Minute // after which nobody seems to claim them
	betweenOthers = time.Minute // from one look at them to the next
)

// others is what an SQLOutbox knows of the rows of other namespaces.
type others struct {
	mu    sync.Mutex
	next  time.Time // of the next look
	names []string  // some of those that have overdue rows
	items int
}

// lookAtOthers counts the overdue rows of other namespaces, if it has not just done so.
func (s *SQLOutbox) lookAtOthers(ctx context.Context, on asker) (items int, err error) {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	if time.Now().Before(s.others.next) {
		return s.others.items, nil
	}
	own := s.namespace()
	spaces, err := s.spaces(ctx, on)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, name := range spaces {
		if name == own || items == othersAtMost {
			continue
		}
		var n int
		if err := on.QueryRowContext(ctx, s.text.in(name).overdue(othersAtMost-items)).Scan(&n); err != nil {
			return 0, err
		}
		if items += n; n > 0 && len(names) < namesAtMost {
			names = append(names, name)
		}
	}
	s.others.names, s.others.items, s.others.next = names, items, time.Now().Add(betweenOthers)
	return items, nil
}

// spaces returns the namespaces that have rows, in their order: the first spacesAtMost of them.
func (s *SQLOutbox) spaces(ctx context.Context, on asker) (names []string, err error) {
	for len(names) < spacesAtMost {
		var next []byte
		err := on.QueryRowContext(ctx, s.text.nextSpace(names)).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, err
		}
		names = append(names, string(next))
	}
	return names, nil
}

// unclaimed returns namespaces whose rows no relay seems to claim.
func (s *SQLOutbox) unclaimed() []string {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	return s.others.names
}

// shownNames returns names for the log. They come from the table, so they may be anything.
func shownNames(names []string) []string {
	shown := make([]string, len(names))
	for i, name := range names {
		switch {
		case name == "":
			shown[i] = "none (put by a program that is older than namespaces)"
		case keys.ValidName(name):
			shown[i] = name
		default:
			shown[i] = strconv.QuoteToASCII(name)
		}
	}
	return shown
}

// nextSpace finds the namespace that follows those, by the index, whose other entries it skips.
func (s statements) nextSpace(names []string) string {
	where := ""
	if len(names) > 0 {
		where = " WHERE namespace > " + s.in(names[len(names)-1]).space
	}
	return fmt.Sprintf("SELECT namespace FROM %s%s%s ORDER BY namespace LIMIT 1", s.table, s.hint("due"), where)
}

// overdue counts what should have been claimed long ago.
func (s statements) overdue(most int) string {
	return fmt.Sprintf("%s COUNT(*) FROM (SELECT 1 AS n FROM %s WHERE namespace = %s AND due <= %s - %d LIMIT %d) AS overdue LIMIT 1",
		s.begin("SELECT"), s.clock("due"), s.space, s.instant(), micros(othersOverdue), most)
}
