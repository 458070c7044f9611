//go:build goexperiment.jsonv2 && go1.27

package carry_test

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strconv"
	"time"
)

// Types with the methods of encoding/json/v2.
type (
	writesTo   struct{ N int }
	readsFrom  struct{ N int }
	stream     struct{ n int } // both ways, by *stream
	streamed   struct{ n int } // both ways, encoded by streamed
	withStream struct {
		streamed
		A int
	}
	onlyStream struct{ streamed }
	oldAndNew  struct{ n int } // both ways in both versions
	oldReader  struct{ n int } // writes with version 2, reads with 1
	appends    struct{ n int } // both ways, as text
	appendsTo  struct{ N int } // only one way
	decoy      struct{ N int } // other methods of these names
)

func (w writesTo) MarshalJSONTo(e *jsontext.Encoder) error {
	return json.MarshalEncode(e, strconv.Itoa(w.N))
}

func (r *readsFrom) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	type plain readsFrom
	return json.UnmarshalDecode(d, (*plain)(r))
}

func (s *stream) MarshalJSONTo(e *jsontext.Encoder) error       { return json.MarshalEncode(e, s.n) }
func (s *stream) UnmarshalJSONFrom(d *jsontext.Decoder) error   { return json.UnmarshalDecode(d, &s.n) }
func (s streamed) MarshalJSONTo(e *jsontext.Encoder) error      { return json.MarshalEncode(e, s.n) }
func (s *streamed) UnmarshalJSONFrom(d *jsontext.Decoder) error { return json.UnmarshalDecode(d, &s.n) }

func (o oldAndNew) MarshalJSON() ([]byte, error)            { return raw(o).MarshalJSON() }
func (o *oldAndNew) UnmarshalJSON(b []byte) error           { return (*raw)(o).UnmarshalJSON(b) }
func (o oldAndNew) MarshalJSONTo(e *jsontext.Encoder) error { return json.MarshalEncode(e, o.n) }
func (o *oldAndNew) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	return json.UnmarshalDecode(d, &o.n)
}

func (o oldReader) MarshalJSONTo(e *jsontext.Encoder) error { return json.MarshalEncode(e, o.n) }
func (o *oldReader) UnmarshalJSON(b []byte) error           { return (*raw)(o).UnmarshalJSON(b) }

func (a appends) AppendText(b []byte) ([]byte, error) {
	return strconv.AppendInt(b, int64(a.n), 10), nil
}
func (a *appends) UnmarshalText(b []byte) error { return (*text)(a).UnmarshalText(b) }
func (a appendsTo) AppendText(b []byte) ([]byte, error) {
	return strconv.AppendInt(b, int64(a.N), 10), nil
}

func (decoy) MarshalJSONTo(*jsontext.Decoder) error { return nil }
func (*decoy) UnmarshalJSONFrom() error             { return nil }

func init() {
	rows = append(rows,
		rowOf[writesTo]("writesTo", ""), rowOf[[]*writesTo]("writesTo", ""), both[readsFrom](""),
		rowOf[stream]("", "stream.n"), rowOf[[]stream]("", "stream.n"), rowOf[map[string]stream]("stream", "stream.n"),
		rowOf[map[string]*stream]("", "stream.n"), rowOf[streamed]("", "streamed.n"),
		rowOf[map[string]streamed]("", "streamed.n"), rowOf[withStream]("withStream.A", "withStream.streamed.n"),
		rowOf[onlyStream]("", "onlyStream.streamed.n"),
		rowOf[oldAndNew]("", "oldAndNew.n"), rowOf[oldReader]("", "oldReader.n"), rowOf[appends]("", "appends.n"),
		rowOf[map[appends]int]("", "appends.n"), rowOf[appendsTo]("appendsTo", ""), both[decoy](""),
		rowOf[struct {
			A stream `json:",string"`
		}]("", "A.n"), rowOf[struct {
			A time.Time `json:",omitempty,format:'2006'"`
		}]("A", ""),
	)
}
