// Package render makes pictures of environments: PNG files, GIF films, and coloured text for a terminal.
//
// Environments that can be seen are Painters. A Canvas has a fixed palette, so that frames of a film fit together; its
// rectangles are clipped, and nothing here fails for being out of the picture.
package render

import (
	"bufio"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"io"
	"math"
	"time"
)

// Ink is a colour of the palette.
type Ink uint8

// The palette.
const (
	Ground Ink = iota
	White
	Gray
	Dark
	Cyan
	Red
	Green
	Yellow
	Orange
	Blue
	Purple
	Pink
)

// palette returns the colours of the inks.
func palette() color.Palette {
	rgb := func(v uint32) color.RGBA { return color.RGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 255} }
	return color.Palette{
		Ground: rgb(0x061818), White: rgb(0xf1f1f1), Gray: rgb(0x7f8c8d), Dark: rgb(0x2c3e50),
		Cyan: rgb(0x00bbbb), Red: rgb(0xbb0000), Green: rgb(0x2ecc71), Yellow: rgb(0xf1c40f),
		Orange: rgb(0xe67e22), Blue: rgb(0x3498db), Purple: rgb(0x9b59b6), Pink: rgb(0xff6fae),
	}
}

// Painter is a batch of environments (or a vector of them) that can be seen.
type Painter interface {
	// Paint draws environment i as it is now. It returns nil where there's no such environment to see.
	Paint(i int) *Canvas
}

// Canvas is one picture.
type Canvas struct{ img *image.Paletted }

// New returns an empty picture.
func New(width, height int) *Canvas {
	return &Canvas{image.NewPaletted(image.Rect(0, 0, width, height), palette())}
}

// Grid returns a picture of tiles in rows of width, each of cell pixels: ink says how they look.
func Grid(tiles []uint8, width, cell int, ink func(uint8) Ink) *Canvas {
	c := New(width*cell, len(tiles)/width*cell)
	for i, tile := range tiles {
		x, y := i%width*cell, i/width*cell
		c.Rect(x, y, x+cell, y+cell, ink(tile))
	}
	return c
}

// Image returns the picture as the image package knows it.
func (c *Canvas) Image() *image.Paletted { return c.img }

// Rect fills from (x0, y0) up to but not with (x1, y1).
func (c *Canvas) Rect(x0, y0, x1, y1 int, ink Ink) {
	r := image.Rect(x0, y0, x1, y1).Intersect(c.img.Rect)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		line := c.img.Pix[c.img.PixOffset(r.Min.X, y):][:r.Dx()]
		for x := range line {
			line[x] = uint8(ink)
		}
	}
}

// Line draws a line of some thickness.
func (c *Canvas) Line(from, to image.Point, thick int, ink Ink) {
	d := to.Sub(from)
	steps := max(d.X, -d.X, d.Y, -d.Y, 1)
	for i := range steps + 1 {
		t := float64(i) / float64(steps)
		x := from.X + int(math.Round(t*float64(d.X)))
		y := from.Y + int(math.Round(t*float64(d.Y)))
		c.Rect(x-thick/2, y-thick/2, x-thick/2+thick, y-thick/2+thick, ink)
	}
}

// digits are pictures of 0 to 9, 3 wide and 5 high, rows from the top, in octal.
func digits() [10]uint16 {
	return [10]uint16{0o75557, 0o26227, 0o71747, 0o71717, 0o55711, 0o74717, 0o74757, 0o71111, 0o75757, 0o75717}
}

// Number writes a number with dots of some pixels, its upper left corner at (x, y). It's 4*dot wide a digit.
func (c *Canvas) Number(x, y, n, dot int, ink Ink) {
	for _, r := range fmt.Sprint(max(n, 0)) {
		glyph := digits()[r-'0']
		for bit := range 15 {
			if glyph>>(14-bit)&1 == 1 {
				px, py := x+bit%3*dot, y+bit/3*dot
				c.Rect(px, py, px+dot, py+dot, ink)
			}
		}
		x += 4 * dot
	}
}

// PNG writes the picture.
func (c *Canvas) PNG(w io.Writer) error { return png.Encode(w, c.img) }

// Film is a moving picture. Its zero value is empty.
type Film struct{ anim gif.GIF }

// Add appends a frame, which may not change any more.
func (f *Film) Add(c *Canvas, lasts time.Duration) {
	f.anim.Image = append(f.anim.Image, c.img)
	f.anim.Delay = append(f.anim.Delay, int(lasts/(10*time.Millisecond)))
}

// Frames returns how many there are.
func (f *Film) Frames() int { return len(f.anim.Image) }

// GIF writes the film.
func (f *Film) GIF(w io.Writer) error {
	if f.Frames() == 0 {
		return fmt.Errorf("a film without frames")
	}
	return gif.EncodeAll(w, &f.anim)
}

// Terminal writes the picture as text, columns wide, two pixels a character, in 24-bit colours.
func (c *Canvas) Terminal(w io.Writer, columns int) error {
	size := c.img.Rect.Size()
	columns = max(1, min(columns, size.X))
	lines := max(1, size.Y*columns/size.X/2)
	out := bufio.NewWriter(w)
	at := func(x, y, height int) color.RGBA {
		px, py := (2*x+1)*size.X/(2*columns), (2*y+1)*size.Y/(2*height)
		ink, _ := c.img.Palette[c.img.ColorIndexAt(px, py)].(color.RGBA)
		return ink
	}
	for line := range lines {
		for x := range columns {
			top, low := at(x, 2*line, 2*lines), at(x, 2*line+1, 2*lines)
			fmt.Fprintf(out, "\x1b[38;2;%d;%d;%dm\x1b[48;2;%d;%d;%dm▀", top.R, top.G, top.B, low.R, low.G, low.B)
		}
		fmt.Fprint(out, "\x1b[0m\n")
	}
	return out.Flush()
}
