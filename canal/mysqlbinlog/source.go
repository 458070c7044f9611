package mysqlbinlog

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/visible"
)

// Run reads the log from need.From until ctx ends, the connection is lost, or another error
// occurs. See canal.Source.
func (s *Source) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	d := &dialer{options: &s.options}
	defer context.AfterFunc(ctx, d.close)()
	defer d.close()
	queries, err := d.session(ctx)
	if err != nil {
		return s.explain(err)
	}
	s.connected.Store(true)
	srv, err := inspect(queries, need)
	if err != nil {
		return s.explain(err)
	}
	missing, inaccessible, err := srv.missing(need)
	if err != nil {
		return s.explain(err)
	}
	s.warned.Do(func() { s.warn(srv, need) })
	from, replaced, err := srv.begin(need)
	if err != nil {
		return s.explain(err)
	}

	password, err := s.options.password(ctx) // here, where the Consumer catches a panic of PasswordFunc
	if err != nil {
		return err
	}
	parts := make(chan part, 8) // the log is read on while these are delivered
	r := &reader{ctx: ctx, at: from, out: parts, unread: map[*replication.RowsEvent]error{},
		asked: from.set.Clone()}
	r.first = &part{Batch: event.Batch{Changes: replaced, Position: from.text(), Missing: missing}}
	r.tables = &tables{server: srv, need: need, known: map[uint64]knownTable{}, inaccessible: inaccessible,
		warned: map[event.Table]bool{}, warn: s.options.Logger.Warn}
	g.Go(func() error {
		return s.explain(visible.Deliver(ctx, &visibility{server: srv}, invisible, parts, deliver))
	})
	g.Go(func() error { return s.explainReplication(s.stream(ctx, d, password, srv.flavor, r)) })
	return g.Wait()
}

// begin returns the position to start at. If it was read from another server, all tables are
// replaced: a promoted replica may lack commits that the Source has not read, but readers have. The
// log of the new server does not contain them.
func (s *server) begin(need event.Need) (from position, replaced []event.Change, err error) {
	if need.From == "" {
		from, err = s.startPosition()
	} else if from, err = parse(need.From, s.flavor); err == nil && from.server != s.id {
		for _, t := range slices.SortedFunc(maps.Keys(need.Tables), compareTables) {
			replaced = append(replaced, event.Change{Schema: t.Schema, Table: t.Name, Kind: event.Replace,
				Time: time.Now()})
		}
	}
	from.server = s.id
	return from, replaced, err
}

// stream lets go-mysql read the log on its own connection until that fails or ctx ends.
func (s *Source) stream(ctx context.Context, d *dialer, password, flavor string, r *reader) error {
	o := &s.options
	c := replication.BinlogSyncerConfig{
		ServerID: o.ServerID, Flavor: flavor, Host: o.Addr, User: o.User, Password: password,
		TLSConfig: o.TLS, Dialer: d.dial,
		HeartbeatPeriod: heartbeat, ReadTimeout: o.Timeout, DisableRetrySync: true, DiscardGTIDSet: true,
		VerifyChecksum:          true,
		TimestampStringLocation: time.UTC, RenderJSONAsMySQLText: true,
		EventCacheCount: 1, RowsEventDecodeFunc: r.decode, SynchronousEventHandler: r,
		Logger: slog.New(slog.DiscardHandler), // errors are returned instead
	}
	if host, port, err := net.SplitHostPort(o.Addr); err == nil && !strings.HasPrefix(o.Addr, "/") {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return setup("Options.Addr %q: the port is not a number", o.Addr)
		}
		c.Host, c.Port = host, uint16(n)
	}
	syncer := replication.NewBinlogSyncer(c)
	defer syncer.Close()
	defer d.close() // otherwise syncer.Close opens a connection to end the other one, and waits
	streamer, err := syncer.StartSyncGTID(r.asked)
	if err != nil {
		return err
	}
	// events go to the reader; this returns at the end, also when ctx ends, because the connection
	// is closed then
	_, err = streamer.GetEvent(context.WithoutCancel(ctx))
	d.close()
	syncer.Close()
	if r.failed != nil {
		return r.failed
	}
	if err == nil {
		err = errors.New("go-mysql delivered an event to no handler")
	}
	return err
}

// warn logs changes that the log may not contain, or contains as statements.
func (s *Source) warn(srv *server, need event.Need) {
	if tables, _ := srv.versionedByTransaction(); len(tables) > 0 { // the warnings are optional
		s.options.Logger.Warn("mysqlbinlog: tables are versioned by transactions (ROW END is BIGINT): each statement "+
			"that changes one of them, even if it is not bound, invalidates all loaders and calls OnGap, which "+
			"delays all other changes; LOAD DATA and statements that change several tables are not logged at all; "+
			"version them by TIMESTAMP(6)", "tables", strings.Join(tables, ", "))
	}
	names, _ := srv.cascades(need)
	for _, name := range names {
		s.options.Logger.Warn("mysqlbinlog: the log does not contain the rows that a constraint changes: also bind "+
			"the referenced table", "constraint", name)
	}
}
