package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/bloom"
)

var filterRebuildCommand = command{
	name: "filter rebuild", args: "NAME",
	short: "build a Bloom filter in Redis from a table",
	long: `Rebuilds a filter from all values of a column, as Redis.Rebuild does; the present filter
serves until the new one is complete. It asks first, and reports progress on standard
error. The column is the primary key, or another column that is unique and NOT NULL.
You may interrupt it; the next rebuild begins anew. A new filter without keys, or with
fewer than nine tenths of the present one's keys, replaces it only with --allow-fewer.
Never read from a replica of the database: the filter would hide the rows that the replica
does not have yet.`,
	example: "filter rebuild --table users --column id user",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		r := &rebuilding{tool: t}
		t.askable(flags)
		flags.StringVar(&r.variable, "dsn-env", "",
			"the environment variable `NAME` that holds the DSN. Default: CACHEASIDE_MYSQL_DSN or "+
				"CACHEASIDE_POSTGRES_DSN, or --mysql-dsn-file or --postgres-dsn-file")
		flags.StringVar(&r.table, "table", "", "the `TABLE` with the keys, or schema.table")
		flags.StringVar(&r.column, "column", "", "the `COLUMN` with the keys")
		flags.StringVar(&r.kind, "type", "int", "the column's `TYPE`: int, uint or string. Default: int")
		flags.Uint64Var(&r.capacity, "capacity", 0,
			"the number of `KEYS` to make the filter for. Default: as the present filter, or more if it holds more")
		flags.Float64Var(&r.rate, "rate", 0,
			"the `RATE` of false positives, such as 0.01. Default: that of the present filter")
		flags.IntVar(&r.perSecond, "rows-per-second", 0,
			"read at most this `NUMBER` of rows a second. Default: no limit")
		flags.BoolVar(&r.allowFewer, "allow-fewer", false,
			"also replace a filter that holds more keys (RebuildOptions.AllowFewer)")
		flags.DurationVar(&r.settle, "settle", 0,
			"the longest `TIME` that a transaction with inserts takes (RebuildOptions.Settle); negative: none is "+
				"under way. Default: 10s")
		return r.run
	},
}

// rebuilding is one run of the command.
type rebuilding struct {
	*tool
	variable, table, column, kind string
	capacity                      uint64
	rate                          float64
	perSecond                     int
	settle                        time.Duration
	allowFewer                    bool
}

func (r *rebuilding) run(ctx context.Context, args []string) error {
	if err := filterName("rebuild", args, len(args) == 1); err != nil {
		return err
	}
	switch {
	case r.table == "" || r.column == "":
		return usagef("filter rebuild: --table and --column are needed")
	case r.kind != "int" && r.kind != "uint" && r.kind != "string":
		return usagef("filter rebuild: --type: int, uint or string")
	case r.perSecond < 0:
		return usagef("filter rebuild: --rows-per-second %d: not negative", r.perSecond)
	case r.rate < 0 || r.rate >= 1:
		return usagef("filter rebuild: --rate %v: above 0 and below 1", r.rate)
	}
	return r.onDatabase(ctx, r.variable, func(ctx context.Context, db *sqlx.DB) error {
		empty, err := r.readable(ctx, db.DB)
		if err != nil {
			return err
		}
		known, err := r.present(ctx, args[0])
		if err != nil {
			return err
		}
		if err := r.asked(ctx, args[0], known, empty); err != nil {
			return err
		}
		return r.onFilter(ctx, args[0], r.capacity, r.rate,
			func(ctx context.Context, f *bloom.Redis) error { return r.rebuild(ctx, f, db.DB) })
	})
}

func (r *rebuilding) source(db *sql.DB) bloom.Source {
	switch r.kind {
	case "uint":
		return bloom.Table[uint64](db, r.table, r.column)
	case "string":
		return bloom.Table[string](db, r.table, r.column)
	}
	return bloom.Table[int64](db, r.table, r.column)
}

// readable reads the first row, so that errors occur before anything is asked or changed.
func (r *rebuilding) readable(ctx context.Context, db *sql.DB) (empty bool, err error) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	for _, err := range r.source(db)(ctx, "") {
		return false, err
	}
	return true, nil
}

// present takes missing values from the current filter.
func (r *rebuilding) present(ctx context.Context, name string) (s bloom.State, err error) {
	limited, cancel := r.limited(ctx)
	defer cancel()
	err = r.onFilter(limited, name, 1, 0.01, func(ctx context.Context, f *bloom.Redis) error {
		s, err = f.State(ctx)
		return err
	})
	if err != nil {
		return s, err
	}
	if r.rate == 0 {
		r.rate = s.Rate
	}
	if r.capacity == 0 {
		r.capacity = s.Capacity
	}
	if r.rate == 0 || r.capacity == 0 {
		return s, usagef("filter rebuild: there is no filter yet to take --capacity and --rate from; give both")
	}
	return s, nil
}

func (r *rebuilding) asked(ctx context.Context, name string, s bloom.State, empty bool) error {
	present := "There is none yet; until it is built, all results are \"maybe\"."
	if s.Built {
		present = fmt.Sprintf("The present one, of about %d keys, serves until then.", s.Keys)
	}
	if s.Building {
		present += " A rebuild is in progress, or was interrupted: this one starts from the beginning."
	}
	nothing := ""
	if empty {
		nothing = ", and the column is EMPTY: with --allow-fewer the filter would hide every row"
	}
	return r.ask(ctx, fmt.Sprintf(
		"The filter %s will be built anew from all of %s.%s, for %d keys or more, at %g false positives. %s\nUntil "+
			"it is done there are two in Redis. From then on what is not in that column, nor added since, "+
			"is \"certainly not\" there%s.", name, quoted(r.table), quoted(r.column), r.capacity, r.rate, present,
		nothing))
}

func (r *rebuilding) rebuild(ctx context.Context, f *bloom.Redis, db *sql.DB) error {
	report, err := f.Rebuild(ctx, r.source(db), &bloom.RebuildOptions{Settle: r.settle, Rate: r.perSecond,
		AllowFewer: r.allowFewer, AllowForeign: true, Progress: func(p bloom.Progress) {
			about := ""
			if p.About > 0 {
				about = fmt.Sprintf(" of about %d", p.About)
			}
			fmt.Fprintf(r.stderr, "%d%s keys, %s\n", p.Keys, about, short(p.Elapsed))
		}})
	if errors.Is(err, bloom.ErrRebuilding) {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if errors.Is(err, bloom.ErrFewer) {
		return fmt.Errorf("nothing was changed; if the number of keys is right, see --allow-fewer: %w", err)
	}
	if err != nil {
		return err
	}
	result := struct {
		Keys     uint64  `json:"keys"`
		Seconds  float64 `json:"seconds"`
		Resumed  bool    `json:"resumed"`
		Capacity uint64  `json:"capacity"`
		Rate     float64 `json:"rate"`
	}{report.Keys, report.Took.Seconds(), report.Resumed, report.State.Capacity, report.State.Rate}
	return r.show(result, func(row func(...any)) {
		row(fmt.Sprintf("built of %d keys in %s, for %d at %g false positives", report.Keys, short(report.Took),
			report.State.Capacity, report.State.Rate))
	})
}
