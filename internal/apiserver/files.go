package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

// fileParams are the query parameters of …/files.
func fileParams() []string {
	return []string{
		"path", "user", "to", "op", "mode", "uid", "gid", "max_bytes",
		"list", "stat", "tar", "watch", "digest", "no_follow", "parents", "recursive", "no_replace", "sync",
	}
}

// fileCall is a request about a file, as its query says it.
type fileCall struct {
	s    *Server
	c    *call
	id   string
	q    params
	req  api.FileRequest
	bare bool // HEAD of content
}

func (s *Server) fileCall(c *call, r *http.Request) (*fileCall, error) {
	f := &fileCall{s: s, c: c}
	var err error
	if f.id, err = sandboxID(r); err != nil {
		return nil, err
	}
	if f.q, err = query(r, fileParams()...); err != nil {
		return nil, err
	}
	if f.q.text("path") == "" {
		return nil, api.FieldError(api.CodeInvalid, "path", "give ?path=/…, percent-encoded", "no path is given")
	}
	q, req := f.q, &f.req
	req.Path, req.To, req.User = []byte(q.text("path")), []byte(q.text("to")), q.text("user")
	for name, to := range map[string]*bool{
		"digest": &req.Digest, "no_follow": &req.NoFollow, "parents": &req.Parents,
		"recursive": &req.Recursive, "no_replace": &req.NoReplace, "sync": &req.Sync,
	} {
		if *to, err = q.flag(name); err != nil {
			return nil, err
		}
	}
	if req.MaxBytes, err = q.number("max_bytes", 0, 1, math.MaxInt64); err != nil {
		return nil, err
	}
	if req.UID, err = q.id("uid"); err != nil {
		return nil, err
	}
	if req.GID, err = q.id("gid"); err != nil {
		return nil, err
	}
	if q.values.Has("mode") {
		n, err := strconv.ParseUint(q.text("mode"), 8, 12)
		if err != nil {
			return nil, api.FieldError(api.CodeInvalid, "mode", "octal, as in mode=0644", "%q isn't a mode from 0 to 07777", clip(q.text("mode")))
		}
		req.Mode = new(uint32(n))
	}
	return f, nil
}

// id is a user or group id; nil when absent.
func (p params) id(name string) (*uint32, error) {
	if !p.values.Has(name) {
		return nil, nil //nolint:nilnil // absent
	}
	n, err := p.number(name, 0, 0, math.MaxUint16)
	return new(uint32(n)), err
}

// open opens a stream about the file.
func (f *fileCall) open(ctx context.Context, method string, closed bool) (*aether.Stream, error) {
	body, err := json.Marshal(f.req)
	if err != nil {
		return nil, err
	}
	return f.s.open(ctx, f.c, aether.Open{Method: method, Sandbox: f.id, Body: body, Closed: closed})
}

// describe sets what an answer with a file's whole content says of it.
func (f *fileCall) describe(info api.FileInfo) {
	f.head("application/octet-stream")
	h := f.c.Header()
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.ModTime.Format(http.TimeFormat))
	if info.Size > 0 { // a file of /proc has content and no size
		h.Set("Content-Length", strconv.FormatInt(info.Size, 10))
	}
}

// operate does what has no content and answers with the file as it is then; HEAD of a regular file with what a GET of its
// content would say, its size above all.
func (f *fileCall) operate(r *http.Request, op string) error {
	f.req.Op = op
	body, err := json.Marshal(f.req)
	if err != nil {
		return err
	}
	answer, err := f.s.unary(r.Context(), f.c, aether.Open{Method: "file.op", Sandbox: f.id, Body: body, Closed: true})
	if err != nil {
		return err
	}
	var info api.FileInfo
	if f.bare && json.Unmarshal(answer, &info) == nil && info.Type == api.FileRegular {
		f.describe(info)
		f.c.WriteHeader(http.StatusOK)
		return nil
	}
	return f.c.raw(http.StatusOK, answer)
}

// getFile reads, lists, packs, watches, or looks at a file.
func (s *Server) getFile(c *call, r *http.Request) error {
	f, err := s.fileCall(c, r)
	if err != nil {
		return err
	}
	var list, stat, tar, watch bool
	for name, to := range map[string]*bool{"list": &list, "stat": &stat, "tar": &tar, "watch": &watch} {
		if *to, err = f.q.flag(name); err != nil {
			return err
		}
	}
	switch {
	case stat || r.Method == http.MethodHead:
		f.bare = !stat
		return f.operate(r, api.FileStat)
	case watch:
		return f.watch(r)
	case list:
		return f.output(r, "file.list", mediaNDJSON)
	case tar:
		return f.output(r, "file.tar", "application/x-tar")
	default:
		return f.read(r)
	}
}

// watch answers with what happens to a file or directory, one event a line, or as server-sent events where asked for.
func (f *fileCall) watch(r *http.Request) error {
	body, err := json.Marshal(f.req)
	if err != nil {
		return err
	}
	as := follower{media: mediaNDJSON, convert: plain, ping: []byte("\n"), patient: true}
	if accepts(r, mediaSSE) {
		as.media, as.convert, as.ping = mediaSSE, new(eventLines).convert, []byte(": \n\n")
	}
	return f.s.follow(f.c, r, aether.Open{Method: "file.watch", Sandbox: f.id, Body: body, Closed: true}, as)
}

// output answers with what comes on stdout. What fails before its first byte is a problem.
func (f *fileCall) output(r *http.Request, method, media string) error {
	st, err := f.open(r.Context(), method, true)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	frame, err := first(r.Context(), st)
	if err != nil {
		return err
	}
	f.head(media)
	return f.send(r.Context(), st, &frame)
}

func (f *fileCall) head(media string) {
	h := f.c.Header()
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox") // a tenant's bytes never become a page of ours
}

// send sends stdout's data, beginning with a frame that was received already. An answer that isn't complete is broken off.
func (f *fileCall) send(ctx context.Context, st *aether.Stream, frame *aether.Frame) error {
	for {
		out, end := frame.Channel == aether.Stdout, frame.End
		if out && len(frame.Data) > 0 {
			if _, err := f.c.Write(frame.Data); err != nil {
				frame.Release()
				return nil //nolint:nilerr // the client has gone; there is nobody to tell
			}
		}
		frame.Release()
		if out && end {
			if f.c.status == 0 {
				f.c.WriteHeader(http.StatusOK)
			}
			return nil
		}
		next, err := st.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return api.Errorf(api.CodeUnavailable, "the stream ended before the content did")
		}
		if err != nil {
			return err
		}
		*frame = next
	}
}

// read answers with the content, or the range of it that is asked for.
func (f *fileCall) read(r *http.Request) error {
	want, err := f.wanted(r)
	if err != nil {
		return err
	}
	f.req.Offset, f.req.Length = want.from, want.length
	st, err := f.open(r.Context(), "file.read", true)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	frame, err := first(r.Context(), st)
	if err != nil {
		return err
	}
	var info api.FileInfo
	err = json.Unmarshal(frame.Data, &info)
	frame.Release()
	if err != nil {
		return err
	}
	n := info.Size - want.from
	if want.given && n <= 0 {
		f.c.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(info.Size, 10))
		return api.FieldError(api.CodeRange, "Range", "", "the file has %d bytes, the range begins at %d", info.Size, want.from)
	}
	if want.length > 0 {
		n = min(n, want.length)
	}
	f.describe(info)
	status := http.StatusOK
	if want.given {
		status = http.StatusPartialContent
		h := f.c.Header()
		h.Set("Content-Length", strconv.FormatInt(n, 10))
		h.Set("Content-Range", "bytes "+strconv.FormatInt(want.from, 10)+"-"+strconv.FormatInt(want.from+n-1, 10)+"/"+strconv.FormatInt(info.Size, 10))
	}
	if frame, err = st.Recv(r.Context()); err != nil {
		return err
	}
	f.c.WriteHeader(status)
	return f.send(r.Context(), st, &frame)
}

// wanted is a part of a file.
type wanted struct {
	given        bool
	from, length int64 // 0: to the end
}

// wanted reads the Range header. Several ranges, and what isn't one, mean the whole file, as RFC 9110 allows.
func (f *fileCall) wanted(r *http.Request) (wanted, error) {
	spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	low, high, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash {
		return wanted{}, nil
	}
	last, err := strconv.ParseInt(high, 10, 64)
	if err != nil && high != "" || last < 0 {
		return wanted{}, nil //nolint:nilerr // no range
	}
	if low == "" {
		return f.suffix(r, last)
	}
	from, err := strconv.ParseInt(low, 10, 64)
	switch {
	case err != nil || from < 0 || high != "" && last < from:
		return wanted{}, nil //nolint:nilerr // as above
	case high == "":
		return wanted{given: true, from: from}, nil
	default:
		return wanted{given: true, from: from, length: min(last, math.MaxInt64-1) - from + 1}, nil
	}
}

// suffix is the range of the last n bytes.
func (f *fileCall) suffix(r *http.Request, n int64) (wanted, error) {
	req := f.req
	req.Op = api.FileStat
	body, err := json.Marshal(req)
	if err != nil {
		return wanted{}, err
	}
	answer, err := f.s.unary(r.Context(), f.c, aether.Open{Method: "file.op", Sandbox: f.id, Body: body, Closed: true})
	if err != nil {
		return wanted{}, err
	}
	var info api.FileInfo
	if err := json.Unmarshal(answer, &info); err != nil {
		return wanted{}, err
	}
	if n == 0 {
		return wanted{given: true, from: info.Size}, nil
	}
	return wanted{given: true, from: max(0, info.Size-n)}, nil
}

// uploadChunk is how much of an upload is read at a time: two frames towards the aether.
const uploadChunk = 128 << 10

// putFile writes a file, or unpacks a tar stream into a directory.
func (s *Server) putFile(c *call, r *http.Request) error {
	f, err := s.fileCall(c, r)
	if err != nil {
		return err
	}
	tar, err := f.q.flag("tar")
	if err != nil {
		return err
	}
	method := "file.write"
	if tar {
		method = "file.untar"
	}
	ctx := r.Context()
	st, err := f.open(ctx, method, false)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	chunk := make([]byte, uploadChunk)
	for {
		n, err := r.Body.Read(chunk)
		if n > 0 && st.Write(ctx, aether.Stdin, chunk[:n]) != nil {
			c.after = func() { edgelink.Discard(http.NewResponseController(c.ResponseWriter), r.Body) }
			break // the answer says why
		}
		if errors.Is(err, io.EOF) {
			_ = st.CloseWrite(aether.Stdin) // as above
			break
		}
		if err != nil {
			return api.Errorf(api.CodeInvalid, "the body couldn't be read: %v", err)
		}
	}
	answer, err := first(ctx, st)
	if err != nil {
		return err
	}
	defer answer.Release()
	return c.raw(http.StatusOK, answer.Data)
}

// postFile does what ?op= says.
func (s *Server) postFile(c *call, r *http.Request) error {
	f, err := s.fileCall(c, r)
	if err != nil {
		return err
	}
	switch op := f.q.text("op"); op {
	case api.FileMkdir, api.FileRename, api.FileChmod, api.FileChown, api.FileSymlink:
		return f.operate(r, op)
	default:
		return api.FieldError(api.CodeInvalid, "op", "mkdir, rename, chmod, chown or symlink", "there is no operation %q", clip(op))
	}
}

func (s *Server) deleteFile(c *call, r *http.Request) error {
	f, err := s.fileCall(c, r)
	if err != nil {
		return err
	}
	f.req.Op = api.FileRemove
	body, err := json.Marshal(f.req)
	if err != nil {
		return err
	}
	if _, err := s.unary(r.Context(), c, aether.Open{Method: "file.op", Sandbox: f.id, Body: body, Closed: true}); err != nil {
		return err
	}
	c.WriteHeader(http.StatusNoContent)
	return nil
}
