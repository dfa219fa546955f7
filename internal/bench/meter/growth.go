package meter

// Sample is how much memory so many sandboxes have used.
type Sample struct{ N, KiB float64 }

// Growth splits the memory of n sandboxes into linear*n + square*n*n, by least squares over the memory of one. The first
// few say little, because a shard and the server's heap grow in steps.
func Growth(all []Sample) (linear, square float64, ok bool) {
	if len(all) < 8 {
		return 0, 0, false
	}
	var count, sx, sy, sxx, sxy float64
	for _, g := range all {
		if g.N < all[len(all)-1].N/4 {
			continue
		}
		x, y := g.N, g.KiB/g.N
		count, sx, sy, sxx, sxy = count+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	spread := count*sxx - sx*sx
	if spread <= 0 {
		return 0, 0, false
	}
	square = (count*sxy - sx*sy) / spread
	return (sy - square*sx) / count, square, true
}
