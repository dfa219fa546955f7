// Package apiserver is DSec's REST face: it authenticates and authorises each request, checks its shape, and turns it
// into streams of the aether protocol to the edge's socket, the only thing it talks to.
//
// It holds no sandbox state. Every answer that isn't a success is a problem document (RFC 9457) whose status follows
// from its code through [api.Code.Status] and nothing else. Data streams through: what a command prints is copied from
// the edge's frames into the response, and a client that doesn't read holds back only its own stream.
//
// Trust: the client is hostile; so are names, bodies and offsets it sends. The edge is trusted to authorise by the
// project that the API server puts into each stream from the verified token, never from anything the client said.
package apiserver
