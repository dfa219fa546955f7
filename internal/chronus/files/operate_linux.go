package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/chronus/launch"
	"github.com/dsec-io/dsec/internal/spawn"
)

// operate does what needs no content, and answers with the file as it is then.
func (v *visitor) operate(ctx context.Context) ([]byte, error) {
	var info api.FileInfo
	var err error
	switch r := &v.req; r.Op {
	case api.FileStat:
		info, err = v.stat()
	case api.FileMkdir:
		info, err = v.mkdir()
	case api.FileChmod, api.FileChown, api.FileSymlink:
		info, err = v.change()
	case api.FileRename:
		info, err = v.rename()
	case api.FileRemove:
		err = v.remove(ctx)
	default:
		err = api.FieldError(api.CodeInvalid, "op", "", "there is no operation %q", shown([]byte(r.Op)))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(info)
}

// stat looks at the file.
func (v *visitor) stat() (api.FileInfo, error) {
	p := v.probes.get()
	defer v.probes.put(p)
	flags := unix.AT_NO_AUTOMOUNT
	if v.req.NoFollow {
		flags |= unix.AT_SYMLINK_NOFOLLOW
	}
	p.readlink = nil
	err := v.visit(func(h *spawn.Script) {
		path := h.Bytes(v.req.Path)
		p.ask(h, atFDCWD, path, flags)
		if v.req.NoFollow {
			p.askLink(h, atFDCWD, path)
		}
	}, func() {})
	if err != nil {
		return api.FileInfo{}, err
	}
	if no := p.stat.Errno(); no != 0 {
		return api.FileInfo{}, fault("stat", v.req.Path, no)
	}
	_, base := split(v.req.Path)
	info := p.info(string(base))
	if info.Type == api.FileLink {
		info.SetTarget(string(p.target()))
	}
	if v.req.Digest {
		info.SHA256, err = v.digest()
	}
	return info, err
}

// digest reads the whole file.
func (v *visitor) digest() (string, error) {
	fd, _, err := v.openRegular()
	if err != nil {
		return "", err
	}
	defer closeFD(fd)
	sum := sha256.New()
	buf := v.chunks.Get().(*[]byte) // the pool holds nothing else
	defer v.chunks.Put(buf)
	for {
		n, err := unix.Read(fd, *buf)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return "", fault("read", v.req.Path, err)
		}
		if n == 0 {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		sum.Write((*buf)[:n])
	}
}

const (
	dirMode  = 0o755
	fileMode = 0o644
)

// makeParents adds steps that make the directories above path that are missing. They are the acting user's because the
// acting user makes them; those that exist stay as they are. It returns the steps, whose errors only matter when what
// comes after them fails.
func makeParents(h *spawn.Script, dir []byte) []*spawn.Step {
	var steps []*spawn.Step
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' || dir[i-1] == '/' {
			continue
		}
		steps = append(steps, h.Call(unix.SYS_MKDIRAT, atFDCWD, h.Bytes(dir[:i]), dirMode).Ignore())
	}
	return steps
}

// blocked is why a directory couldn't be made, 0 when all are there.
func blocked(steps []*spawn.Step) unix.Errno {
	for _, st := range steps {
		if no := st.Errno(); no != 0 && no != unix.EEXIST {
			return no
		}
	}
	return 0
}

func (v *visitor) mkdir() (api.FileInfo, error) {
	r := &v.req
	mode := uintptr(dirMode)
	if r.Mode != nil {
		mode = uintptr(*r.Mode)
	}
	p := v.probes.get()
	defer v.probes.put(p)
	var parents []*spawn.Step
	var made *spawn.Step
	dir, base := split(r.Path)
	err := v.visit(func(h *spawn.Script) {
		if r.Parents {
			parents = makeParents(h, dir)
		}
		path := h.Bytes(r.Path)
		made = h.Call(unix.SYS_MKDIRAT, atFDCWD, path, mode).Ignore()
		p.ask(h, atFDCWD, path, 0)
	}, func() {})
	if err != nil {
		return api.FileInfo{}, err
	}
	no := made.Errno()
	if no == unix.ENOENT && blocked(parents) != 0 {
		no = blocked(parents)
	}
	if no == unix.EEXIST && r.Parents && p.stat.Errno() == 0 {
		no = 0
		if p.st.Mode&unix.S_IFMT != unix.S_IFDIR {
			no = unix.ENOTDIR
		}
	}
	if no != 0 {
		return api.FileInfo{}, fault("make directory", r.Path, no)
	}
	if p.stat.Errno() != 0 {
		return api.FileInfo{}, fault("stat", r.Path, p.stat.Errno())
	}
	return p.info(string(base)), nil
}

// change does what one system call does, and looks at the file then.
func (v *visitor) change() (api.FileInfo, error) {
	r := &v.req
	flags := 0
	if r.NoFollow || r.Op == api.FileSymlink {
		flags = unix.AT_SYMLINK_NOFOLLOW
	}
	if err := v.checkChange(); err != nil {
		return api.FileInfo{}, err
	}
	p := v.probes.get()
	defer v.probes.put(p)
	var step *spawn.Step
	err := v.visit(func(h *spawn.Script) {
		path := h.Bytes(r.Path)
		switch r.Op {
		case api.FileChmod:
			step = h.Call(unix.SYS_FCHMODAT, atFDCWD, path, uintptr(*r.Mode))
		case api.FileChown:
			step = h.Call(unix.SYS_FCHOWNAT, atFDCWD, path, idOr(r.UID), idOr(r.GID), uintptr(flags))
		default:
			step = h.Call(unix.SYS_SYMLINKAT, h.Bytes(r.To), atFDCWD, path)
		}
		step.Ignore()
		p.ask(h, atFDCWD, path, flags)
	}, func() {})
	if err != nil {
		return api.FileInfo{}, err
	}
	if no := step.Errno(); no != 0 {
		return api.FileInfo{}, fault(r.Op, r.Path, no)
	}
	if no := p.stat.Errno(); no != 0 {
		return api.FileInfo{}, fault("stat", r.Path, no)
	}
	_, base := split(r.Path)
	info := p.info(string(base))
	if r.Op == api.FileSymlink {
		info.SetTarget(string(r.To))
	}
	return info, nil
}

// checkChange refuses a change without what it needs.
func (v *visitor) checkChange() error {
	switch r := &v.req; {
	case r.Op == api.FileChmod && r.Mode == nil:
		return api.FieldError(api.CodeInvalid, "mode", "", "no mode is given")
	case r.Op == api.FileChown && r.UID == nil && r.GID == nil:
		return api.FieldError(api.CodeInvalid, "uid", "give uid, gid or both", "no owner is given")
	case r.Op == api.FileSymlink && (len(r.To) == 0 || len(r.To) > maxPath || bytes.IndexByte(r.To, 0) >= 0):
		return api.FieldError(api.CodeInvalid, "to", "", "a symlink can't point at %q", shown(r.To))
	}
	return nil
}

// idOr is an id, or what means "leave it".
func idOr(id *uint32) uintptr {
	if id == nil {
		return uintptr(^uint32(0))
	}
	return uintptr(*id)
}

func (v *visitor) rename() (api.FileInfo, error) {
	r := &v.req
	p := v.probes.get()
	defer v.probes.put(p)
	flags := uintptr(0)
	if r.NoReplace {
		flags = unix.RENAME_NOREPLACE
	}
	var step *spawn.Step
	err := v.visit(func(h *spawn.Script) {
		to := h.Bytes(r.To)
		step = h.Call(unix.SYS_RENAMEAT2, atFDCWD, h.Bytes(r.Path), atFDCWD, to, flags).Ignore()
		p.ask(h, atFDCWD, to, unix.AT_SYMLINK_NOFOLLOW)
	}, func() {})
	if err != nil {
		return api.FileInfo{}, err
	}
	if no := step.Errno(); no != 0 {
		return api.FileInfo{}, fault("rename", r.Path, no)
	}
	if no := p.stat.Errno(); no != 0 {
		return api.FileInfo{}, fault("stat", r.To, no)
	}
	_, base := split(r.To)
	return p.info(string(base)), nil
}

// openRegular opens the file for reading.
func (v *visitor) openRegular() (int, *unix.Stat_t, error) {
	var open *spawn.Step
	fd := -1
	err := v.visit(func(h *spawn.Script) {
		const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | cloexec
		open = h.Call(unix.SYS_OPENAT, atFDCWD, h.Bytes(v.req.Path), flags).Ignore()
	}, func() { fd = launch.Opened(open) })
	if err == nil && open.Errno() != 0 {
		err = fault("open", v.req.Path, open.Errno())
	}
	if err != nil {
		closeFD(fd)
		return -1, nil, err
	}
	st, err := regular(fd, v.req.Path)
	if err != nil {
		closeFD(fd)
		return -1, nil, err
	}
	return fd, st, nil
}

// regular refuses what isn't a regular file.
func regular(fd int, path []byte) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fault("stat", path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return &st, nil
	case unix.S_IFDIR:
		return nil, fault("open", path, unix.EISDIR)
	default:
		return nil, api.FieldError(api.CodeNotRegular, "path", "only regular files can be read and written", "%s is a %s", shown(path), kind(uint16(st.Mode)))
	}
}
