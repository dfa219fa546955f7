package container

import "unsafe"

// bytesOf is the memory of words.
func bytesOf(w *[5]uint64) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(w)), len(w)*8) }
