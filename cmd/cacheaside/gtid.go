package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// progress is the distance of a Consumer from the server's log, computed from the saved position.
type progress struct {
	State   string `json:"state"` // "equal", "behind", "ahead", "lost", "unreadable" or "none"
	Words   string `json:"words"`
	Behind  uint64 `json:"behind"`            // the approximate number of missing transactions
	Missing string `json:"missing,omitempty"` // their GTIDs
}

var errPosition = errors.New("the saved position is not one of this kind of server")

// progress compares the saved position with the server's log.
func (s *serverStatus) progress(ctx context.Context, ask asker, saved string) (progress, error) {
	kind, set, ok := strings.Cut(saved, ":")
	want := "mysql"
	if s.mariadb {
		want = "mariadb"
	}
	if !ok || kind != want {
		return progress{State: "unreadable", Words: fmt.Sprintf("the saved position is not one of a %s server",
			want)}, nil
	}
	if _, gtids, ok := strings.Cut(set, "@"); ok { // behind the server that they were read from
		set = gtids
	}
	if s.mariadb {
		return s.mariadbProgress(ctx, ask, set)
	}
	return mysqlProgress(ctx, ask, set)
}

// domains are the last transactions of MariaDB's replication domains.
type domains map[uint64]last

type last struct {
	gtid   string
	number uint64
}

// parseDomains reads 0-1-17,1-1-3.
func parseDomains(text string) (domains, error) {
	d := domains{}
	if text == "" {
		return d, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		parts := strings.Split(one, "-")
		if len(parts) != 3 {
			return nil, errPosition
		}
		var n [3]uint64
		for i, bits := range []int{32, 32, 64} {
			var err error
			if n[i], err = strconv.ParseUint(parts[i], 10, bits); err != nil {
				return nil, errPosition
			}
		}
		if _, twice := d[n[0]]; twice {
			return nil, errPosition
		}
		d[n[0]] = last{one, n[2]}
	}
	return d, nil
}

func (s *serverStatus) mariadbProgress(ctx context.Context, ask asker, set string) (progress, error) {
	saved, err := parseDomains(set)
	if err != nil {
		return progress{State: "unreadable", Words: err.Error()}, nil
	}
	server, err := parseDomains(s.Executed)
	if err != nil {
		return progress{}, errors.New("the server's gtid_binlog_pos cannot be read")
	}
	for id, position := range saved {
		if now, there := server[id]; !there || position.number > now.number {
			return ahead(position.gtid), nil
		}
	}
	var p progress
	var missing []string
	for _, id := range slices.Sorted(maps.Keys(server)) {
		if behind := server[id].number - saved[id].number; behind > 0 {
			p.Behind += behind
			missing = append(missing, fmt.Sprintf("%s (of domain %d; %d have been done)", server[id].gtid, id,
				saved[id].number))
		}
	}
	if p.Behind == 0 {
		return equal(), nil
	}
	p.Missing = "up to " + strings.Join(missing, ", ")
	purged := domains{}
	if s.Oldest != "" {
		rows, err := ask(ctx, "SELECT BINLOG_GTID_POS(?, 4) AS position", s.Oldest)
		if err != nil || len(rows) == 0 {
			return progress{}, orNothing(err)
		}
		if purged, err = parseDomains(rows[0]["position"]); err != nil {
			return progress{}, errors.New("the server's BINLOG_GTID_POS cannot be read")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(purged)) {
		if purged[id].number > saved[id].number {
			return p.lost(fmt.Sprintf("the logs begin after %s", purged[id].gtid)), nil
		}
	}
	return p.behind(s.Oldest != ""), nil
}

// mysqlProgress compares GTID sets with the functions of the server.
func mysqlProgress(ctx context.Context, ask asker, saved string) (progress, error) {
	if _, err := transactions(saved); err != nil {
		return progress{State: "unreadable", Words: err.Error()}, nil
	}
	rows, err := ask(ctx, "SELECT GTID_SUBTRACT(@@global.gtid_executed, ?) AS missing, GTID_SUBTRACT(?, "+
		"@@global.gtid_executed) AS extra, GTID_SUBTRACT(@@global.gtid_purged, ?) AS purged", saved, saved, saved)
	if err != nil || len(rows) == 0 {
		return progress{}, orNothing(err)
	}
	missing, extra, purged := strings.ReplaceAll(rows[0]["missing"], "\n", ""), rows[0]["extra"], rows[0]["purged"]
	if extra != "" {
		return ahead(extra), nil
	}
	if missing == "" {
		return equal(), nil
	}
	p := progress{Missing: missing}
	if p.Behind, err = transactions(missing); err != nil {
		return progress{}, errors.New("the server's gtid_executed cannot be read")
	}
	if purged != "" {
		return p.lost("of them " + strings.ReplaceAll(purged, "\n", "")), nil
	}
	return p.behind(true), nil
}

// transactions returns the number of transactions in a GTID set of MySQL: uuid:1-5:7,uuid:tag:3.
func transactions(set string) (n uint64, err error) {
	if set == "" {
		return 0, nil
	}
	for one := range strings.SplitSeq(set, ",") {
		parts := strings.Split(strings.TrimSpace(one), ":")
		if len(parts) < 2 || len(parts[0]) != 36 {
			return 0, errPosition
		}
		for _, part := range parts[1:] {
			from, to, isRange := strings.Cut(part, "-")
			first, err := strconv.ParseUint(from, 10, 63)
			if err != nil {
				if isTag(part) {
					continue
				}
				return 0, errPosition
			}
			last := first
			if isRange {
				if last, err = strconv.ParseUint(to, 10, 63); err != nil || last < first {
					return 0, errPosition
				}
			}
			if count := last - first + 1; n+count < n {
				return 0, errPosition
			}
			n += last - first + 1
		}
	}
	return n, nil
}

// isTag reports whether part is a tag of a GTID, which MySQL supports since 8.3.
func isTag(part string) bool {
	if part == "" || len(part) > 32 || part[0] >= '0' && part[0] <= '9' {
		return false
	}
	return strings.Trim(strings.ToLower(part), "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

func equal() progress {
	return progress{State: "equal", Words: "the Consumer has processed everything in the log"}
}

func ahead(gtid string) progress {
	return progress{State: "ahead",
		Words: fmt.Sprintf("the Consumer has processed %s, which this server has not logged: it is another server, "+
			"or has lost transactions", quoted(gtid))}
}

func (p progress) behind(known bool) progress {
	p.State, p.Words = "behind", fmt.Sprintf("about %d transactions to do; they are still in the logs", p.Behind)
	if !known {
		p.Words = fmt.Sprintf("about %d transactions to do; whether they are still in the logs is not known", p.Behind)
	}
	return p
}

func (p progress) lost(reason string) progress {
	p.State, p.Words = "lost", fmt.Sprintf(
		"about %d transactions to do, and some of them are no longer in the logs: %s", p.Behind, reason)
	return p
}
