package envelope

import "testing"

// What reading costs: messages of one row of 14 columns each, as in testdata/same.
func BenchmarkDecode(b *testing.B) {
	for format, decode := range map[string]Decoder{"canal": Canal, "maxwell": Maxwell, "debezium": Debezium} {
		all := lines(b, format)
		b.Run(format, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := decode(all[i%len(all)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
