package pglogical

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/visible"
)

// Run reads the changes after need.From until ctx ends, the connection is lost, or another error
// occurs. If need.From is empty and the slot exists, Run delivers all changes that the server has
// kept for the slot. See canal.Source.
func (s *Source) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	s.saved.Store(nil)
	defer s.retained.Store(-1)
	err := s.run(ctx, need, deliver)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (s *Source) run(outer context.Context, need event.Need, deliver chan<- event.Batch) error {
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	conn, err := s.connect(ctx)
	if err != nil {
		return s.explain(err)
	}
	defer closeNow(conn)
	defer closes(ctx, conn.Conn())()
	s.connected.Store(true)
	if need.From != "" {
		s.worked.Store(true)
		s.resumed.Store(true)
	}
	q := &session{timeout: s.options.Timeout, conn: conn}
	if err := q.checkSettings(ctx); err != nil {
		return s.explain(err)
	}
	c, err := q.inspect(ctx, s.options.Publication, s.options.CreatePublication, !s.worked.Load(), need)
	if err != nil {
		return s.explain(err)
	}
	missing, err := q.missing(ctx, c, need)
	if err != nil {
		return s.explain(err)
	}
	encoding := replicationEncoding(conn.ParameterStatus("server_encoding"))
	replication, err := s.connectReplication(ctx, encoding)
	if err != nil {
		return s.explainReplication(err)
	}
	defer closeNow(replication)
	defer closes(ctx, replication.Conn())()
	start, confirmed, err := s.begin(ctx, q, replication, need)
	if err != nil {
		return s.explainReplication(err)
	}
	parts := make(chan part)
	r := &reader{source: s, conn: replication, server: q, need: need, at: start, confirmed: confirmed, out: parts,
		missing: missing, decoder: newDecoder(c, q, need)}
	r.log, r.text = s.options.Logger, newTextDecoder(encoding)
	g.Go(func() error { return s.explain(visible.Deliver(ctx, &sight{server: q}, invisible, parts, deliver)) })
	g.Go(func() error { return s.explainReplication(r.run(ctx)) })
	return g.Wait()
}

// begin starts replication after a position, or after the position of the slot if need.From is "".
// confirmed is a position of the slot: the server may have discarded the log before it.
func (s *Source) begin(
	ctx context.Context, q *session, conn *pgconn.PgConn, need event.Need,
) (start position, confirmed pglogrepl.LSN, err error) {
	same, err := q.ask(ctx, "SELECT FROM pg_stat_activity WHERE pid = $1", strconv.FormatUint(uint64(conn.PID()), 10))
	if err != nil {
		return start, 0, err
	}
	if len(same) == 0 {
		return start, 0, errors.New(
			"two connections have reached two servers: a failover is in progress, or Options.ConnString names " +
				"several primaries")
	}
	end, err := identify(ctx, conn)
	if err != nil {
		return start, 0, err
	}
	start = end
	var known *position
	if need.From != "" {
		was, err := parse(need.From)
		if err != nil {
			return start, 0, err
		}
		if err := checkHistory(ctx, conn, was, end); err != nil {
			return start, 0, err
		}
		known, start.catalog = &was, was.catalog
		if was.timeline != end.timeline {
			// A promoted standby may lack commits that the Source has not read, but readers have.
			// They are in no log. Without a catalog, all tables are replaced.
			start.catalog = ""
		}
	}
	if start.lsn, err = s.prepare(ctx, q, conn, known, end); err != nil {
		return start, 0, err
	}
	if err := s.start(ctx, conn, start.lsn, len(need.Messages) > 0); err != nil {
		return start, 0, err
	}
	// Before the start, another reader may have advanced the slot. The server then begins there.
	is, err := q.slot(ctx, s.options.Slot)
	if err != nil {
		return start, 0, err
	}
	d, err := is.decide(s.options.Slot, known, end.database, false)
	start.lsn = d.start
	return start, is.confirmed, err
}
