package browser

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"slices"
)

// smaller reduces a picture to its 256 most frequent colours. In a picture of a page only the edges
// of letters lose colours.
func smaller(picture []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	seen := map[color.Color]int{}
	bounds := from.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			seen[from.At(x, y)]++
		}
	}
	var colours color.Palette
	for c := range seen {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.Color) int { return cmp.Compare(seen[b], seen[a]) })
	colours = colours[:min(len(colours), 256)]
	nearest := map[color.Color]uint8{}
	for c := range seen {
		nearest[c] = uint8(colours.Index(c))
	}
	to := image.NewPaletted(bounds, colours)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	err = encoder.Encode(&out, to)
	return out.Bytes(), err
}
