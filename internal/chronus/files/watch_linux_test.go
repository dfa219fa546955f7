package files

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

// box is a sandbox's place as far as counting goes.
type box struct {
	Place

	n int
}

func TestWatchesAreCounted(t *testing.T) {
	w := watches{boxes: make(map[Place]int)}
	refused := func(err error, code api.Code) {
		t.Helper()
		if err == nil {
			t.Errorf("it isn't refused with %s", code)
		} else if e := api.AsError(err); e.Code != code || e.Hint == "" {
			t.Errorf("%v (hint %q), want %s", err, e.Hint, code)
		}
	}
	took := 0
	for n := 0; took < maxWatches; n++ {
		for range maxBoxWatches {
			if err := w.take(box{n: n}); err != nil {
				t.Fatalf("watch %d of the shard: %v", took, err)
			}
			took++
		}
		refused(w.take(box{n: n}), api.CodeTooMany)
	}
	refused(w.take(box{n: -1}), api.CodeTooMany) // all the shard may have
	w.give(box{n: 0})
	if err := w.take(box{n: -1}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	refused(w.take(box{n: 0}), api.CodeTooMany)
	w.give(box{n: -1})
	for i := 1; i < maxWatches; i++ {
		w.give(box{n: i / maxBoxWatches})
	}
	if w.all != 0 || len(w.boxes) != 0 {
		t.Errorf("%d watches of %d sandboxes are left", w.all, len(w.boxes))
	}
	for range 2 {
		if err := w.count(maxWatched); err != nil {
			t.Errorf("as many directories as may be watched: %v", err)
		}
		refused(w.count(1), api.CodeQuota)
		if err := w.count(-maxWatched); err != nil {
			t.Error(err)
		}
	}
}

func TestOutboxTellsOfWhatItLost(t *testing.T) {
	o := outbox{wake: make(chan struct{}, 1)}
	const over = `{"type":"overflow"}` + "\n"
	taken := func(want string, last bool) {
		t.Helper()
		got, ended := o.take(nil)
		if s := string(got); s != want || ended != last {
			t.Errorf("%d bytes, ending in %q, last is %v; want %d bytes", len(s), s[max(0, len(s)-60):], ended, len(want))
		}
	}
	line := strings.Repeat("x", 1023) + "\n"
	for range maxOutbox/1024 + 10 {
		o.add([]byte(line))
	}
	o.add([]byte("short\n")) // there is room for it, but not at its place
	taken(strings.Repeat(line, maxOutbox/1024)+over, false)
	taken("", false)
	o.add([]byte("1\n"))
	o.lose()
	o.lose()
	o.add([]byte("2\n"))
	taken("1\n"+over+over+"2\n", false)
	for range maxOutbox/1024 + 1 {
		o.add([]byte(line))
	}
	o.lose()
	o.last([]byte("gone\n"))
	taken(strings.Repeat(line, maxOutbox/1024)+over+"gone\n", true)
}

// TestOverflowOfTheKernelIsTold: what the kernel has dropped is told like what didn't fit here.
func TestOverflowOfTheKernelIsTold(t *testing.T) {
	w := &watcher{v: &visitor{}, out: outbox{wake: make(chan struct{}, 1)}}
	if err := w.handle(&notice{wd: -1, mask: unix.IN_Q_OVERFLOW}); err != nil {
		t.Fatal(err)
	}
	if got, _ := w.out.take(nil); string(got) != `{"type":"overflow"}`+"\n" {
		t.Errorf("%q is told", got)
	}
}
