package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// namedLock is held by a connection, which ends with it.
type namedLock struct {
	d       *named
	s       *session
	name    string
	id      int64 // of the connection
	timeout time.Duration
	busy    chan struct{}   // holds one while a statement is under way
	ctx     context.Context // ends with the connection
	stop    context.CancelFunc
	closed  sync.Once

	mu    sync.Mutex
	gone  bool // the connection is closed
	asked bool // it was to be released, and is not known to be
}

func (k *namedLock) begin() {
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.d.mu.Lock()
	defer k.d.mu.Unlock()
	k.d.held[k] = struct{}{}
}

// drop closes the connection, and returns when that is done.
func (k *namedLock) drop() {
	k.closed.Do(func() {
		k.mu.Lock()
		k.gone = true
		k.mu.Unlock()
		k.stop()
		k.busy <- struct{}{} // what was under way has ended with ctx
		k.s.broken = true
		k.s.close()
		k.d.mu.Lock()
		defer k.d.mu.Unlock()
		delete(k.d.held, k)
	})
}

func (k *namedLock) probe() string {
	return fmt.Sprintf("SELECT IS_USED_LOCK('%s') = CONNECTION_ID()", k.name)
}

var errBusy = errors.New("the server has not answered in time")

// ask asks on the connection of the lock. A statement that takes too long is left alone, for to end it is to end the connection, and the lock with it: the error is errBusy then.
func (k *namedLock) ask(ctx context.Context, statement string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	select {
	case k.busy <- struct{}{}:
	case <-ctx.Done():
		return 0, errBusy
	}
	type answer struct {
		n   int64
		err error
	}
	answers := make(chan answer, 1)
	running := k.d.background.run(func() {
		defer func() { <-k.busy }()
		patience := 24 * time.Hour // until the lock is over
		n, err := k.s.number(k.ctx, patience, statement)
		answers <- answer{n, err}
	})
	if !running {
		<-k.busy
		return 0, errBusy
	}
	select {
	case a := <-answers:
		return a.n, a.err
	case <-ctx.Done():
		return 0, errBusy
	}
}

// Extend asks whether the connection still has the lock. That it asks is what keeps it.
func (k *namedLock) Extend(ctx context.Context, _ time.Duration) error {
	if k.isGone() {
		return driver.ErrLost
	}
	n, err := k.ask(ctx, k.probe())
	switch {
	case unanswered(err):
		return err
	case err != nil:
		err = cut(err)
	case n != 1:
		err = driver.ErrLost
	}
	if err != nil {
		k.drop()
	}
	return err
}

// unanswered tells whether a statement has failed, and the connection has not.
func unanswered(err error) bool {
	answer, refused := errors.AsType[*mysql.MySQLError](err)
	return refused && !slices.Contains([]uint16{killed, sessionKilled, inactive}, answer.Number) || errors.Is(err, errBusy)
}

// What a server may say, as the answer to the next statement, of a connection that it has closed.
const (
	killed        = 1927 // MariaDB
	sessionKilled = 3169 // MySQL, as is the next
	inactive      = 4031
)

func cut(err error) error { return fmt.Errorf("%w: with its connection: %w", driver.ErrLost, err) }

func (k *namedLock) isGone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

// Release ends the lock, and the connection in any case. If that had broken, another may have had the lock since. If it is not known what has become of the lock, it asks, when it is called again, on
// another connection.
func (k *namedLock) Release(ctx context.Context) error {
	if k.isGone() {
		return k.check(ctx)
	}
	n, err := k.ask(ctx, fmt.Sprintf("SELECT RELEASE_LOCK('%s')", k.name))
	k.mu.Lock()
	k.asked = err != nil
	k.mu.Unlock()
	k.drop()
	switch {
	case err == nil && n != 1:
		err = driver.ErrLost
	case err != nil && !unanswered(err):
		err = cut(err)
	}
	return err
}

// check is the answer of a Release that comes after the end of the connection.
func (k *namedLock) check(ctx context.Context) error {
	k.mu.Lock()
	asked := k.asked
	k.mu.Unlock()
	if !asked {
		return driver.ErrLost
	}
	s, err := open(ctx, k.d.db, k.timeout)
	if err != nil {
		return err
	}
	defer s.close()
	n, err := s.number(ctx, k.timeout, fmt.Sprintf("SELECT IS_USED_LOCK('%s') = %d", k.name, k.id))
	if err == nil && n == 1 {
		err = errors.New("the server has not noticed yet that the connection is closed")
	}
	s.broken = err != nil
	return err
}
