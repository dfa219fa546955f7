package render_test

import (
	"bytes"
	"image"
	"image/gif"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/rl/render"
)

func TestPNG(t *testing.T) {
	c := render.New(8, 6)
	c.Rect(-5, 2, 3, 100, render.Red)
	var b bytes.Buffer
	if err := c.PNG(&b); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	r, g, _, _ := img.At(2, 5).RGBA()
	if img.Bounds() != image.Rect(0, 0, 8, 6) || r>>8 != 0xbb || g != 0 || img.At(3, 5) == img.At(2, 5) || img.At(2, 1) == img.At(2, 2) {
		t.Errorf("bounds %v, red %#x, green %#x", img.Bounds(), r, g)
	}
}

func TestGIF(t *testing.T) {
	var f render.Film
	if err := f.GIF(&bytes.Buffer{}); err == nil {
		t.Error("an empty film: no error")
	}
	for i := range 3 {
		c := render.New(10, 10)
		c.Rect(i, i, i+2, i+2, render.Cyan)
		f.Add(c, 50*time.Millisecond)
	}
	var b bytes.Buffer
	if err := f.GIF(&b); err != nil {
		t.Fatal(err)
	}
	g, err := gif.DecodeAll(&b)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Image) != 3 || g.Delay[1] != 5 || g.Image[2].ColorIndexAt(3, 3) != uint8(render.Cyan) {
		t.Errorf("%d frames, delays %v", len(g.Image), g.Delay)
	}
}

func TestTerminal(t *testing.T) {
	c := render.Grid([]uint8{0, 1, 1, 0}, 2, 4, func(v uint8) render.Ink { return []render.Ink{render.Ground, render.White}[v] })
	var b strings.Builder
	if err := c.Terminal(&b, 2); err != nil {
		t.Fatal(err)
	}
	const ground, white = "6;24;24m", "241;241;241m"
	want := "\x1b[38;2;" + ground + "\x1b[48;2;" + white + "▀\x1b[38;2;" + white + "\x1b[48;2;" + ground + "▀\x1b[0m\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestNumberAndLine(t *testing.T) {
	c := render.New(20, 7)
	c.Number(1, 1, 17, 1, render.White)
	c.Line(image.Pt(12, 6), image.Pt(18, 0), 1, render.Red)
	var got []string
	for y := range 7 {
		line := ""
		for x := range 20 {
			line += string(".#......"[c.Image().ColorIndexAt(x, y)%2])
			if render.Ink(c.Image().ColorIndexAt(x, y)) == render.Red {
				line = line[:len(line)-1] + "/"
			}
		}
		got = append(got, line)
	}
	want := []string{
		"..................//",
		"..#..###.........//.",
		".##....#........//..",
		"..#....#.......//...",
		"..#....#......//....",
		".###...#.....//.....",
		"............//......",
	}
	for y := range want {
		want[y] = strings.ReplaceAll(want[y], "//", "/.")
		if got[y] != want[y] {
			t.Errorf("line %d: %s, want %s", y, got[y], want[y])
		}
	}
}
