// Package unixfd is a Unix socket transport on raw descriptors: no package net, one recvmsg per read with every received
// descriptor close-on-exec, and descriptors passed along with writes.
package unixfd

// Options of a connection.
type Options struct {
	MaxFDs int // descriptors that may wait to be taken; 0: none are ever received
	MinFD  int // the lowest number a received descriptor may have
}
