package files

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/api"
)

// codes are the errors of the kernel that say something about a file or what was asked for.
func codes() map[unix.Errno]api.Code {
	return map[unix.Errno]api.Code{
		unix.ENOENT: api.CodeFileNotFound, unix.ENOTDIR: api.CodeNotDirectory, unix.EISDIR: api.CodeIsDirectory,
		unix.EEXIST: api.CodeExists, unix.ENOTEMPTY: api.CodeNotEmpty, unix.EACCES: api.CodePermissionDenied,
		unix.EPERM: api.CodePermissionDenied, unix.EROFS: api.CodePermissionDenied, unix.ENOSPC: api.CodeDiskFull,
		unix.EDQUOT: api.CodeDiskFull, unix.EFBIG: api.CodeTooLarge, unix.ENAMETOOLONG: api.CodeInvalid,
		unix.EINVAL: api.CodeInvalid, unix.EILSEQ: api.CodeInvalid, unix.ELOOP: api.CodeLinkLoop,
		unix.ENXIO: api.CodeNotRegular, unix.ENODEV: api.CodeNotRegular, unix.EIO: api.CodeNotRegular,
		unix.EBUSY: api.CodeConflict, unix.EXDEV: api.CodeConflict, unix.ETXTBSY: api.CodeConflict,
		unix.EMFILE: api.CodeNoCapacity, unix.ENFILE: api.CodeNoCapacity, unix.ENOMEM: api.CodeNoCapacity,
		unix.EMLINK: api.CodeTooLarge,
	}
}

// fault is what the kernel said about doing something with a file.
func fault(doing string, path []byte, err error) error {
	no, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return api.Errorf(api.CodeInternal, "%s %s: %v", doing, shown(path), err)
	}
	code, ok := codes()[no]
	if !ok {
		code = api.CodeInternal
	}
	e := api.FieldError(code, "path", "", "%s %s: %v", doing, shown(path), no)
	if code == api.CodeNoCapacity {
		e.RetryMS = 500
	}
	return e
}

// shown is a path as an error names it.
func shown(path []byte) string {
	const most = 200
	s := string(path)
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
