package pglogical

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A converter makes a Value of the text that the server sends for a value that is not NULL.
type converter func(text []byte) event.Value

// builtIn has the types whose values have the same text in every Go program. The texts of all other
// types are not exact. pgx and lib/pq return times and dates as time.Time, and arrays, addresses
// and floats as types of Go, and each program formats these in its own way. Equal json and jsonb
// documents can have different texts.
var builtIn = map[uint32]converter{
	pgtype.Int2OID: exact, pgtype.Int4OID: exact, pgtype.Int8OID: exact, pgtype.OIDOID: exact, pgtype.NumericOID: exact,
	pgtype.TextOID: exact, pgtype.VarcharOID: exact, pgtype.NameOID: exact, pgtype.QCharOID: exact,
	pgtype.UUIDOID:   exact,
	pgtype.BPCharOID: padded, pgtype.BoolOID: boolean, pgtype.ByteaOID: bytea,
}

func exact(text []byte) event.Value { return event.TextValue(string(text)) }

// inexact returns the Value of a type that is not in builtIn. It is never an integer: the text of
// the bit string B'1010' is "1010".
func inexact(text []byte) event.Value { return event.InexactText(string(text)) }

// padded returns the Value of a char(n). The server pads it with spaces, which some programs
// remove.
func padded(text []byte) event.Value {
	if n := len(text); n > 0 && text[n-1] == ' ' {
		return inexact(text)
	}
	return exact(text)
}

func boolean(text []byte) event.Value {
	switch string(text) {
	case "t":
		return event.TextValue("true")
	case "f":
		return event.TextValue("false")
	}
	return event.Value{}
}

// bytea decodes the hexadecimal format (bytea_output).
func bytea(text []byte) event.Value {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return event.Value{}
	}
	b := make([]byte, hex.DecodedLen(len(text)-2))
	if _, err := hex.Decode(b, text[2:]); err != nil {
		return event.Value{}
	}
	v, err := event.ValueOf(b)
	if err != nil {
		return event.Value{}
	}
	return v
}

// firstUserOID is the first OID of types that users and extensions have created.
const firstUserOID = 16384

// types caches the converters of types that users have created.
type types struct {
	server *session
	known  map[uint32]converter
}

// converters returns the converter of each of the types.
func (t *types) converters(ctx context.Context, oids []uint32) ([]converter, error) {
	if err := t.load(ctx, oids); err != nil {
		return nil, err
	}
	all := make([]converter, len(oids))
	for i, oid := range oids {
		switch c := builtIn[oid]; {
		case c != nil:
			all[i] = c
		case t.known[oid] != nil:
			all[i] = t.known[oid]
		default:
			all[i] = inexact
		}
	}
	return all, nil
}

// load looks up the unknown ones of these types in the catalog. Values of enums are their names.
// Values of a domain are those of its base type. citext is text, compared without regard to case.
func (t *types) load(ctx context.Context, oids []uint32) error {
	var unknown []uint32
	for _, oid := range oids {
		if oid >= firstUserOID && t.known[oid] == nil {
			unknown = append(unknown, oid)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	list, err := json.Marshal(unknown)
	if err != nil {
		return err
	}
	rows, err := t.server.ask(ctx, `WITH RECURSIVE asked AS (SELECT value::text::oid AS oid
		FROM jsonb_array_elements($1::jsonb)),
		base AS (SELECT oid AS of, oid FROM asked UNION SELECT base.of, t.typbasetype FROM base
			JOIN pg_type t ON t.oid = base.oid AND t.typtype = 'd')
		SELECT base.of, base.oid, t.typtype, t.typname FROM base JOIN pg_type t ON t.oid = base.oid
			WHERE t.typtype <> 'd'`, string(list))
	if err != nil {
		return err
	}
	for _, r := range rows {
		asked, err := strconv.ParseUint(r[0], 10, 32)
		if err != nil {
			return err
		}
		base, err := strconv.ParseUint(r[1], 10, 32)
		if err != nil {
			return err
		}
		c := builtIn[uint32(base)]
		if c == nil && (r[2] == "e" || r[3] == "citext") {
			c = exact
		}
		if c != nil {
			t.known[uint32(asked)] = c
		}
	}
	return nil
}
