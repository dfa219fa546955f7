package edge

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// How often the edge looks for ends of kept processes that no client has waited for, and for how long it waits for the
// answer.
const (
	keptEvery   = 2 * time.Second
	keptTimeout = 5 * time.Second
)

// keptSet is the started processes whose end has no event yet. They outlive the streams that started them, so their ends
// are found by asking.
type keptSet struct {
	// mu guards running.
	mu      sync.Mutex
	running map[*sandbox]map[string]bool
	wake    chan *sandbox // a process of it may have ended just now; one waits, more are left to the next round
}

func newKeptSet() *keptSet {
	return &keptSet{running: map[*sandbox]map[string]bool{}, wake: make(chan *sandbox, 1)}
}

func (k *keptSet) add(sb *sandbox, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running[sb] == nil {
		k.running[sb] = map[string]bool{}
	}
	k.running[sb][id] = true
}

// look asks about a sandbox soon.
func (k *keptSet) look(sb *sandbox) {
	select {
	case k.wake <- sb:
	default:
	}
}

func (k *keptSet) sandboxes() []*sandbox {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*sandbox, 0, len(k.running))
	for sb := range k.running {
		list = append(list, sb)
	}
	return list
}

// take removes those for which gone says so and returns them.
func (k *keptSet) take(sb *sandbox, gone func(id string) bool) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []string
	for id := range k.running[sb] {
		if gone(id) {
			ids = append(ids, id)
			delete(k.running[sb], id)
		}
	}
	if len(k.running[sb]) == 0 {
		delete(k.running, sb)
	}
	return ids
}

// remember fills the set from an adopted sandbox's events.
func (k *keptSet) remember(sb *sandbox) {
	events, _ := sb.events.since(0)
	for _, ev := range events {
		id, _ := ev.Data["process"].(string)
		switch ev.Type {
		case "exec_started":
			k.add(sb, id)
		case "exec_ended":
			k.take(sb, func(other string) bool { return other == id })
		}
	}
}

// watchKept records the ends of kept processes.
func (e *Edge) watchKept() {
	t := time.NewTicker(keptEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			list := e.kept.sandboxes()
			e.parallel(len(list), func(i int) { e.askKept(list[i]) })
		case sb := <-e.kept.wake:
			e.askKept(sb)
		case <-e.quit:
			return
		}
	}
}

func (e *Edge) askKept(sb *sandbox) {
	sb.mu.Lock()
	state, box := sb.rec.State, sb.box
	sb.mu.Unlock()
	if state.Ended() {
		e.kept.take(sb, func(string) bool { return true })
		return
	}
	if state != api.StateRunning {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keptTimeout)
	defer cancel()
	raw, err := ask(ctx, box, aether.Open{Method: "processes", Sandbox: sb.id, Project: sb.project})
	var list []api.Process
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		e.log.Debug("processes of a sandbox can't be listed", sb.attr(), slog.Any("err", err))
		return
	}
	known := map[string]api.Process{}
	for _, p := range list {
		known[p.ID] = p
	}
	for _, id := range e.kept.take(sb, func(id string) bool { return !known[id].Running }) {
		data := map[string]any{"process": id}
		if x := known[id].Exit; x != nil {
			data["exit"] = x
		}
		e.tell(sb, "exec_ended", "", data)
	}
}

// ask makes a unary call to a sandbox's aether.
func ask(ctx context.Context, box Box, o aether.Open) ([]byte, error) {
	o.Closed = true
	s, err := box.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer s.Reset(nil)
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return nil, err
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			body := append([]byte(nil), f.Data...)
			f.Release()
			return body, nil
		}
		f.Release()
	}
}
