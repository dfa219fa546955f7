// Package ports connects streams with TCP ports inside sandboxes, from a process that never enters one.
//
// The socket is made, and begins to connect, in a helper that has joined the sandbox's user and network namespaces and
// taken the ids of the sandbox's user. A socket stays in the network that it was made in, so what a port number means is
// decided by the sandbox's own network stack: neither the host's ports nor another sandbox's can be reached. The helper
// leaves the socket's descriptor here, and bytes flow between it and the stream.
//
// What it promises is what TCP does. Bytes are exact and in order; each direction ends by itself, after its last byte;
// a side that doesn't read makes the other wait, and nothing is dropped or piled up meanwhile: a connection costs at most
// the credit of its stream and no buffer while it is silent. An end that isn't in order is told apart from one that is.
//
// On the stream: the opener's body is the port as a decimal number. [aether.MsgReply] with the address says that the
// connection stands. Stdin are the bytes towards the port, Stdout those from it, and the end of either channel is the
// half-close of that direction. [aether.MsgAck] with Dropped says that the program takes nothing more. A second MsgReply,
// with an [api.Error] as JSON, says why the end that follows isn't an orderly one; it comes after all data, and the data
// is good. An opener that closes its side reads nothing more, as close(2) means it; one that resets it aborts.
//
// A [Server] is safe for concurrent use. Its lock is never held over a system call that waits.
package ports
