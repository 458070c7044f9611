// Picture draws docs/read-path.svg, the picture of the README:
//
//	go run ./tools/picture > docs/read-path.svg
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const width, height = 880, 300

// style is readable on a light page and on a dark one.
const style = `
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 12px; fill: #59636e; }
  .name { font-weight: 600; text-anchor: middle; }
  .middle { text-anchor: middle; }
  .box { fill: #f6f8fa; stroke: #59636e; stroke-width: 1.5; }
  .read { stroke: #0969da; stroke-width: 2; fill: none; marker-end: url(#read); }
  .write { stroke: #bc4c00; stroke-width: 2; fill: none; marker-end: url(#write); }
  .read-head { fill: #0969da; }
  .write-head { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .small { fill: #9198a1; }
    .box { fill: #151b23; stroke: #9198a1; }
    .read { stroke: #4493f8; }
    .write { stroke: #f0883e; }
    .read-head { fill: #4493f8; }
    .write-head { fill: #f0883e; }
  }
`

// picture is an SVG that grows.
type picture struct{ strings.Builder }

func (p *picture) text(x, y int, class, text string) {
	fmt.Fprintf(p, "<text x=\"%d\" y=\"%d\" class=%q>%s</text>\n", x, y, class, text)
}

// box is a box with its name, and what stands below the name.
func (p *picture) box(x, y, w, h int, name, below string) {
	fmt.Fprintf(p, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\" class=\"box\"/>\n", x, y, w, h)
	p.text(x+w/2, y+h/2-3, "name", name)
	p.text(x+w/2, y+h/2+16, "small middle", below)
}

// arrow goes along points, and is of a class that has a marker of its name.
func (p *picture) arrow(class string, points ...int) {
	var path strings.Builder
	for i := 0; i < len(points); i += 2 {
		fmt.Fprintf(&path, "%c%d %d ", "ML"[min(i, 1)], points[i], points[i+1])
	}
	fmt.Fprintf(p, "<path d=%q class=%q/>\n", strings.TrimSpace(path.String()), class)
}

// draw writes the picture.
func draw(w io.Writer) error {
	var p picture
	fmt.Fprintf(&p, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"The "+
		"path of a read\">\n", width, height)
	fmt.Fprintf(&p, "<style>%s</style>\n<defs>\n", style)
	for _, name := range []string{"read", "write"} {
		fmt.Fprintf(&p, "<marker id=%q viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "+
			"markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" class=\"%s-head\"/></marker>\n",
			name, name)
	}
	p.WriteString("</defs>\n")

	const top, tall = 60, 70
	p.box(20, top, 120, tall, "Get(key)", "many callers")
	p.box(225, top, 140, tall, "memory", "of this process")
	p.box(470, top, 140, tall, "Redis", "of all processes")
	p.box(720, top, 140, tall, "database", "your load function")

	p.text(182, 82, "small middle", "1. look")
	p.arrow("read", 140, 92, 222, 92)
	p.text(417, 82, "small middle", "2. miss: look")
	p.arrow("read", 365, 92, 467, 92)
	p.text(665, 62, "small middle", "3. miss: lease,")
	p.text(665, 78, "small middle", "one process")
	p.arrow("read", 610, 88, 717, 88)
	p.arrow("read", 720, 114, 613, 114)
	p.text(665, 132, "small middle", "4. store, if the")
	p.text(665, 148, "small middle", "lease still holds")
	p.text(417, 132, "small middle", "5. keep")
	p.arrow("read", 470, 114, 368, 114)
	p.arrow("read", 225, 114, 143, 114)
	p.text(665, 36, "small middle", "other processes wait for the one that loads")

	p.box(20, 215, 170, tall, "Invalidate(key)", "after the commit")
	p.arrow("write", 190, 237, 300, 237, 300, 133)
	p.text(312, 186, "small", "clears this memory, and by a numbered")
	p.text(312, 202, "small", "announcement that of other processes")
	p.arrow("write", 190, 265, 580, 265, 580, 133)
	p.text(592, 186, "small", "deletes the entry, and the lease of")
	p.text(592, 202, "small", "a load that is under way")
	p.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.String())
	return err
}

func main() {
	if err := draw(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}
