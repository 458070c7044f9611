// Command ratios reads the output of several runs of `go test -bench`. For each benchmark with a
// floor, named .../raw, it prints the ratio of the library, .../cacheaside, to the floor: the
// median of the runs, each compared with the floor of the same run.
package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
)

var line = regexp.MustCompile(
	`^Benchmark(.+)/(raw|cacheaside)-\d+\s+\d+\s+([0-9.]+) ns/op(?:\s+[0-9.]+ B/op\s+(\d+) allocs/op)?`)

type times struct {
	nanos  map[string][]float64 // by "raw" and "cacheaside", one value per run
	allocs string
}

func main() {
	var names []string
	found := make(map[string]*times)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		m := line.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		t := found[m[1]]
		if t == nil {
			t = &times{nanos: make(map[string][]float64)}
			found[m[1]] = t
			names = append(names, m[1])
		}
		ns, _ := strconv.ParseFloat(m[3], 64)
		t.nanos[m[2]] = append(t.nanos[m[2]], ns)
		if m[2] == "cacheaside" {
			t.allocs = m[4]
		}
	}
	fmt.Printf("%-36s %5s %12s %12s %8s %8s\n", "benchmark", "runs", "raw ns", "cacheaside", "ratio", "allocs")
	for _, name := range names {
		raw, library := found[name].nanos["raw"], found[name].nanos["cacheaside"]
		n := min(len(raw), len(library))
		if n == 0 {
			continue
		}
		ratios := make([]float64, n)
		for i := range n {
			ratios[i] = library[i] / raw[i]
		}
		fmt.Printf("%-36s %5d %12.1f %12.1f %8.2f %8s\n", name, n, median(raw), median(library), median(ratios),
			found[name].allocs)
	}
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
