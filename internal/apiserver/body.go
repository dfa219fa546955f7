package apiserver

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/budget"
)

// Bounds on bodies. An exec body may carry its stdin; a create body a large environment.
const (
	largeBody = 16 << 20
	smallBody = 1 << 20
	bodyTime  = 60 * time.Second // to send one

	// maxMemory bounds what large bodies and outputs take at a time; a project gets half of it.
	maxMemory = 1 << 30
)

// decode reads a JSON body of at most limit bytes and decodes it strictly.
func decode[T any](c *call, r *http.Request, d *api.Decoder[T], limit int64) (T, error) {
	var none T
	if err := wantJSON(r); err != nil {
		return none, err
	}
	buf := c.server.buffer()
	defer c.server.recycle(buf)
	if err := readBody(c, r, buf, limit); err != nil {
		return none, err
	}
	return d.Decode(*buf) // copies what it keeps
}

func wantJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	media, _, err := mime.ParseMediaType(given)
	if err != nil || (media != "application/json" && !strings.HasSuffix(media, "+json")) {
		return api.FieldError(api.CodeUnsupportedMedia, "Content-Type", "send Content-Type: application/json; with curl, --json in place of -d", "the body is %q, not JSON", clip(given))
	}
	return nil
}

// readBody fills buf with the whole body.
func readBody(c *call, r *http.Request, buf *[]byte, limit int64) error {
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	if r.ContentLength == 0 {
		return nil
	}
	rc := http.NewResponseController(c.ResponseWriter)
	_ = rc.SetReadDeadline(c.started.Add(bodyTime)) // not supported: no limit
	body := http.MaxBytesReader(c.ResponseWriter, r.Body, limit)
	b := *buf
	for {
		if len(b) == cap(b) {
			grown := min(2*cap(b), int(limit)+1)
			if err := c.take(grown, cap(b)); err != nil {
				return err
			}
			b = append(make([]byte, 0, grown), b...)
		}
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == nil {
			continue
		}
		*buf = b
		if errors.Is(err, io.EOF) {
			_ = rc.SetReadDeadline(time.Time{}) // as above
			return nil
		}
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			return tooLarge(limit)
		}
		return api.Errorf(api.CodeInvalid, "the body couldn't be read: %v", err)
	}
}

// take counts a buffer that grows, until the request is over. What fits the pool is free.
func (c *call) take(grown, from int) error {
	if grown <= keptBuffer {
		return nil
	}
	if c.hold == nil {
		c.hold = c.server.memory.Open(c.principal.Project)
	}
	if c.hold.Grow(int64(grown - from)) {
		return nil
	}
	return noMemory()
}

// noMemory is the refusal of what would have to wait in memory.
func noMemory() error {
	e := budget.Full("the large requests and answers that are under way take all the memory that there is for them")
	e.Hint = "send large data as files, or fewer requests at once"
	return e
}

func tooLarge(limit int64) error {
	e := api.Errorf(api.CodeTooLarge, "the body is over the limit of %d bytes", limit)
	e.Field = "body"
	return e
}

// The buffers that are kept for the next request.
const (
	newBuffer  = 16 << 10
	keptBuffer = 256 << 10 // larger ones are left to the collector, so that one large request doesn't cost memory for ever
)

func (s *Server) buffer() *[]byte {
	if b, ok := s.scratch.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, newBuffer)
	return &b
}

func (s *Server) recycle(b *[]byte) {
	if cap(*b) <= keptBuffer {
		*b = (*b)[:0]
		s.scratch.Put(b)
	}
}
