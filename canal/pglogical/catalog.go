package pglogical

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// catalog describes the publication and the needed tables, as the server's catalog does.
type catalog struct {
	publication publication
	tables      map[event.Table]*table // those that exist
	// the needed tables that contain the rows of a relation: itself, and those above it
	of      map[uint32][]*table
	parents bool   // a needed table has partitions or inherited tables, or can have
	sum     string // a hash of all, and of the prefixes of the needed messages
	// needed tables of which not all changes arrive, or arrive without a column; see check
	incomplete map[event.Table]string
}

type publication struct {
	Exists, Insert, Update, Delete, Truncate, ViaRoot bool
	Generated                                         bool   // it publishes stored generated columns
	Version                                           string // changes with each ALTER PUBLICATION of its options
}

// table is a needed table.
type table struct {
	event.Table
	kind        byte // pg_class.relkind
	persistence byte
	members     []member // the table itself, and all partitions and inherited tables below it

	entries string // changes with the entries of the publication for the table
	rows    string // changes with the relations and files that contain its rows
	shape   string // changes with the columns and all other properties of these relations
}

// member is a relation with rows of a table.
type member struct {
	OID         uint32
	Name        string
	Kind        string   // pg_class.relkind
	Persistence string   // pg_class.relpersistence
	Parent      string   // the table above it
	Partition   bool     // it is a partition of Parent
	Leaf        bool     // it has rows of its own
	Identity    string   // pg_class.relreplident
	Key         []string // the columns of the replica identity, unless it is FULL
	Logged      []string // the columns in the log
	Published   bool
	Top         string // the table under whose name the changes are published
	Filtered    bool
	Listed      []string // the columns that are published; nil: all
	Generated   string   // since PostgreSQL 18: which generated columns it has; see refused
	KeyIs       string   // the same, of those in Key
	Entries     string   // see table
	Rows, Shape string
}

func (m member) full() bool { return m.Identity == "f" }

// refused reports whether the server refuses UPDATE and DELETE if the identity is FULL and the
// relation is published. PostgreSQL 18 does that if the identity has generated columns that are not
// published. Only stored ones can be. See CheckCmdReplicaIdentity of its source.
func (m member) refused(stored bool) bool {
	return strings.Contains(m.Generated, "v") || strings.Contains(m.Generated, "s") && !stored
}

// keyRefused is like refused, for the identity that the relation has. Virtual columns cannot be in
// an index.
func (m member) keyRefused(stored bool) bool { return strings.Contains(m.KeyIs, "s") && !stored }

// catalogQuery reads the needed tables, given as JSON. It returns a member, as JSON, for each
// relation that stores rows of these tables. It leaves out temporary tables that inherit from them:
// other sessions do not see their rows. It reads only system tables, and takes no lock on the
// relations.
//
// The xmin of a row of the catalog is the transaction that wrote it. So a table that was changed
// and changed back differs from its earlier state. VACUUM and ANALYZE write rows of pg_class in
// place and leave xmin unchanged.
const catalogQuery = `
WITH RECURSIVE pub AS (SELECT p.*, to_jsonb(p)->>'pubgencols' = 's' AS generated FROM pg_publication p
	WHERE pubname = $2),
needed AS (
	SELECT n.s, n.t, c.oid, c.relkind, c.relpersistence FROM jsonb_to_recordset($1::jsonb) AS n(s text, t text)
	JOIN pg_namespace ns ON ns.nspname = n.s JOIN pg_class c ON c.relnamespace = ns.oid AND c.relname = n.t),
tree AS (
	SELECT oid AS root, oid AS member FROM needed
	UNION SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.member
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relpersistence <> 't'),
up AS (
	SELECT DISTINCT member, member AS above, 0 AS height FROM tree
	UNION ALL SELECT up.member, i.inhparent, up.height + 1 FROM up JOIN pg_class c ON c.oid = up.above
		AND c.relispartition JOIN pg_inherits i ON i.inhrelid = up.above),
published AS (
	SELECT up.member, up.above, up.height, r.prqual IS NOT NULL AS filtered, r.prattrs, pub.pubviaroot AS viaroot,
		concat_ws(' ', up.above, r.oid, r.xmin, n.oid, n.xmin) AS entry
	FROM up JOIN pg_class c ON c.oid = up.above CROSS JOIN pub
	LEFT JOIN pg_publication_rel r ON r.prpubid = pub.oid AND r.prrelid = up.above
	LEFT JOIN pg_publication_namespace n ON n.pnpubid = pub.oid AND n.pnnspid = c.relnamespace
	WHERE pub.puballtables OR r.oid IS NOT NULL OR n.oid IS NOT NULL),
entries AS (
	SELECT member, bool_or(filtered) AS filtered,
		(array_agg(above ORDER BY height DESC) FILTER (WHERE viaroot OR height = 0))[1] AS top,
		string_agg(entry, ',' ORDER BY height) AS text
	FROM published GROUP BY member),
lists AS (
	SELECT p.member, jsonb_agg(DISTINCT a.attname) AS names FROM published p JOIN pg_attribute a ON a.attrelid = p.above
		AND a.attnum = ANY (p.prattrs::int2[]) GROUP BY p.member)
SELECT needed.s, needed.t, needed.relkind, needed.relpersistence, jsonb_build_object(
	'OID', c.oid::bigint,
	'Name', ns.nspname || '.' || c.relname,
	'Kind', c.relkind,
	'Persistence', c.relpersistence,
	'Parent', (SELECT pns.nspname || '.' || p.relname FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
		JOIN pg_namespace pns ON pns.oid = p.relnamespace WHERE i.inhrelid = c.oid ORDER BY i.inhseqno LIMIT 1),
	'Partition', c.relispartition,
	'Leaf', c.relkind <> 'p',
	'Identity', c.relreplident,
	'Key', (SELECT jsonb_agg(a.attname) FROM pg_index x JOIN pg_attribute a ON a.attrelid = c.oid
		AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
		WHERE x.indrelid = c.oid AND x.indimmediate AND
			CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident END),
	'KeyIs', CASE WHEN current_setting('server_version_num')::int >= 180000 THEN
		(SELECT string_agg(DISTINCT a.attgenerated, '') FROM pg_index x JOIN pg_attribute a ON a.attrelid = c.oid
			AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
		WHERE x.indrelid = c.oid AND x.indimmediate AND
			CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident END) END,
	'Logged', (SELECT jsonb_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
		AND NOT a.attisdropped AND (a.attgenerated = '' OR a.attgenerated = 's' AND (SELECT generated FROM pub))),
	'Published', e.member IS NOT NULL,
	'Top', tns.nspname || '.' || t.relname,
	'Filtered', coalesce(e.filtered, false),
	'Listed', l.names,
	'Generated', CASE WHEN current_setting('server_version_num')::int >= 180000 THEN
		(SELECT string_agg(DISTINCT a.attgenerated, '') FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
			AND NOT a.attisdropped) END,
	'Entries', coalesce(e.text, ''),
	'Shape', concat_ws(',', c.xmin, (
		SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin), ',' ORDER BY a.attnum)
		FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)),
	'Rows', concat_ws(' ', c.relkind, c.relpersistence, c.relfilenode, (
		SELECT string_agg(concat_ws(' ', i.inhparent, i.xmin), ',' ORDER BY i.inhparent)
		FROM pg_inherits i WHERE i.inhrelid = c.oid))
) FROM needed JOIN tree ON tree.root = needed.oid JOIN pg_class c ON c.oid = tree.member
	JOIN pg_namespace ns ON ns.oid = c.relnamespace
LEFT JOIN entries e ON e.member = c.oid LEFT JOIN lists l ON l.member = c.oid
LEFT JOIN pg_class t ON t.oid = e.top LEFT JOIN pg_namespace tns ON tns.oid = t.relnamespace
ORDER BY needed.s, needed.t, c.oid`

// catalog reads the catalog.
func (s *session) catalog(ctx context.Context, name string, need event.Need) (*catalog, error) {
	c := &catalog{tables: map[event.Table]*table{}, of: map[uint32][]*table{}}
	rows, err := s.ask(ctx, "SELECT json_build_object('Exists', true, 'Insert', pubinsert, 'Update', pubupdate, "+
		"'Delete', pubdelete, 'Truncate', pubtruncate, 'ViaRoot', pubviaroot, 'Generated', "+
		"coalesce(to_jsonb(p)->>'pubgencols' = 's', false), 'Version', concat_ws(' ', oid, xmin)) FROM "+
		"pg_publication p WHERE pubname = $1", name)
	if err != nil {
		return nil, err
	}
	sum := fnv.New64a()
	for _, r := range rows {
		if err := json.Unmarshal([]byte(r[0]), &c.publication); err != nil {
			return nil, err
		}
	}
	fmt.Fprintln(sum, c.publication)
	type named struct {
		S string `json:"s"`
		T string `json:"t"`
	}
	asked := []named{}
	for _, t := range sortedTables(need) {
		asked = append(asked, named{t.Schema, t.Name})
	}
	names, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	if rows, err = s.ask(ctx, catalogQuery, string(names), name); err != nil {
		return nil, err
	}
	fmt.Fprintln(sum, string(names))
	if len(need.Messages) > 0 { // a Source that did not need them before has skipped them
		fmt.Fprintln(sum, need.Messages)
	}
	for _, r := range rows {
		fmt.Fprintln(sum, r)
		if err := c.add(r); err != nil {
			return nil, err
		}
	}
	c.sum = fmt.Sprintf("%016x", sum.Sum64())
	return c, nil
}

// add adds a row of the result of catalogQuery.
func (c *catalog) add(row []string) error {
	var m member
	if err := json.Unmarshal([]byte(row[4]), &m); err != nil {
		return fmt.Errorf("the catalog: %w", err)
	}
	name := event.Table{Schema: row[0], Name: row[1]}
	t := c.tables[name]
	if t == nil {
		t = &table{Table: name, kind: row[2][0], persistence: row[3][0]}
		c.tables[name] = t
	}
	c.parents = c.parents || t.kind == 'p' || len(t.members) > 0
	t.members = append(t.members, m)
	t.entries += fmt.Sprintln(m.OID, m.Entries)
	t.rows += fmt.Sprintln(m.OID, m.Rows)
	t.shape += fmt.Sprintln(m.OID, m.Shape)
	c.of[m.OID] = append(c.of[m.OID], t)
	return nil
}

// partitionsOf returns the partitions with rows of a partitioned table, or of one above it. It
// returns nothing for other relations.
func (c *catalog) partitionsOf(id uint32) (all []member) {
	for _, t := range c.of[id] {
		if !slices.ContainsFunc(t.members, func(m member) bool { return m.OID == id && m.Kind == "p" }) {
			continue
		}
		for _, m := range t.members {
			if m.Leaf && m.Kind != "f" {
				all = append(all, m)
			}
		}
	}
	return all
}

// changes returns the changes that DDL made between two states of the catalog. A table is replaced
// if its rows may have changed without a message: if it was created, swapped, or rewritten
// (TRUNCATE and SET LOGGED look alike), or if the publication may have lacked it in between.
func (c *catalog) changes(before *catalog, need event.Need) (all []event.Change) {
	for _, t := range sortedTables(need) {
		was, is := before.tables[t], c.tables[t]
		kind := event.Replace
		switch {
		case was == nil && is == nil:
			continue
		case is == nil:
			kind = event.Alter
		case was == nil || c.publication != before.publication || was.entries != is.entries || was.rows != is.rows:
		case was.shape != is.shape:
			kind = event.Alter
		default:
			continue
		}
		all = append(all, event.Change{Schema: t.Schema, Table: t.Name, Kind: kind})
	}
	return all
}

// publishes reports whether the publication was changed between two states of the catalog, so that
// it may have other changes of a needed table than before.
func (c *catalog) publishes(before *catalog) bool {
	for name, is := range c.tables {
		if was := before.tables[name]; was == nil || was.entries != is.entries {
			return true
		}
	}
	return c.publication != before.publication
}

func sortedTables(need event.Need) []event.Table {
	return slices.SortedFunc(maps.Keys(need.Tables), func(a, b event.Table) int {
		return cmp.Or(strings.Compare(a.Schema, b.Schema), strings.Compare(a.Name, b.Name))
	})
}

// checkWrites returns an error if the server would refuse UPDATE and DELETE after the relation was
// added to the publication. stored reports whether that publishes stored generated columns.
func (m member) checkWrites(name string, stored bool) error {
	quoted := pgx.Identifier{name}.Sanitize()
	switch {
	case m.keyRefused(stored):
		return setup("Options.CreatePublication: if the publication %s had the table %s, the server would refuse "+
			"UPDATE and DELETE, because its REPLICA IDENTITY has the columns (%s), and a generated one among them is "+
			"not published: ALTER PUBLICATION %s SET (publish_generated_columns = stored)", name,
			m.Name, strings.Join(m.Key, ", "), quoted)
	case m.full() && m.refused(stored):
		return setup("Options.CreatePublication: if the publication %s had the table %s, the server would refuse "+
			"UPDATE and DELETE, because its REPLICA IDENTITY is FULL and it has generated columns that are not "+
			"published: ALTER TABLE %s REPLICA IDENTITY USING INDEX …, or, if all of them are stored, ALTER "+
			"PUBLICATION %s SET (publish_generated_columns = stored)", name, m.Name, m.quoted(), quoted)
	}
	return nil
}

// publishEvery is the interval at which the Source tries again to add a table to the publication.
const publishEvery = 10 * time.Second

// publish creates the publication, or adds the tables that it lacks. It reports whether it has
// changed anything. If strict is not set, a table that the server refuses is recorded in refused,
// so that the others can be followed.
func (s *session) publish(
	ctx context.Context, name string, c *catalog, strict bool, need event.Need,
) (changed bool, err error) {
	if s.refused != nil && time.Since(s.refusedAt) < publishEvery {
		return false, nil
	}
	s.refused, s.refusedAt = nil, time.Now()
	quoted := pgx.Identifier{name}.Sanitize()
	if !c.publication.Exists {
		return true, s.create(ctx, quoted, c, need)
	}
	for _, t := range sortedTables(need) {
		is := c.tables[t]
		if is == nil || is.whyNotLogged() != "" {
			continue
		}
		lacking := is.toPublish(func(m member) bool { return !m.Published })
		if len(lacking) == 0 {
			continue
		}
		err := is.checkWrites(name, c.publication.Generated)
		if err == nil {
			err = s.execute(ctx, "ALTER PUBLICATION "+quoted+" ADD TABLE "+strings.Join(lacking, ", "))
		}
		switch {
		case err == nil:
			changed = true
		case strict || codeOf(err) == "" && !errors.Is(err, canal.ErrSetup):
			return changed, err
		default:
			if s.refused == nil {
				s.refused = map[event.Table]error{}
			}
			s.refused[t] = err
		}
	}
	return changed, nil
}

// create creates the publication.
func (s *session) create(ctx context.Context, quoted string, c *catalog, need event.Need) error {
	for _, t := range sortedTables(need) {
		if is := c.tables[t]; is != nil && is.whyNotLogged() == "" {
			if err := is.checkWrites(quoted, true); err != nil {
				return err
			}
		}
	}
	statement := "CREATE PUBLICATION " + quoted + c.forTables(need)
	if s.version >= generatedVersion {
		statement += " WITH (publish_generated_columns = stored)"
	}
	return s.execute(ctx, statement)
}

// execute executes a statement of Options.CreatePublication.
func (s *session) execute(ctx context.Context, statement string) error {
	if _, err := s.ask(ctx, statement); err != nil {
		return fmt.Errorf("Options.CreatePublication: %s: %w", statement, err)
	}
	return nil
}

// checkWrites returns an error if the server would refuse UPDATE and DELETE of a member.
func (t *table) checkWrites(name string, stored bool) error {
	for _, m := range t.members {
		if err := m.checkWrites(name, stored); err != nil {
			return err
		}
	}
	return nil
}
