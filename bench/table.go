package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Table holds the results of one workload.
type Table struct {
	Section int    // number of the workload
	Title   string // of the workload
	Text    string // describes the work and the columns
	Head    []string
	Rows    [][]string
}

// Row adds a line. It prints floats with three significant digits, and other values with
// fmt.Sprint.
func (t *Table) Row(cells ...any) {
	line := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case float64:
			line[i] = digits(c)
		default:
			line[i] = fmt.Sprint(c)
		}
	}
	t.Rows = append(t.Rows, line)
}

// digits formats a number with three significant digits, or more if it has more before the decimal
// point.
func digits(f float64) string {
	switch {
	case f != f: // NaN
		return "–"
	case f >= 100 || f <= -100:
		return thousands(fmt.Sprintf("%.0f", f))
	case f >= 10 || f <= -10:
		return fmt.Sprintf("%.1f", f)
	default:
		return fmt.Sprintf("%.2f", f)
	}
}

func thousands(s string) string {
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// WriteTo writes the table as Markdown.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s\n\n", t.Title, t.Text)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(t.Head, " | "), strings.Repeat("---|", len(t.Head)))
	for _, r := range t.Rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
	}
	b.WriteString("\n")
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// median returns the median of v.
func median(v []float64) float64 { return quantile(v, 0.5) }

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	rank := q * float64(len(v)-1)
	i := int(rank)
	if i+1 == len(v) {
		return v[i]
	}
	return v[i] + (rank-float64(i))*(v[i+1]-v[i])
}

// spread returns the lower and upper quartiles of v: the middle half of the runs lies between them.
func spread(v []float64) string {
	return digits(quantile(v, 0.25)) + " to " + digits(quantile(v, 0.75))
}

// ratios returns the ratio of each run to the floor of the same run. Their median is reported,
// because the speed of a machine changes between runs.
func ratios(v, floor []float64) []float64 {
	out := make([]float64, min(len(v), len(floor)))
	for i := range out {
		out[i] = v[i] / floor[i]
	}
	return out
}
