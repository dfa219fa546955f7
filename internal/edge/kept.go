package edge

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// How soon the edge waits again for a process after an aether couldn't be asked, at first and at most. The backend's
// Open itself waits for a new aether.
const (
	keptPause    = 50 * time.Millisecond
	keptPauseMax = 5 * time.Second
)

// awaitKept records the end of a kept process, which outlives the stream that started it: the aether answers the call
// when it has ended.
func (e *Edge) awaitKept(sb *sandbox, box Box, id string) {
	over := func() {}
	if id != startProcess {
		over = sb.active.Begin(uptime)
	}
	e.goTask(func() {
		defer over()
		for pause := keptPause; ; pause = min(2*pause, keptPauseMax) {
			raw, err := ask(e.life, box, aether.Open{Method: "wait", Sandbox: sb.id, Project: sb.project, Body: []byte(id)})
			switch {
			case err == nil || api.IsCode(err, api.CodeNoSuchProcess): // not there any more: forgotten since
				e.tellEnded(sb, id, raw)
				return
			case e.isClosing() || ended(box):
				return
			}
			e.log.Debug("process can't be waited for", sb.attr(), slog.String("process", id), slog.Any("err", err))
			select {
			case <-time.After(pause):
			case <-box.Done():
				return
			case <-e.quit:
				return
			}
		}
	})
}

func (e *Edge) tellEnded(sb *sandbox, id string, raw []byte) {
	data := execData(id, "")
	var p api.Process
	if len(raw) > 0 && json.Unmarshal(raw, &p) == nil && p.Exit != nil {
		data["exit"] = p.Exit
	}
	e.tell(sb, "exec_ended", "", data)
}

// awaitRecorded waits again for an adopted sandbox's processes whose end has no event yet.
func (e *Edge) awaitRecorded(sb *sandbox, box Box) {
	told, _ := sb.events.Since(0)
	running := map[string]bool{}
	for _, ev := range told {
		id, _ := ev.Data["process"].(string)
		switch ev.Type {
		case "exec_started":
			running[id] = true
		case "exec_ended":
			delete(running, id)
		}
	}
	for id := range running {
		e.awaitKept(sb, box, id)
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
