package plot

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"unicode"
)

// raster is a canvas of pixels.
type raster struct{ img *image.RGBA }

// PNG returns the chart as a file.
func (c Chart) PNG() ([]byte, error) {
	r := &raster{image.NewRGBA(image.Rect(0, 0, width, height))}
	for i := range r.img.Pix {
		r.img.Pix[i] = 255
	}
	c.draw(r)
	var b bytes.Buffer
	err := png.Encode(&b, r.img)
	return b.Bytes(), err
}

// blend puts a colour on a pixel, so much of it.
func (r *raster) blend(x, y int, c [3]uint8, part float64) {
	if !(image.Point{x, y}).In(r.img.Rect) || part <= 0 {
		return
	}
	part = min(part, 1)
	old := r.img.RGBAAt(x, y)
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a)*(1-part) + float64(b)*part)) }
	r.img.SetRGBA(x, y, color.RGBA{mix(old.R, c[0]), mix(old.G, c[1]), mix(old.B, c[2]), 255})
}

// line covers each pixel by how near its middle is to the line.
func (r *raster) line(points []Point, width float64, c [3]uint8) {
	covered := make(map[image.Point]float64)
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		for x := int(min(a.X, b.X) - width); x <= int(max(a.X, b.X)+width); x++ {
			for y := int(min(a.Y, b.Y) - width); y <= int(max(a.Y, b.Y)+width); y++ {
				if part := width/2 + 0.5 - distance(Point{float64(x) + 0.5, float64(y) + 0.5}, a, b); part > 0 {
					covered[image.Point{x, y}] = max(covered[image.Point{x, y}], part)
				}
			}
		}
	}
	for at, part := range covered {
		r.blend(at.X, at.Y, c, part)
	}
}

// distance is how far p is from the line between a and b.
func distance(p, a, b Point) float64 {
	dx, dy := b.X-a.X, b.Y-a.Y
	along := 0.0
	if length := dx*dx + dy*dy; length > 0 {
		along = max(0, min(1, ((p.X-a.X)*dx+(p.Y-a.Y)*dy)/length))
	}
	return math.Hypot(p.X-a.X-along*dx, p.Y-a.Y-along*dy)
}

// fill colours the inside of a polygon, row by row.
func (r *raster) fill(points []Point, c [3]uint8) {
	for y := range height {
		var cross []float64
		middle := float64(y) + 0.5
		for i, a := range points {
			b := points[(i+1)%len(points)]
			if (a.Y <= middle) != (b.Y <= middle) {
				cross = append(cross, a.X+(middle-a.Y)*(b.X-a.X)/(b.Y-a.Y))
			}
		}
		slices.Sort(cross)
		for i := 0; i+1 < len(cross); i += 2 {
			for x := int(math.Ceil(cross[i] - 0.5)); float64(x)+0.5 < cross[i+1]; x++ {
				r.blend(x, y, c, 0.2)
			}
		}
	}
}

// glyph returns a letter of three by five dots, a digit of octal for each row, the top one first.
func glyph(l rune) int {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.-/%(),+:_="
	glyphs := [...]int{
		0o75557, 0o26227, 0o71747, 0o71717, 0o55711, 0o74717, 0o74757, 0o71111, 0o75757, 0o75717, // digits
		0o25755, 0o65656, 0o34443, 0o65556, 0o74647, 0o74644, 0o34553, 0o55755, 0o72227, 0o11152, 0o55655, 0o44447, 0o57755, // to M
		0o65555, 0o25552, 0o65644, 0o25563, 0o65655, 0o34216, 0o72222, 0o55557, 0o55552, 0o55775, 0o55255, 0o55222, 0o71247, // to Z
		0o00002, 0o00700, 0o11244, 0o51245, 0o12221, 0o42224, 0o00024, 0o02720, 0o02020, 0o00007, 0o07070,
	}
	for i, have := range letters {
		if have == unicode.ToUpper(l) {
			return glyphs[i]
		}
	}
	return 0
}

func (r *raster) text(at Point, a anchor, size int, text string) {
	dot, letters := size/6, []rune(text)
	x, y := int(at.X), int(at.Y)-5*dot
	switch total := len(letters) * 4 * dot; a {
	case begin:
	case middle:
		x -= total / 2
	case end:
		x -= total
	}
	for _, l := range letters {
		g := glyph(l)
		for i := range 15 * dot * dot {
			px, py := i%(3*dot), i/(3*dot)
			if g>>(3*(4-py/dot)+2-px/dot)&1 == 1 {
				r.blend(x+px, y+py, [3]uint8{60, 60, 60}, 1)
			}
		}
		x += 4 * dot
	}
}
