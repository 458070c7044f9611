package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
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
		b := &binlogging{consuming{tool: t}}
		b.register(flags)
		return b.run
	},
}

// binlogging is one run of the command.
type binlogging struct{ consuming }

// shownBinlog is the output of the command.
type shownBinlog struct {
	Name     string        `json:"name"`
	Saved    *shownSaved   `json:"saved"`
	Server   *serverStatus `json:"server"`
	Progress progress      `json:"progress"`
	Parked   *int64        `json:"parked,omitempty"`
}

func (b *binlogging) run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("binlog status: it has no arguments")
	}
	ctx, cancel := b.limited(ctx)
	defer cancel()
	s := &shownBinlog{Name: b.name}
	var err error
	if s.Saved, s.Parked, err = b.read(ctx); err != nil {
		return err
	}
	if err := b.onlyOn(ctx, sqloutbox.MySQL, "slot status", func(ctx context.Context, db *sqlx.DB) (err error) {
		ask := askerOf(db)
		if s.Server, err = serverNow(ctx, ask); err != nil {
			return err
		}
		if s.Saved != nil {
			s.Progress, err = s.Server.progress(ctx, ask, string(s.Saved.Position))
		} else {
			s.Progress = progress{State: "none", Words: notSaved}
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

// verdict returns an error if the Consumer cannot continue, or a setting is wrong.
func (s *shownBinlog) verdict() error {
	return verdictOf(s.Server.Settings, s.Progress.State, s.Progress.Words)
}

func (s *shownBinlog) rows(row func(...any)) {
	row("consumer", s.Name)
	s.Saved.rows(row)
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
