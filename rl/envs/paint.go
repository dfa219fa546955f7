package envs

import (
	"image"
	"math"

	"github.com/dsec-io/dsec/rl/render"
)

// inks returns the ink of each tile, the last one for all above.
func inks(all ...render.Ink) func(uint8) render.Ink {
	return func(tile uint8) render.Ink { return all[min(int(tile), len(all)-1)] }
}

// obsU8 returns a row of the observations, or nil where there's none to see.
func (b *batch) obsU8(row int) []uint8 {
	n := b.spec.Obs.Len
	if b.b == nil || row < 0 || row >= b.b.Rows {
		return nil
	}
	return b.b.ObsU8[row*n : (row+1)*n]
}

// Paint implements [render.Painter].
func (s *squared) Paint(i int) *render.Canvas {
	if obs := s.obsU8(i); obs != nil {
		return render.Grid(obs, s.size, 16, inks(render.Ground, render.Cyan, render.Red))
	}
	return nil
}

// Paint implements [render.Painter].
func (m *maze) Paint(i int) *render.Canvas {
	if obs := m.obsU8(i); obs != nil {
		return render.Grid(obs, m.size, 16, inks(render.Ground, render.Gray, render.Cyan, render.Yellow))
	}
	return nil
}

// Paint implements [render.Painter]. It shows the whole field.
func (s *snakes) Paint(i int) *render.Canvas {
	if i < 0 || i >= len(s.fields) {
		return nil
	}
	ink := inks(render.Ground, render.Green, render.Orange, render.Gray, render.Cyan, render.White)
	return render.Grid(s.fields[i].grid, s.stride, 4, ink)
}

// Paint implements [render.Painter]. It shows everything, with all agents that are still there.
func (f *Forage) Paint(i int) *render.Canvas {
	if i != 0 {
		return nil
	}
	tiles := append([]uint8(nil), f.grid...)
	for _, at := range f.at {
		if at >= 0 {
			tiles[at] = forageOther
		}
	}
	return render.Grid(tiles, f.c.Size, 24, inks(render.Ground, render.Green, render.Red, render.Cyan))
}

// Paint implements [render.Painter].
func (m *memory) Paint(i int) *render.Canvas {
	if m.b == nil || i < 0 || i >= m.envs {
		return nil
	}
	c := render.New(32*m.length+32, 64)
	goal := []render.Ink{render.Cyan, render.Red}[m.goals[i]&1]
	c.Rect(0, 0, 32, 64, goal)
	for t := range m.length {
		ink := render.Dark
		switch {
		case t == m.tick && t == 0:
			ink = goal
		case t == m.tick:
			ink = render.White
		}
		c.Rect(40+32*t, 24, 56+32*t, 40, ink)
	}
	return c
}

// Paint implements [render.Painter].
func (p *cartpole) Paint(i int) *render.Canvas {
	if p.b == nil || i < 0 || i >= p.envs {
		return nil
	}
	const width, height, scale = 300, 100, 60
	c := render.New(width, height)
	x := width/2 + int(p.b.ObsF32[i*4]*scale)
	sin, cos := math.Sincos(float64(p.b.ObsF32[i*4+2]))
	c.Rect(0, 80, width, 81, render.Gray)
	c.Rect(x-15, 70, x+15, 82, render.Cyan)
	c.Line(image.Pt(x, 70), image.Pt(x+int(60*sin), 70-int(60*cos)), 4, render.Orange)
	return c
}

// Paint implements [render.Painter]. Up is up, which counts from below.
func (p *pong) Paint(i int) *render.Canvas {
	if i < 0 || i >= len(p.courts) {
		return nil
	}
	const scale, edge = 3, 6
	g := &p.courts[i]
	c := render.New(pongWidth/scale+2*edge, pongHeight/scale)
	block := func(x int, low, high float32, width int, ink render.Ink) {
		c.Rect(x, int(pongHeight-high)/scale, x+width, int(pongHeight-low)/scale, ink)
	}
	block(0, g.left, g.left+pongPaddle, edge, render.Red)
	block(pongWidth/scale+edge, g.right, g.right+pongPaddle, edge, render.Cyan)
	block(edge+int(g.x)/scale, g.y, g.y+pongBall, pongBall/scale, render.White)
	c.Number(pongWidth/scale/2-20, 4, int(g.lost), 2, render.Red)
	c.Number(pongWidth/scale/2+20, 4, int(g.won), 2, render.Cyan)
	return c
}

// Paint implements [render.Painter].
func (k *breakout) Paint(i int) *render.Canvas {
	if i < 0 || i >= len(k.games) {
		return nil
	}
	const scale = 2
	g := &k.games[i]
	c := render.New(fieldW/scale, fieldH/scale)
	rows := [wallRows]render.Ink{render.Red, render.Orange, render.Yellow, render.Green, render.Blue, render.Purple}
	for r, ink := range rows {
		for col := range wallCols {
			if g.bricks[r]>>col&1 != 0 {
				x, y := col*brickW/scale, (wallTop+r*brickH)/scale
				c.Rect(x, y, x+brickW/scale-1, y+brickH/scale-1, ink)
			}
		}
	}
	x, y := int(g.x)/scale, int(g.y)/scale
	c.Rect(x, y, x+ballSize/scale, y+ballSize/scale, render.White)
	x = int(g.paddle) / scale
	c.Rect(x, paddleY/scale, x+int(g.width)/scale, (paddleY+paddleH)/scale, render.Cyan)
	c.Number(4, 4, int(g.score), 2, render.White)
	c.Number(fieldW/scale-12, 4, int(g.balls), 2, render.White)
	return c
}

// Paint implements [render.Painter].
func (g *game2048) Paint(i int) *render.Canvas {
	obs := g.obsU8(i)
	if obs == nil {
		return nil
	}
	const cell = 48
	hot := inks(render.Dark, render.Gray, render.Gray, render.Blue, render.Blue, render.Cyan, render.Cyan,
		render.Green, render.Green, render.Yellow, render.Orange, render.Red, render.Purple)
	c := render.New(4*cell, 4*cell)
	for j, tile := range obs {
		x, y := j%4*cell, j/4*cell
		c.Rect(x+1, y+1, x+cell-1, y+cell-1, hot(tile))
		if tile > 0 {
			c.Number(x+6, y+18, 1<<tile, 2, render.White)
		}
	}
	return c
}
