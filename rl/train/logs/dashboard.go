package logs

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dsec-io/dsec/rl/train"
)

// dashboard draws a run on a terminal, in place, at most four times a second.
type dashboard struct {
	w     io.Writer
	title string
	now   func() time.Time
	drawn time.Time
	lines int // of what is there now
	best  float64
	seen  bool
}

// NewDashboard draws on a terminal. It writes nothing but the run: nothing else should write there meanwhile.
func NewDashboard(w io.Writer, title string) Sink { return newDashboard(w, title, time.Now) }

func newDashboard(w io.Writer, title string, now func() time.Time) *dashboard {
	return &dashboard{w: w, title: title, now: now}
}

// Resumed implements [Sink].
func (d *dashboard) Resumed(update int) error {
	_, err := fmt.Fprintf(d.w, "going on after update %d\n", update)
	return err
}

const dashboardWidth = 78

// Take implements [Sink].
func (d *dashboard) Take(p train.Progress) error {
	if p.Episodes.Episodes > 0 && (!d.seen || p.Episodes.Return > d.best) {
		d.best, d.seen = p.Episodes.Return, true
	}
	now := d.now()
	if now.Sub(d.drawn) < time.Second/4 && p.Update != p.Updates {
		return nil
	}
	d.drawn = now
	return d.draw(d.rows(p))
}

func (d *dashboard) rows(p train.Progress) []string {
	part := float64(p.Update) / float64(max(1, p.Updates))
	left := "-"
	if p.SPS > 0 && p.Update > 0 {
		each := float64(p.Steps) / float64(p.Update)
		left = time.Duration(float64(p.Updates-p.Update) * each / p.SPS * float64(time.Second)).Round(time.Second).String()
	}
	filled := int(part * 40)
	f := &p.Phases
	total := max(f.Env+f.Policy+f.Gather+f.Forward+f.Back, 1)
	percent := func(t time.Duration) string { return fmt.Sprintf("%d %%", 100*t/total) }
	rows := []string{
		rule(d.title),
		fmt.Sprintf(" [%s%s] %5.1f %%   %s gone, %s left", strings.Repeat("#", filled), strings.Repeat(".", 40-filled), 100*part, p.Elapsed.Round(time.Second), left),
		pairs("steps", short(float64(p.Steps)), "steps/s", short(p.SPS), "update", fmt.Sprintf("%d/%d", p.Update, p.Updates)),
		rule("episodes"),
		pairs("return", short(p.Episodes.Return), "best return", short(d.best), "score", short(p.Episodes.Score)),
		pairs("length", short(p.Episodes.Length), "count", short(float64(p.Episodes.Episodes)), "", ""),
		rule("learning"),
		pairs("policy loss", short(p.Loss.Policy), "value loss", short(p.Loss.Value), "entropy", short(p.Loss.Entropy)),
		pairs("KL", short(p.Loss.KL), "clipped", short(p.Loss.ClipFraction), "explained", short(p.Loss.Explained)),
		pairs("rate", short(p.Rate), "gradient", short(p.GradNorm), "minibatches", short(float64(p.Batches))),
		rule("time"),
		pairs("environments", percent(f.Env), "policy", percent(f.Policy), "gather", percent(f.Gather)),
		pairs("forward", percent(f.Forward), "backward", percent(f.Back), "", ""),
	}
	return append(rows, strings.Repeat("-", dashboardWidth))
}

func rule(title string) string {
	line := "-- " + title + " "
	return line + strings.Repeat("-", max(0, dashboardWidth-len(line)))
}

func pairs(kv ...string) string {
	var b strings.Builder
	for i := 0; i < len(kv); i += 2 {
		fmt.Fprintf(&b, " %-12s %10s  ", kv[i], kv[i+1])
	}
	return strings.TrimRight(b.String(), " ")
}

// short writes a number in at most eight characters or so.
func short(x float64) string {
	abs := max(x, -x)
	switch {
	case abs >= 1e9:
		return fmt.Sprintf("%.2fG", x/1e9)
	case abs >= 1e6:
		return fmt.Sprintf("%.2fM", x/1e6)
	case abs >= 1e4:
		return fmt.Sprintf("%.1fK", x/1e3)
	case abs == 0 || abs >= 0.001:
		return fmt.Sprintf("%.4g", x)
	}
	return fmt.Sprintf("%.1e", x)
}

// draw writes rows over the ones before.
func (d *dashboard) draw(rows []string) error {
	var b strings.Builder
	if d.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", d.lines)
	}
	for _, r := range rows {
		b.WriteString("\x1b[2K" + r + "\n")
	}
	d.lines = len(rows)
	_, err := io.WriteString(d.w, b.String())
	return err
}

// Close implements [Sink].
func (d *dashboard) Close() error { return nil }
