package files

import (
	"bytes"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/spawn"
)

// probe is what a helper finds out about one file. Probes come from a pool, because the helper writes to them by
// address: they may not live on a stack, which moves.
type probe struct {
	st   unix.Statx_t
	link [maxPath + 1]byte

	stat, readlink *spawn.Step
}

// probes is where probes come from.
type probes struct{ pool sync.Pool }

func (p *probes) get() *probe {
	if v, ok := p.pool.Get().(*probe); ok {
		return v
	}
	return new(probe)
}

func (p *probes) put(v *probe) { p.pool.Put(v) }

// ask adds steps that find out about path below the directory dir; with links of symlinks themselves.
func (p *probe) ask(h *spawn.Script, dir, path uintptr, flags int) {
	p.stat = h.Call(unix.SYS_STATX, dir, path, uintptr(flags), unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(&p.st))).Ignore()
}

// askLink adds a step that reads a symlink.
func (p *probe) askLink(h *spawn.Script, dir, path uintptr) {
	p.readlink = h.Call(unix.SYS_READLINKAT, dir, path, uintptr(unsafe.Pointer(&p.link)), uintptr(len(p.link))).Ignore()
}

// target is what the symlink points at; empty when it is none.
func (p *probe) target() []byte {
	if p.readlink == nil || p.readlink.Errno() != 0 {
		return nil
	}
	return bytes.Clone(p.link[:min(int(p.readlink.Result()), len(p.link))])
}

// info is what was found out about the file of this name.
func (p *probe) info(name string) api.FileInfo { return describe(name, &p.st) }

func describe(name string, st *unix.Statx_t) api.FileInfo {
	f := api.FileInfo{
		Type: kind(st.Mode), Size: int64(st.Size), Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)).UTC(),
	}
	f.SetName(name)
	return f
}

func kind(mode uint16) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return api.FileRegular
	case unix.S_IFDIR:
		return api.FileDir
	case unix.S_IFLNK:
		return api.FileLink
	case unix.S_IFIFO:
		return api.FileFIFO
	case unix.S_IFSOCK:
		return api.FileSocket
	default:
		return api.FileDevice
	}
}
