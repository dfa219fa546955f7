package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// outcome is how an attempt ended.
type outcome struct {
	id, agent string
	steps     int
	took      time.Duration
	reward    int
	masked    bool // there is no reward, because DSec failed
	why       string
}

// fail sets the reward from what the grading said.
func (o outcome) fail(err error) outcome {
	switch {
	case err == nil:
		o.reward = 1
	case infrastructure(err):
		o.masked, o.why = true, err.Error()
	default:
		o.why = err.Error()
	}
	return o
}

// expected tells whether honesty was paid and cheating wasn't.
func (o outcome) expected() bool { return !o.masked && (o.reward == 1) == (o.agent == "honest") }

func (o outcome) verdict() string {
	if o.masked {
		return "masked"
	}
	return fmt.Sprint(o.reward)
}

// board shows how far the attempts are: one line that changes on a terminal, one a finished attempt elsewhere.
type board struct {
	out   io.Writer
	live  bool
	total int
	began time.Time

	mu       sync.Mutex // guards what follows, and the order of writes to out
	working  int
	grading  int
	outcomes []outcome
}

func newBoard(out *os.File, total int) *board {
	info, err := out.Stat()
	live := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &board{out: out, live: live, total: total, began: time.Now()}
}

// phase counts attempts in and out of the phases.
func (b *board) phase(working, grading int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.working += working
	b.grading += grading
	b.line()
}

func (b *board) done(o outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes = append(b.outcomes, o)
	if !b.live {
		fmt.Fprintf(b.out, "%d of %d: %s: %s after %d steps, %.1f s\n", len(b.outcomes), b.total, o.agent, o.verdict(), o.steps, o.took.Seconds())
	}
	b.line()
}

// line redraws the one line. The caller holds mu.
func (b *board) line() {
	if !b.live {
		return
	}
	const width = 24
	full := width * len(b.outcomes) / max(1, b.total)
	bar := make([]byte, width)
	for i := range bar {
		bar[i] = " #"[min(1, max(0, full-i))]
	}
	fmt.Fprintf(b.out, "\r\x1b[K[%s] %d of %d done, %d at work, %d being graded, %.0f s",
		bar, len(b.outcomes), b.total, b.working, b.grading, time.Since(b.began).Seconds())
}

// close prints the table and the totals, and returns the exit status.
func (b *board) close() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
	slices.SortStableFunc(b.outcomes, func(x, y outcome) int { return cmp.Compare(rank(x), rank(y)) })
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nID\tAGENT\tSTEPS\tSECONDS\tREWARD\tWHY")
	rewards, masked, wrong, steps := 0, 0, 0, 0
	for _, o := range b.outcomes {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.1f\t%s\t%s\n", cmp.Or(o.id, "-"), o.agent, o.steps, o.took.Seconds(), o.verdict(), cmp.Or(o.why, "-"))
		rewards += o.reward
		steps += o.steps
		if o.masked {
			masked++
		}
		if !o.expected() {
			wrong++
		}
	}
	_ = w.Flush() // as with every other line, who reads decides how far
	fmt.Fprintf(b.out, "\n%d attempts, %d steps, %.1f s: %d rewarded, %d not, %d masked\n",
		len(b.outcomes), steps, time.Since(b.began).Seconds(), rewards, len(b.outcomes)-rewards-masked, masked)
	if wrong > 0 {
		fmt.Fprintf(b.out, "%d not as expected: honest agents earn 1, cheating ones 0\n", wrong)
		return 1
	}
	return 0
}

// rank sorts honest agents before the others.
func rank(o outcome) string {
	if o.agent == "honest" {
		return ""
	}
	return o.agent
}
