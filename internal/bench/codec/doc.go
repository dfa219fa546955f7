// Package codec measures the Aether protocol's codec by itself: real connections of package aether, with memory in the
// place of sockets. A [Tape] is what a real client said to a real server; a [Line] has a connection encode, decode or
// relay frames like those on it.
//
// The memory behaves as a socket does at its cheapest: what is read is copied once, what is written isn't copied. So a
// figure has in it one pass for the checksum of a frame's payload, one copy of it, its header with the header's checksum,
// the flow control, and the switches between goroutines.
package codec
