package container

import (
	"os"
	"syscall"
)

func unixStat(st os.FileInfo) (*syscall.Stat_t, bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return sys, ok
}
