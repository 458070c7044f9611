package codec_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/codec"
)

type account struct {
	ID    int64    `json:"id"`
	Name  string   `json:"name"`
	Email string   `json:"email"`
	Tags  []string `json:"tags"`
	Bio   string   `json:"bio"`
}

var benchUser = account{42, "Ada Lovelace", "ada@example.com", []string{"a", "bc", "def"},
	strings.Repeat("something about her ", 10)}

// BenchmarkDecode: json/bare is the baseline for JSON.
func BenchmarkDecode(b *testing.B) {
	p, _ := must[account](b, codec.JSON).Encode(benchUser)
	b.Run("json/bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var u account
			if err := json.Unmarshal(p.Bytes, &u); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack} {
		for _, above := range []int{0, 1} {
			c, _ := codec.New[account](by(id), above, limit, nil)
			p, err := c.Encode(benchUser)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%v/compressed=%v", id, p.Compressed), func(b *testing.B) {
				b.ReportMetric(float64(len(p.Bytes)), "bytes")
				b.ReportAllocs()
				for b.Loop() {
					if _, err := decode(c, p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	b.Run("json/bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(benchUser); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack} {
		for _, above := range []int{0, 1} {
			c, _ := codec.New[account](by(id), above, limit, nil)
			b.Run(fmt.Sprintf("%v/compressed=%v", id, above > 0), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Encode(benchUser); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
