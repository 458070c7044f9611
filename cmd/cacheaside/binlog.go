package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
)

var binlogStatusCommand = command{
	name: "binlog status", args: "",
	short: "show how far a Consumer of the binary log has come",
	long: `Compares the position that a canal.Consumer has saved in a table (canal.SQLCheckpoint) with
the server's binary log: whether they are equal, how much the Consumer still has to do,
whether that is still in the logs, and whether the server's settings are right; with
--parking-table also the number of parked messages. The DSN is that of the server whose log
the Consumer follows. It changes nothing. Saving a position is a change of the database too:
where the checkpoint lies on the same server, a Consumer that has done everything may be
one transaction behind.
Exit code 1: the Consumer cannot continue, or a setting of the server is wrong.
Exit code 3: no position is saved.`,
	example: "binlog status --parking-table cacheaside_parked",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		b := &binlogging{tool: t}
		flags.StringVar(&b.table, "checkpoint-table", "cacheaside_checkpoint", "SQLCheckpointOptions.Table: the `TABLE`, or schema.table. Default: cacheaside_checkpoint")
		flags.StringVar(&b.name, "name", "canal", "SQLCheckpointOptions.Name: the `NAME` of the Consumer's checkpoint. Default: canal")
		flags.StringVar(&b.variable, "checkpoint-dsn-env", "", "the environment variable `NAME` that holds the DSN of the database with the checkpoint and the parked messages. Default: the server itself")
		flags.StringVar(&b.parking, "parking-table", "", "parking.TableOptions.Table: count the parked messages of this `TABLE`")
		return b.run
	},
}

// binlogging is one run of the command.
type binlogging struct {
	*tool
	table, name, variable, parking string
}

// shownBinlog is the output of the command.
type shownBinlog struct {
	Name     string        `json:"name"`
	Saved    *shownSaved   `json:"saved"`
	Server   *serverStatus `json:"server"`
	Progress progress      `json:"progress"`
	Parked   *int64        `json:"parked,omitempty"`
}

type shownSaved struct {
	Position untrusted `json:"position"`
	Token    int64     `json:"token"`
	Time     *string   `json:"time"`

	at time.Time
}

func (b *binlogging) run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("binlog status: it has no arguments")
	}
	ctx, cancel := b.limited(ctx)
	defer cancel()
	s := &shownBinlog{Name: b.name}
	var saved canal.Saved
	var found bool
	if err := b.onMySQL(ctx, b.variable, func(ctx context.Context, db *sqlx.DB) (err error) {
		saved, found, err = b.checkpoint(ctx, db, s)
		return err
	}); err != nil {
		return err
	}
	if err := b.onMySQL(ctx, "", func(ctx context.Context, db *sqlx.DB) (err error) {
		ask := askerOf(db)
		if s.Server, err = serverNow(ctx, ask); err != nil {
			return err
		}
		if found {
			s.Saved = &shownSaved{Position: untrusted(saved.Position), Token: saved.Token, Time: stamp(saved.Time), at: saved.Time}
			s.Progress, err = s.Server.progress(ctx, ask, string(saved.Position))
		} else {
			s.Progress = progress{State: "none", Words: "no position is saved: no Consumer of this name has begun, or it uses another table"}
		}
		return err
	}); err != nil {
		return err
	}
	if err := b.show(s, s.rows); err != nil {
		return err
	}
	return s.verdict()
}

// checkpoint reads the saved position of the Consumer, and counts parked messages.
func (b *binlogging) checkpoint(ctx context.Context, db *sqlx.DB, s *shownBinlog) (saved canal.Saved, found bool, err error) {
	c, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Name: b.name, Table: b.table})
	if err != nil {
		return saved, false, usagef("%s", strings.TrimPrefix(err.Error(), "canal: "))
	}
	if b.parking != "" {
		p, err := parking.NewTable(db, &parking.TableOptions{Table: b.parking})
		if err != nil {
			return saved, false, usagef("%s", strings.TrimPrefix(err.Error(), "canal: "))
		}
		n, err := p.Count(ctx)
		if err != nil {
			return saved, false, err
		}
		s.Parked = &n
	}
	return c.Read(ctx)
}

// verdict returns an error if the Consumer cannot continue, or a setting is wrong.
func (s *shownBinlog) verdict() error {
	var all []error
	for _, set := range s.Server.Settings {
		if !set.OK {
			all = append(all, fmt.Errorf("%s is %s: %s", set.Name, quoted(set.Value), set.Needed))
		}
	}
	switch s.Progress.State {
	case "lost", "ahead", "unreadable":
		all = append(all, fmt.Errorf("the Consumer cannot continue from its position: %s", s.Progress.Words))
	case "none":
		all = append(all, errAbsent)
	}
	if len(all) == 1 && errors.Is(all[0], errAbsent) {
		return errAbsent
	}
	for i, err := range all { // another problem takes precedence
		if errors.Is(err, errAbsent) {
			all[i] = nil
		}
	}
	return errors.Join(all...)
}

func (s *shownBinlog) rows(row func(...any)) {
	row("consumer", s.Name)
	if s.Saved != nil {
		row("saved", s.Saved.Position)
		row("", moment(s.Saved.at, time.Now()), fmt.Sprintf("token %d", s.Saved.Token))
	}
	v := s.Server
	row("server", quoted(v.Version))
	row("", quoted(v.Executed))
	if v.File != "" {
		row("", quoted(v.File)+":"+v.Position)
	}
	row("logs", v.logs())
	row("progress", s.Progress.State, s.Progress.Words)
	if s.Progress.Missing != "" {
		row("", quoted(s.Progress.Missing))
	}
	if s.Parked != nil {
		row("parked", *s.Parked)
	}
	for _, set := range v.Settings {
		note := "as needed"
		if !set.OK {
			note = "WRONG: " + set.Needed
		}
		row(set.Name, quoted(set.Value), note)
	}
}

func (s *serverStatus) logs() string {
	if s.Oldest == "" {
		return "not known: " + s.Denied
	}
	return fmt.Sprintf("%d, from %s on, %d bytes", s.Logs, quoted(s.Oldest), s.Bytes)
}
