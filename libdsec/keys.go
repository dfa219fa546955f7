package libdsec

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	// keyedFor is how long a request with a key is sent again while no answer comes back.
	keyedFor = time.Minute
	// keyedInput is how much input a command under a key may have.
	keyedInput = 16 << 20
	// killWait is how long a command under a key that was cancelled has to report its end.
	killWait = 2 * time.Second
	// headerKey names the key in a REST request.
	headerKey = "Idempotency-Key"
)

// NewKey makes an idempotency key: a name for one request, under which the server carries it out once, however often it
// is sent within a day. A caller that may die, and send its request again in another life, keeps the key.
func NewKey() string { return strings.ToLower(rand.Text()) }

// tries decides whether a request is sent again. One without a key is, some times, when nothing has run; one with a key
// also when its answer was lost, until that has gone on for a minute.
type tries struct {
	keyed  bool
	method string
	made   int
	pause  time.Duration
	lost   time.Time // when the first answer was lost
}

// again waits before another try and returns nil, or returns why there is none.
func (t *tries) again(ctx context.Context, err error) error {
	t.made++
	if t.pause == 0 {
		t.pause = firstPause
	}
	if t.keyed && t.lost.IsZero() && answerLost(err) {
		t.lost = time.Now()
	}
	retry := nothingRan(err, t.method) && t.made < sendTries
	if !t.lost.IsZero() {
		retry = time.Since(t.lost) < keyedFor && (answerLost(err) || nothingRan(err, t.method))
	}
	if !retry {
		return err
	}
	if rerr := rest(ctx, waitFor(err, t.pause)); rerr != nil {
		return rerr
	}
	t.pause = min(2*t.pause, longestPause)
	return nil
}

// answerLost tells whether a request may have been carried out though no answer of the server's came back.
func answerLost(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || isUnsent(err) {
		return false
	}
	switch e.HTTP {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		// From us only when the way to the edge broke, or from something on the way. A sandbox that died has.
		return !slices.Contains([]api.Code{
			api.CodeSandboxDied, api.CodeNoCapacity, api.CodeNotStarted, api.CodePauseFailed, api.CodeResumeFailed,
		}, e.Code)
	}
	return false
}

// keyed sends a POST request under a key until its answer has come back whole; without a key when a repeat is harmless.
func (c *Client) keyed(ctx context.Context, path, key string, body, out any) error {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return api.Errorf(api.CodeInvalid, "encode request: %v", err)
		}
	}
	t := tries{keyed: true, method: http.MethodPost}
	for {
		err := c.keyedOnce(ctx, path, key, raw, out)
		if err == nil {
			return nil
		}
		if err := t.again(ctx, err); err != nil {
			return err
		}
	}
}

func (c *Client) keyedOnce(ctx context.Context, path, key string, body []byte, out any) error {
	req, err := c.request(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set(headerKey, key)
	}
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // a read error of what matters has been reported
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return c.broken(ctx, http.MethodPost, path, err)
	}
	return nil
}

// execKeyed runs a command under a key, and asks again for an answer that is lost.
func (s *Sandbox) execKeyed(ctx context.Context, cmd Cmd, start aether.ExecStart) (*Result, error) {
	var input []byte
	if cmd.Stdin != nil {
		var err error
		if input, err = io.ReadAll(io.LimitReader(cmd.Stdin, keyedInput+1)); err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		if len(input) > keyedInput {
			return nil, api.FieldError(api.CodeTooLarge, "stdin", "send it to a file first", "a command under a key can have %d bytes of input", keyedInput)
		}
	}
	t := tries{keyed: true, method: http.MethodPost}
	for {
		var stdin *source
		if cmd.Stdin != nil {
			stdin = &source{r: bytes.NewReader(input), whole: true}
		}
		_, res, err := s.execOnce(ctx, s.openExec(start, cmd.Key), stdin)
		if err == nil || context.Cause(ctx) != nil {
			return res, err
		}
		if err := t.again(ctx, err); err != nil {
			return res, err
		}
	}
}

// killed ends a command under a key, which goes on when its caller just leaves.
func killed(ctx context.Context, stream *aether.Stream) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
	defer cancel()
	const sigkill = 9
	m := aether.Signal{Signal: sigkill, Tree: true}
	if stream.Send(ctx, aether.MsgSignal, m.AppendTo(nil)) != nil {
		return
	}
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			return
		}
		over := f.Channel == aether.Message && f.Type == aether.MsgExited
		f.Release()
		if over {
			return
		}
	}
}

// startKeyed starts a process under a key. One that an earlier try has started is attached to.
func (s *Sandbox) startKeyed(ctx context.Context, o aether.Open, stdin bool) (*aether.Stream, aether.Started, error) {
	t := tries{keyed: true, method: http.MethodPost}
	for {
		stream, began, replayed, err := s.beginOnce(ctx, o)
		if err == nil && replayed && stdin {
			stream.Reset(nil) // without the input
			m := aether.Attach{ID: began.ID, Stdin: true}
			stream, began, _, err = s.beginOnce(ctx, aether.Open{Method: "attach", Sandbox: s.id, Body: m.AppendTo(nil)})
		}
		if err == nil {
			return stream, began, nil
		}
		if err := t.again(ctx, err); err != nil {
			return nil, began, err
		}
	}
}
