package pglogical

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/address"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// Options are the settings of a Source. ConnString is required.
type Options struct {
	// ConnString has the address, the database, the user and the TLS settings, as
	// pgconn.ParseConfig reads them: "postgres://user:password@host:5432/database?sslmode=require",
	// or "host=… user=…". Environment variables such as PGPASSWORD also apply. The user needs the
	// attribute REPLICATION. With several hosts, the Source uses the one that accepts writes.
	ConnString string

	// Password returns the password of the user. It is called before each new connection, so that
	// a password that changes, such as a token of a cloud provider, needs no restart. Its context
	// ends after Timeout. If it returns an error, Run fails, and the Consumer tries again.
	// Default: nil, the password in ConnString.
	Password func(ctx context.Context) (string, error)

	// Slot is the name of the replication slot. It has lower-case letters, digits and '_'. If the
	// slot does not exist, the Source creates it, and waits for all transactions that run at that
	// time. Consumers that take over from each other (canal.Options.Locker) use the same slot.
	// Others need slots of their own. A slot that is no longer used must be removed, because the
	// server keeps its log for it. Default: "cacheaside".
	Slot string

	// Publication is the name of the publication. It must contain all bound tables and publish
	// insert, update, delete and truncate. Default: "cacheaside".
	Publication string

	// CreatePublication makes the Source create the publication if it does not exist, and add
	// bound tables that it lacks. The user must own these tables, and needs CREATE on the database.
	// Default: false. Run then returns an error with the statement to execute.
	CreatePublication bool

	// Timeout is how long the Source waits for the server: for data on the replication connection,
	// where the server replies every second, for a new connection, and for the result of a query.
	// It is also how long the server waits for the Source until it releases the slot
	// (wal_sender_timeout), for example after the machine of the Consumer has failed. Default: 30
	// s.
	Timeout time.Duration

	// Dial opens connections, for example through a tunnel. Default: that of pgconn.
	Dial pgconn.DialFunc

	// Logger receives warnings. Default: slog.Default().
	Logger *slog.Logger
}

// A Source reads the changes of a database. It stores nothing between two runs, because positions
// contain all necessary state. It uses two connections while it runs. Only one Source at a time can
// use a slot: the Run of another one returns an error, and the Consumer tries again.
type Source struct {
	options    Options
	config     *pgconn.Config
	connected  atomic.Bool // the server has accepted the user before
	worked     atomic.Bool // a batch was delivered, to this Source or to one that saved a position
	resumed    atomic.Bool // Run was given a position, so that the slot is its own
	unreadable atomic.Bool // the slot is older than the publication
	saved      atomic.Pointer[event.Position]
	retained   atomic.Int64
}

var (
	_ canal.Retainer         = (*Source)(nil)
	_ canal.MessageSource    = (*Source)(nil)
	_ canal.IdentifiedSource = (*Source)(nil)
)

// tick is the interval of status messages to the server, and of queries of its catalog.
const tick = time.Second

// parameters are settings of each connection. Those of the role or the database could otherwise
// change the texts of values, refuse what the Source writes to the catalog, or end a connection
// that waits.
var parameters = map[string]string{
	"client_encoding": encodingUTF8, "datestyle": "ISO, YMD", "intervalstyle": "postgres", "timezone": "UTC",
	"bytea_output": "hex", "extra_float_digits": "1",
	"lock_timeout": "0", "statement_timeout": "0", "default_transaction_read_only": "off",
	"idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0",
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

const defaultSlot = "cacheaside"

// New returns a Source. It does no I/O, except that pgconn.ParseConfig may read files such as
// ~/.pgpass; Run connects.
func New(options Options) (*Source, error) {
	o := options
	o.Slot = cmp.Or(o.Slot, defaultSlot)
	o.Publication = cmp.Or(o.Publication, "cacheaside")
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Logger = limitedlog.Guarded(cmp.Or(o.Logger, slog.Default()))
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("pglogical: %w", err)
	}
	config, err := pgconn.ParseConfig(o.ConnString)
	if err != nil {
		return nil, fmt.Errorf("pglogical: Options.ConnString %w", address.ErrPostgres)
	}
	if config.Database == "" {
		config.Database = config.User
	}
	config.ConnectTimeout = o.Timeout
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	if o.Dial != nil {
		config.DialFunc = o.Dial
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "cacheaside"
	}
	maps.Copy(config.RuntimeParams, parameters)
	s := &Source{options: o, config: config}
	s.retained.Store(-1)
	return s, nil
}

func (o *Options) check() error {
	switch {
	case o.ConnString == "":
		return errors.New("Options.ConnString is empty")
	case !slotName.MatchString(o.Slot):
		return fmt.Errorf("Options.Slot %q: 1 to 63 lower-case letters, digits and '_'", o.Slot)
	case len(o.Publication) > 63 || strings.ContainsRune(o.Publication, 0):
		return fmt.Errorf("Options.Publication %.70q: at most 63 bytes, without a zero byte", o.Publication)
	case o.Timeout < 2*tick:
		return fmt.Errorf("Options.Timeout %v: at least %v", o.Timeout, 2*tick)
	}
	return nil
}

// Identity returns the database and the slot, which has one reader. It does not contain the
// address: two processes may reach one server by two addresses. See canal.IdentifiedSource.
func (s *Source) Identity() (reads string, exclusive bool) {
	return s.config.Database + "/" + s.options.Slot, true
}

// Saved records that the server may discard its log before a position. See canal.Retainer.
func (s *Source) Saved(p event.Position) { s.saved.Store(&p) }

// DeliversMessages marks the Source. See canal.MessageSource.
func (s *Source) DeliversMessages() {}

// Retained returns the number of bytes of log that the server keeps for the slot, or -1 while the
// Source does not run. See canal.Retainer.
func (s *Source) Retained() int64 { return s.retained.Load() }
