package sqloutbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// An owner holds the namespace of the rows that an Outbox puts and claims.
type owner struct {
	mu        sync.Mutex
	namespace string // "": not set
	fixed     bool   // set by Options.Namespace
}

func checkNamespace(namespace string) error {
	if namespace != "" && !keys.ValidName(namespace) || len(namespace) > maxName {
		return fmt.Errorf("sqloutbox: Options.Namespace %q: only letters, digits, '_', '.' and '-', %d at most",
			namespace, maxName)
	}
	return nil
}

// Bind implements consistency.QueueHooks. It makes prefix the namespace, unless the options have
// set one. It returns an error if the outbox already belongs to a Cache with another prefix, or if
// db is known to be a database of another dialect.
func (o *Outbox) Bind(prefix string, db *sqlx.DB) error {
	if db != nil {
		if err := o.text.dialect.fits(db); err != nil {
			return err
		}
	}
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	switch {
	case o.owner.fixed || o.owner.namespace == prefix:
		return nil
	case o.owner.namespace != "":
		return fmt.Errorf("the outbox belongs to a Cache with the Prefix %q, and this one has %q: make an "+
			"sqloutbox.Outbox for each, or set sqloutbox.Options.Namespace", o.owner.namespace, prefix)
	case len(prefix) > maxName:
		return fmt.Errorf("the Cache's Prefix has %d bytes, and a namespace %d at most: set "+
			"sqloutbox.Options.Namespace", len(prefix), maxName)
	}
	o.owner.namespace = prefix
	return nil
}

var errNoNamespace = errors.New("the outbox has no namespace yet: make a Writer or a Relay with it, or set " +
	"sqloutbox.Options.Namespace")

// ownStatements returns the statements for the rows of the outbox's namespace.
func (o *Outbox) ownStatements() (statements, error) {
	name := o.namespace()
	if name == "" {
		return statements{}, errNoNamespace
	}
	return o.text.in(name), nil
}

func (o *Outbox) namespace() string {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	return o.owner.namespace
}

const (
	maxNamespaces = 100 // the maximum number of namespaces read: each costs a trip

	// maxOthers is the maximum number of items that Depth counts in other namespaces.
	maxOthers = 1001

	maxLoggedNames = 10          // the maximum number of namespaces logged
	othersOverdue  = time.Minute // items that have been due for longer are overdue: probably no relay claims them
	betweenOthers  = time.Minute // the interval between two counts
)

// others holds the result of the last count of overdue rows in other namespaces.
type others struct {
	mu    sync.Mutex
	next  time.Time // when to count next
	names []string  // some of the namespaces that have overdue rows
	items int
}

// countOthers counts the overdue rows of other namespaces. Within betweenOthers it returns the
// last result.
func (o *Outbox) countOthers(ctx context.Context, on querier) (items int, err error) {
	o.others.mu.Lock()
	defer o.others.mu.Unlock()
	if time.Now().Before(o.others.next) {
		return o.others.items, nil
	}
	o.others.next = time.Now().Add(betweenOthers) // also after an error, so that Depth succeeds until then
	namespace := o.namespace()
	all, err := o.namespaces(ctx, on)
	if err != nil {
		return 0, err
	}
	var names []string
	for _, name := range all {
		if name == namespace || items == maxOthers {
			continue
		}
		var n int
		query, args := o.text.in(name).overdue(maxOthers - items)
		if err := on.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
			return 0, err
		}
		if items += n; n > 0 && len(names) < maxLoggedNames {
			names = append(names, name)
		}
	}
	o.others.names, o.others.items = names, items
	return items, nil
}

// namespaces returns the namespaces that have rows, in order, at most maxNamespaces of them.
func (o *Outbox) namespaces(ctx context.Context, on querier) (names []string, err error) {
	for len(names) < maxNamespaces {
		var next []byte
		query, args := o.text.nextNamespace(names)
		err := on.QueryRowContext(ctx, query, args...).Scan(&next)
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

// unclaimed returns namespaces that have overdue rows.
func (o *Outbox) unclaimed() []string {
	o.others.mu.Lock()
	defer o.others.mu.Unlock()
	return o.others.names
}

// shownNames returns names for the log. The names are read from the table, so they are untrusted
// and quoted.
func shownNames(names []string) []string {
	shown := make([]string, len(names))
	for i, name := range names {
		switch {
		case name == "":
			shown[i] = "none (put by a release without namespaces)"
		case keys.ValidName(name):
			shown[i] = name
		default:
			shown[i] = strconv.QuoteToASCII(name)
		}
	}
	return shown
}

// nextNamespace returns a query for the namespace that follows the last of names. It reads one
// entry of the index.
func (s statements) nextNamespace(names []string) (query string, args []any) {
	where := ""
	if len(names) > 0 {
		last := names[len(names)-1]
		if where = " WHERE namespace > "; s.dialect == Postgres {
			where, args = where+"decode($1::text, 'hex')", []any{hex.EncodeToString([]byte(last))}
		} else {
			where += s.in(last).namespace
		}
	}
	return fmt.Sprintf("SELECT namespace FROM %s%s%s ORDER BY namespace LIMIT 1", s.table, s.hint("due"), where), args
}

// overdue returns a query that counts overdue rows.
func (s statements) overdue(limit int) (query string, args []any) {
	most, args := s.argument(int64(limit))
	return fmt.Sprintf("%s COUNT(*) FROM (SELECT 1 AS n FROM %s WHERE namespace = %s AND due <= %s - %d"+
		" LIMIT %s) AS overdue LIMIT 1",
		s.begin("SELECT"), s.clock("due"), s.namespace, s.instant(), micros(othersOverdue), most), args
}
