package libdsec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// MaxReadFile is the most that [Files.ReadFile] takes into memory; larger files are read with [Files.Open].
const MaxReadFile = 256 << 20

// Files are a sandbox's files, as one of its users has them. Names are absolute paths in the sandbox, of any bytes but
// NUL. A symlink at the end of a name is followed, but not by Lstat, Readlink, Rename, Remove and Symlink. Errors are
// typed: [api.CodeFileNotFound], [api.CodePermissionDenied], [api.CodeIsDirectory] and others.
type Files struct {
	sb   *Sandbox
	user string
}

// Files gives access to the sandbox's files as its own user; see [Files.As].
func (s *Sandbox) Files() *Files { return &Files{sb: s} }

// As is the same files as another user has them: a name, uid, name:group or uid:gid.
func (f *Files) As(user string) *Files { return &Files{f.sb, user} }

// WriteOptions say how a file is written. The zero value replaces what is there, keeping its mode.
type WriteOptions struct {
	Mode      *uint32 // permission bits; nil: those of the file that is replaced, else 0644
	Parents   bool    // make missing directories
	NoReplace bool    // refuse when the file exists
	Sync      bool    // on the disk before the answer
}

// ReadOptions choose a part of a file. The zero value is all of it.
type ReadOptions struct {
	Offset int64
	Length int64 // 0: to the end
	Max    int64 // refuse when there is more; 0: no limit
}

func (f *Files) stream(ctx context.Context, method string, r api.FileRequest, closed bool) (*aether.Stream, error) {
	r.User = f.user
	body, err := json.Marshal(r)
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "encode request: %v", err)
	}
	return f.sb.client.open(ctx, aether.Open{Method: method, Sandbox: f.sb.id, Body: body, Closed: closed})
}

// op does what needs no content.
func (f *Files) op(ctx context.Context, r api.FileRequest) (info api.FileInfo, err error) {
	st, err := f.stream(ctx, "file.op", r, true)
	if err != nil {
		return info, err
	}
	defer st.Reset(nil)
	err = f.answer(ctx, st, &info)
	return info, err
}

// answer waits for the reply of a stream.
func (f *Files) answer(ctx context.Context, st *aether.Stream, v any) error {
	for {
		frame, err := st.Recv(ctx)
		if err != nil {
			return f.sb.client.streamError(ctx, err)
		}
		if frame.Channel == aether.Message && frame.Type == aether.MsgReply {
			err = json.Unmarshal(frame.Data, v)
			frame.Release()
			if err != nil {
				return api.Errorf(api.CodeInternal, "the server's answer can't be read: %v", err)
			}
			return nil
		}
		frame.Release()
	}
}

// FileReader is a file's content on its way.
type FileReader struct {
	Info api.FileInfo
	outflow
}

// outflow reads a stream's stdout.
type outflow struct {
	ctx   context.Context //nolint:containedctx // of the one stream it reads
	c     *Client
	st    *aether.Stream
	frame aether.Frame
	rest  []byte
	held  bool
	err   error
}

// Read implements [io.Reader].
func (o *outflow) Read(p []byte) (int, error) {
	for len(o.rest) == 0 {
		o.release()
		if o.err != nil {
			return 0, o.err
		}
		frame, err := o.st.Recv(o.ctx)
		switch {
		case errors.Is(err, io.EOF): // closed before the end of stdout
			o.err = io.ErrUnexpectedEOF
		case err != nil:
			o.err = o.c.streamError(o.ctx, err)
		default:
			o.frame, o.held = frame, true
			if frame.Channel == aether.Stdout {
				o.rest = frame.Data
				if frame.End {
					o.err = io.EOF
				}
			}
		}
	}
	n := copy(p, o.rest)
	o.rest = o.rest[n:]
	return n, nil
}

func (o *outflow) release() {
	if o.held {
		o.frame.Release()
		o.held = false
	}
}

// Close ends the transfer. It never fails.
func (o *outflow) Close() error {
	o.end()
	return nil
}

func (o *outflow) end() {
	o.release()
	o.rest = nil
	if o.err == nil {
		o.err = aether.ErrClosed
	}
	o.st.Reset(nil)
}

func (f *Files) output(ctx context.Context, method string, r api.FileRequest) (outflow, error) {
	st, err := f.stream(ctx, method, r, true)
	return outflow{ctx: ctx, c: f.sb.client, st: st}, err
}

// Open begins to read a regular file. The caller closes the reader.
func (f *Files) Open(ctx context.Context, name string, o ReadOptions) (*FileReader, error) {
	out, err := f.output(ctx, "file.read", api.FileRequest{Path: []byte(name), Offset: o.Offset, Length: o.Length, MaxBytes: o.Max})
	if err != nil {
		return nil, err
	}
	r := &FileReader{outflow: out}
	if err := f.answer(ctx, r.st, &r.Info); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// ReadFile reads a regular file of at most [MaxReadFile] bytes.
func (f *Files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	r, err := f.Open(ctx, name, ReadOptions{Max: MaxReadFile})
	if err != nil {
		return nil, err
	}
	defer r.end()
	b := bytes.NewBuffer(make([]byte, 0, r.Info.Size+bytes.MinRead))
	if _, err := b.ReadFrom(r); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// WriteFile replaces a file as a whole: who reads it sees the old content or the new.
func (f *Files) WriteFile(ctx context.Context, name string, data []byte, o WriteOptions) (api.FileInfo, error) {
	return f.Write(ctx, name, bytes.NewReader(data), o)
}

// Write is [Files.WriteFile] with content from a reader. When that fails the file stays as it was.
func (f *Files) Write(ctx context.Context, name string, r io.Reader, o WriteOptions) (info api.FileInfo, err error) {
	err = f.input(ctx, "file.write", api.FileRequest{
		Path: []byte(name), Mode: o.Mode, Parents: o.Parents, NoReplace: o.NoReplace, Sync: o.Sync,
	}, r, &info)
	return info, err
}

// input sends a reader's content as stdin and waits for the answer.
func (f *Files) input(ctx context.Context, method string, req api.FileRequest, r io.Reader, answer any) error {
	st, err := f.stream(ctx, method, req, false)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	buf := make([]byte, stdinChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 && st.Write(ctx, aether.Stdin, buf[:n]) != nil {
			break // the answer says why
		}
		if errors.Is(err, io.EOF) {
			_ = st.CloseWrite(aether.Stdin) // as above
			break
		}
		if err != nil {
			return err
		}
	}
	return f.answer(ctx, st, answer)
}

// List yields what is in a directory, in the directory's own order. After an error it yields no more, and a list that
// couldn't be finished always ends with an error.
func (f *Files) List(ctx context.Context, name string) iter.Seq2[api.FileInfo, error] {
	return func(yield func(api.FileInfo, error) bool) {
		out, err := f.output(ctx, "file.list", api.FileRequest{Path: []byte(name)})
		if err != nil {
			yield(api.FileInfo{}, err)
			return
		}
		defer out.end()
		for dec := json.NewDecoder(&out); ; {
			var info api.FileInfo
			err := dec.Decode(&info)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// Watch yields what happens to a file, or to a directory and the files in it: first [api.FileReady], from when on nothing is missed in silence,
// last [api.FileGone] when it was removed or moved away. Whoever takes events too slowly meets [api.FileOverflow]. What a
// new directory held when it was found may be told twice. After an error it yields no more, and it ends with one when the
// sandbox does.
func (f *Files) Watch(ctx context.Context, name string) iter.Seq2[api.FileEvent, error] {
	return f.watch(ctx, api.FileRequest{Path: []byte(name)})
}

// WatchTree is [Files.Watch] with all directories below, those that come later too. It follows no links and stays on its
// file system; what it can't watch it tells as [api.FileSkipped].
func (f *Files) WatchTree(ctx context.Context, name string) iter.Seq2[api.FileEvent, error] {
	return f.watch(ctx, api.FileRequest{Path: []byte(name), Recursive: true})
}

func (f *Files) watch(ctx context.Context, r api.FileRequest) iter.Seq2[api.FileEvent, error] {
	return func(yield func(api.FileEvent, error) bool) {
		out, err := f.output(ctx, "file.watch", r)
		if err != nil {
			yield(api.FileEvent{}, err)
			return
		}
		defer out.end()
		for dec := json.NewDecoder(&out); ; {
			var e api.FileEvent
			err := dec.Decode(&e)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil && e.Error != nil {
				err = e.Error
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Tar reads a file, or a directory with everything below it, as a tar stream with names relative to it. The caller closes
// the reader. Sockets and devices are left out.
func (f *Files) Tar(ctx context.Context, name string) (io.ReadCloser, error) {
	out, err := f.output(ctx, "file.tar", api.FileRequest{Path: []byte(name)})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// Untar unpacks a tar stream into a directory, which is made where it is missing, and returns the number of entries.
// What is there already is merged with; no entry leaves the directory or is written through a symlink. What was unpacked
// belongs to the acting user. After an error the entries before it stay, and the error says how many.
func (f *Files) Untar(ctx context.Context, name string, r io.Reader) (int64, error) {
	var done api.Unpacked
	err := f.input(ctx, "file.untar", api.FileRequest{Path: []byte(name)}, r, &done)
	return done.Entries, err
}

// Stat looks at a file.
func (f *Files) Stat(ctx context.Context, name string) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileStat, Path: []byte(name)})
}

// Lstat is [Files.Stat] of a symlink itself.
func (f *Files) Lstat(ctx context.Context, name string) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileStat, Path: []byte(name), NoFollow: true})
}

// Exists tells whether there is such a file, a directory or whatever it is.
func (f *Files) Exists(ctx context.Context, name string) (bool, error) {
	_, err := f.Stat(ctx, name)
	if api.IsCode(err, api.CodeFileNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Digest is the SHA-256 of a regular file's content in hexadecimal digits, computed beside the file.
func (f *Files) Digest(ctx context.Context, name string) (string, error) {
	info, err := f.op(ctx, api.FileRequest{Op: api.FileStat, Path: []byte(name), Digest: true})
	return info.SHA256, err
}

// Mkdir makes a directory. A mode of nil is 0755.
func (f *Files) Mkdir(ctx context.Context, name string, mode *uint32) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileMkdir, Path: []byte(name), Mode: mode})
}

// MkdirAll makes a directory with those above it; one that is there is no error and stays as it is.
func (f *Files) MkdirAll(ctx context.Context, name string, mode *uint32) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileMkdir, Path: []byte(name), Mode: mode, Parents: true})
}

// Rename moves a file or directory, in the place of a file that is there.
func (f *Files) Rename(ctx context.Context, from, to string) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileRename, Path: []byte(from), To: []byte(to)})
}

// Remove removes a file or an empty directory.
func (f *Files) Remove(ctx context.Context, name string) error {
	_, err := f.op(ctx, api.FileRequest{Op: api.FileRemove, Path: []byte(name)})
	return err
}

// RemoveAll removes a file or a directory with everything below it. The root, and what leads there, is refused.
func (f *Files) RemoveAll(ctx context.Context, name string) error {
	_, err := f.op(ctx, api.FileRequest{Op: api.FileRemove, Path: []byte(name), Recursive: true})
	return err
}

// Chmod sets the permission bits.
func (f *Files) Chmod(ctx context.Context, name string, mode uint32) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileChmod, Path: []byte(name), Mode: &mode})
}

// Chown sets owner and group; nil leaves one as it is.
func (f *Files) Chown(ctx context.Context, name string, uid, gid *uint32) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileChown, Path: []byte(name), UID: uid, GID: gid})
}

// Symlink makes a symlink at name that points at target.
func (f *Files) Symlink(ctx context.Context, target, name string) (api.FileInfo, error) {
	return f.op(ctx, api.FileRequest{Op: api.FileSymlink, Path: []byte(name), To: []byte(target)})
}

// Readlink is what a symlink points at.
func (f *Files) Readlink(ctx context.Context, name string) (string, error) {
	info, err := f.Lstat(ctx, name)
	if err == nil && info.Type != api.FileLink {
		err = api.FieldError(api.CodeInvalid, "path", "", "%q is a %s, not a symlink", name, info.Type)
	}
	return info.RawTarget(), err
}
