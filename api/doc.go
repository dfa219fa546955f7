// Package api is DSec's public vocabulary: what a client may ask for ([Spec], [ExecRequest]), what it is told
// ([Sandbox], [ExecResult], [Event]) and how a request can fail ([Error] with a [Code]).
//
// The types are plain data in the JSON shapes of the REST interface. They carry no behaviour but validation and strict
// decoding; nothing here talks to a network or a kernel. All types are values: share them between goroutines only
// while nobody writes to them.
package api
