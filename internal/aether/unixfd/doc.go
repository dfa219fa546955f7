// Package unixfd is a Unix socket transport on raw descriptors: no package net, one recvmsg per read so that every received
// descriptor is close-on-exec from the start, and descriptors passed along with writes.
//
// A Conn may be read by one goroutine and written by one other at a time; Close may be called by anybody. Received
// descriptors wait in order of arrival until they are taken and are closed with the Conn. Linux only; elsewhere everything
// returns [errors.ErrUnsupported].
package unixfd

import "errors"

// What can go wrong with descriptors. Each ends the connection.
var (
	ErrTooManyFDs = errors.New("more descriptors received than allowed")
	ErrLowFD      = errors.New("received descriptor in the reserved range") // it is left where it is: closing it would make the hole wider
	ErrNoFDs      = errors.New("announced descriptors did not come")
	ErrPathLength = errors.New("socket path too long")
)

// Options of a connection.
type Options struct {
	MaxFDs int // descriptors that may wait to be taken, at most 128; 0: the kernel drops all that come
	MinFD  int // the lowest number that a received or duplicated descriptor may have
}
