// Package tunnel makes network connections of aether streams to ports inside sandboxes (method "port.dial").
//
// A [Conn] is what a TCP connection is: deadlines, half-close both ways, and a Close after which what was written is still
// delivered. A failure behind the stream is the [api.Error] that names it, told after all data that came before it.
//
// A [Dialer] is safe for concurrent use, and so is a Conn: one goroutine may read while another writes and others close
// or set deadlines. Locks: Conn.writing and Conn.reading are never held together.
package tunnel
