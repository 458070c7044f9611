package cacheaside

import "encoding/json"

// codecJSON is written into each entry, so that a program that uses another codec sees that it cannot read it.
const codecJSON = 1

func encode[V any](v V) (codec uint8, payload []byte, err error) {
	payload, err = json.Marshal(v)
	return codecJSON, payload, err
}

// decode returns no half-decoded value: what encoding/json refuses is an error, and so is a V whose decoding panics. (JSON of another
// struct is not refused: that is what LoaderOptions.Version is for.)
func decode[V any](codec uint8, payload []byte) (v V, err error) {
	if codec != codecJSON {
		return v, errUnknownCodec
	}
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
		if err != nil {
			var zero V
			v = zero
		}
	}()
	err = json.Unmarshal(payload, &v)
	return v, err
}
