package main

import (
	"fmt"
	"io"
	"strconv"
)

const format = "  %2s  %-25s %-35s %5s %9s %6s %8s\n"

func header(out io.Writer) {
	fmt.Fprintf(out, format, "", "lock", "what happens", "sold", "oversold", "stuck", "refused")
}

func row(out io.Writer, n int, s sale) {
	number := func(n int) string {
		if n == 0 {
			return "-"
		}
		return strconv.Itoa(n)
	}
	fmt.Fprintf(out, format, strconv.Itoa(n), s.name, s.happens, strconv.Itoa(s.sold), number(s.excess()),
		number(s.left), number(s.refused))
}

const legend = `
  oversold: phones that were sold twice.
  stuck: phones that nobody can buy, for the lock of one who has died is held for ever.
  refused: purchases with an old token, by buyers who had lost the lock unawares.
`
