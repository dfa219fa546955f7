package envs

import (
	"context"
	"encoding/binary"
	"math"
	"math/bits"
	"sync"

	"github.com/dsec-io/dsec/rl/env"
)

// Config2048 is of the game of sliding tiles. A merge earns a sixteenth of the new tile's exponent; a move that moves
// nothing costs 0.05; the end, which is when nothing can move (terminal), costs 1. The game is truncated after
// MaxSteps steps, or a tenth of the points where that is more, so that a policy that pushes a wall all day ends.
//
// Observation: the exponents of the 16 tiles, bytes. Choices: up, down, left, right.
type Config2048 struct {
	MaxSteps int // 2000
	// Masked closes the choices that move nothing.
	Masked bool
}

const (
	earnMerge   = 0.0625
	earnNothing = -0.05
	earnEnd     = -1
	bestTile    = 15 // a nibble holds no more; two of them don't merge
)

// A board is 16 nibbles, row 0 in the lowest 16 bits, column 0 in the lowest nibble of a row.
type board = uint64

// slide is what becomes of a row: in its low 16 bits pushed towards column 0 (left), in the next 16 towards column 3
// (right), and above these the exponents of the tiles that merging makes, together.
type slide = uint64

// slides has an entry for every row. Half a megabyte, that all boards share.
var slides = sync.OnceValue(func() *[1 << 16]slide { //nolint:gochecknoglobals // a constant table
	var table [1 << 16]slide
	for row := range table {
		left, exponents := slideRow(uint16(row))
		right, _ := slideRow(mirror(uint16(row)))
		table[row] = slide(left) | slide(mirror(right))<<16 | slide(exponents)<<32
	}
	return &table
})

func mirror(row uint16) uint16 {
	return row>>12 | row>>4&0xf0 | row<<4&0xf00 | row<<12
}

// slideRow pushes a row towards column 0. Each tile merges once at most, those nearest to the wall first.
func slideRow(row uint16) (to uint16, exponents uint8) {
	var tiles [4]uint8
	n, merged := 0, false
	for ; row != 0; row >>= 4 {
		tile := uint8(row & 15)
		switch {
		case tile == 0:
		case n > 0 && !merged && tiles[n-1] == tile && tile < bestTile:
			tiles[n-1]++
			exponents += tiles[n-1]
			merged = true
		default:
			tiles[n] = tile
			n++
			merged = false
		}
	}
	for i, tile := range tiles {
		to |= uint16(tile) << (4 * i)
	}
	return to, exponents
}

// transpose swaps rows and columns.
func transpose(b board) board {
	t := (b ^ b>>12) & 0x0000f0f00000f0f0
	b ^= t ^ t<<12
	t = (b ^ b>>24) & 0x00000000ff00ff00
	return b ^ t ^ t<<24
}

// occupied has the lowest bit of every nibble that isn't 0.
func occupied(b board) uint64 {
	b |= b >> 2
	return (b | b>>1) & 0x1111111111111111
}

// stuck says whether a full board has no two equal neighbours. Two best tiles are none that merge.
func stuck(b board) bool {
	full := uint64(0x1111111111111111)
	best := occupied(^b) // 0 where a tile is the best
	across := occupied((b ^ b>>4) | 0xf000f000f000f000)
	down := occupied((b ^ b>>16) | 0xffff000000000000)
	return (across|^best)&(down|^best)&full == full
}

type game2048 struct {
	batch
	table    *[1 << 16]slide
	maxSteps int32
	games    []tiles
}

type tiles struct {
	rand   env.Rand
	board  board
	tick   int32
	fours  int32 // that were dropped
	earned float32
}

// points returns what all merges were worth, each the tile that it made: a tile of 2^n that grew out of 2s took n-1
// rounds of merging, of 2^n in each; a 4 that was dropped brought one of 4 with it that nobody made.
func (t *tiles) points() int {
	sum := -4 * int(t.fours)
	for b := t.board; b != 0; b >>= 4 {
		if n := int(b & 15); n > 1 {
			sum += (n - 1) << n
		}
	}
	return sum
}

// New2048 makes a batch.
func New2048(envs int, c Config2048) (env.Batch, error) {
	maxSteps := or(c.MaxSteps, 2000)
	if err := positive("2048", maxSteps, math.MaxInt32-maxSteps); err != nil {
		return nil, err
	}
	base, err := newBatch("2048", envs, 1, env.Bytes(bestTile, 4, 4), env.Discrete{N: 4})
	if err != nil {
		return nil, err
	}
	base.spec.Masked = c.Masked
	return &game2048{batch: base, table: slides(), maxSteps: int32(maxSteps), games: make([]tiles, envs)}, nil
}

// Reset implements [env.Batch].
func (g *game2048) Reset(_ context.Context, seeds []uint64) error {
	if err := g.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		t := &g.games[i]
		t.rand = env.NewRand(seed)
		t.start()
		g.show(i, t.board)
	}
	return nil
}

func (t *tiles) start() {
	t.board, t.tick, t.fours, t.earned = 0, 0, 0, 0
	t.drop()
	t.drop()
}

// drop puts a 2, or one time in ten a 4, on one of the empty places, all as likely, and says whether it was the last
// one. Nothing here branches: what is random can't be predicted.
func (t *tiles) drop() (full bool) {
	r := t.rand.Uint64()
	free := ^occupied(t.board) & 0x1111111111111111
	upTo, count := tally(free)
	n, _ := bits.Mul64(r, count)
	place := nth(upTo, n)
	// The low bits are independent of the high ones that chose the place.
	four := ((r&0xffffffff)*10>>32 - 1) >> 63
	t.fours += int32(four)
	t.board |= place << four
	return count == 1
}

// tally counts the bits of free, which has one a nibble at most and one at least. Nibble i of upTo counts those up to
// and with i; where all 16 are there, the last nibble overflows to 0, which is what count is set right for, and nth
// doesn't mind.
func tally(free uint64) (upTo, count uint64) {
	upTo = free * 0x1111111111111111
	count = upTo >> 60
	return upTo, count | (count-1)>>63<<4
}

// nth returns the n-th (from 0) of the bits that upTo tells of.
func nth(upTo, n uint64) uint64 {
	low, high := upTo&0x0f0f0f0f0f0f0f0f, upTo>>4&0x0f0f0f0f0f0f0f0f
	limit := n*0x0101010101010101 | 0x8080808080808080
	// The high bit of a byte stays where the count isn't over n: in as many nibbles as lie before the one wanted. The
	// last nibble is before none, and left out.
	before := (limit-low)>>7&0x0101010101010101 + (limit-high)>>7&0x0001010101010101
	return 1 << (4 * (before * 0x0101010101010101 >> 56))
}

// push returns the board pushed in a direction.
func (g *game2048) push(b board, choice int32) (to board, exponents uint64) {
	upright := uint64(choice>>1&1) - 1 // all bits for up and down
	b ^= (b ^ transpose(b)) & upright
	side := uint(choice&1) * 16
	r0, r1 := g.table[b&0xffff], g.table[b>>16&0xffff]
	r2, r3 := g.table[b>>32&0xffff], g.table[b>>48]
	to = r0>>side&0xffff | r1>>side&0xffff<<16 | r2>>side&0xffff<<32 | r3>>side<<48
	to ^= (to ^ transpose(to)) & upright
	return to, r0>>32 + r1>>32 + r2>>32 + r3>>32
}

// Step implements [env.Batch].
func (g *game2048) Step(context.Context) error {
	b, games := g.b, g.games
	choices, rewards := b.Choices[:len(games)], b.Rewards[:len(games)]
	clear(b.Terminals)
	clear(b.Truncations)
	for i := range games {
		t := &games[i]
		to, exponents := g.push(t.board, choices[i]&3)
		t.tick++
		reward, over := float32(earnNothing), false
		if to != t.board {
			reward = earnMerge * float32(exponents)
			t.board = to
			// A game that isn't over can only end by a tile that takes the last place.
			if t.drop() && stuck(t.board) {
				reward, over = earnEnd, true
			}
		}
		rewards[i] = reward
		t.earned += reward
		if over || t.tick >= g.maxSteps && int(t.tick) >= t.points()/10 {
			g.end(i, t, over)
		}
		g.show(i, t.board)
	}
	return nil
}

// show writes the observation, and the mask.
func (g *game2048) show(i int, b board) {
	putBoard(g.b.ObsU8[i*16:], b)
	if g.b.ActionMasks == nil {
		return
	}
	mask := g.b.ActionMasks[i*4 : i*4+4]
	for choice := range mask {
		mask[choice] = 0
		if to, _ := g.push(b, int32(choice)); to != b {
			mask[choice] = 1
		}
	}
}

// putBoard spreads the nibbles to bytes, eight at a time.
func putBoard(obs []uint8, b board) {
	o := (*[16]uint8)(obs)
	binary.LittleEndian.PutUint64(o[:8], spread(b&0xffffffff))
	binary.LittleEndian.PutUint64(o[8:], spread(b>>32))
}

func spread(v uint64) uint64 {
	v = (v | v<<16) & 0x0000ffff0000ffff
	v = (v | v<<8) & 0x00ff00ff00ff00ff
	return (v | v<<4) & 0x0f0f0f0f0f0f0f0f
}

func (g *game2048) end(i int, t *tiles, over bool) {
	if over {
		g.b.Terminals[i] = 1
	} else {
		g.b.Truncations[i] = 1
	}
	putBoard(g.b.FinalU8[i*16:], t.board)
	top := uint64(0)
	for b := t.board; b != 0; b >>= 4 {
		top = max(top, b&15)
	}
	g.stats.Episodes++
	g.stats.Return += float64(t.earned)
	g.stats.Length += float64(t.tick)
	g.stats.Score += float64(uint64(1) << top)
	t.start()
}
