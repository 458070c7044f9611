package mysqlbinlog

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Run reads the log from where need says until ctx ends, or the connection is lost, or something
// else is wrong. See canal.Source.
func (s *Source) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	d := &dialer{options: &s.options}
	defer context.AfterFunc(ctx, d.close)()
	defer d.close()
	questions, err := d.session(ctx)
	if err != nil {
		return s.explain(err)
	}
	s.came.Store(true)
	srv, err := look(questions, need)
	if err != nil {
		return s.explain(err)
	}
	missing, unseen, err := srv.missing(need)
	if err != nil {
		return s.explain(err)
	}
	s.warned.Do(func() { s.warn(srv, need) })
	var from position
	if need.From == "" {
		from, err = srv.begin()
	} else {
		from, err = parse(need.From, srv.flavor)
	}
	if err != nil {
		return s.explain(err)
	}

	parts := make(chan part, 1024)
	room := semaphore.NewWeighted(heldBytes)
	r := &reader{ctx: ctx, at: from, out: parts, room: room, unread: map[*replication.RowsEvent]error{}, asked: from.set.Clone()}
	r.first = &part{Batch: event.Batch{Position: from.text(), Missing: missing}}
	r.tables = &tables{server: srv, need: need, known: map[uint64]knownTable{}, unseen: unseen, warned: map[event.Table]bool{}, warn: s.options.Logger.Warn}
	g.Go(func() error {
		return s.explain(deliverVisible(ctx, parts, &sight{server: srv}, func(p part) { room.Release(p.weight) }, deliver))
	})
	g.Go(func() error { return s.privilege(s.stream(ctx, d, srv.flavor, r)) })
	return g.Wait()
}

// stream has go-mysql read the log, on a connection of its own, until that ends.
func (s *Source) stream(ctx context.Context, d *dialer, flavor string, r *reader) error {
	o := &s.options
	c := replication.BinlogSyncerConfig{
		ServerID: o.ServerID, Flavor: flavor, Host: o.Addr, User: o.User, Password: o.Password, TLSConfig: o.TLS, Dialer: d.dial,
		HeartbeatPeriod: heartbeat, ReadTimeout: o.Timeout, DisableRetrySync: true, DiscardGTIDSet: true, VerifyChecksum: true,
		TimestampStringLocation: time.UTC, RenderJSONAsMySQLText: true,
		EventCacheCount: 1, RowsEventDecodeFunc: r.decode, SynchronousEventHandler: r,
		Logger: slog.New(slog.DiscardHandler), // what goes wrong is returned
	}
	if host, port, err := net.SplitHostPort(o.Addr); err == nil && !strings.HasPrefix(o.Addr, "/") {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return setup("Options.Addr %q: the port is no number", o.Addr)
		}
		c.Host, c.Port = host, uint16(n)
	}
	syncer := replication.NewBinlogSyncer(c)
	defer syncer.Close()
	defer d.close() // or it would ask the server to end the other connection, and wait for that
	streamer, err := syncer.StartSyncGTID(r.asked)
	if err != nil {
		return err
	}
	_, err = streamer.GetEvent(context.WithoutCancel(ctx)) // events go to the reader: only the end comes here, also when ctx ends, for then the connection is closed
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

// warn logs what may be missed.
func (s *Source) warn(srv *server, need event.Need) {
	names, err := srv.cascades(need)
	if err != nil {
		return // it is only a service
	}
	for t := range need.Tables {
		if precise, _ := srv.isPrecise(t); precise {
			s.options.Logger.Warn("mysqlbinlog: a table is versioned by transactions (ROW END is BIGINT): the log has statements of it instead of rows, and nothing of LOAD DATA and of statements that change several tables; version it by TIMESTAMP(6)", "table", t.Schema+"."+t.Name)
		}
	}
	for _, name := range names {
		s.options.Logger.Warn("mysqlbinlog: the log does not contain the rows that a constraint changes: also bind the table that it refers to", "constraint", name)
	}
}
