// Package aether is DSec's wire protocol: frames with two checksums, streams multiplexed over one connection, credits
// per stream and channel, and the messages of exec and its relatives. docs/aether.md describes it for other languages.
//
// A [Conn] runs over any byte stream. It owns two goroutines, a reader and a writer; a [Stream] owns none. The reader
// never waits for a stream's user: what a peer may send ahead is bounded by credit (data) or by count and size
// (messages), and a peer that breaks a bound loses its stream, or its connection where the frame header is at fault.
// Nothing a peer sends makes this package panic or allocate more than those bounds.
//
// What is promised: order within a stream; every payload byte checked end to end by CRC-32C; one slow stream never
// stops another. What isn't: order between streams, and delivery of anything after [Stream.Reset].
//
// All methods are safe for concurrent use. Locks: Conn.mu (streams), Conn.wmu (everything that waits to be written) and
// Stream.mu (everything received); none is taken while another is held, but Conn.wmu inside Conn.mu.
package aether
