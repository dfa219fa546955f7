// Package ports is the HTTP proxy to programs that listen inside sandboxes: ANY /v1/sandboxes/{id}/ports/{port}/….
//
// It runs tenant content on the API's own origin, so nothing of the API's may reach a program, and nothing of a program's
// may act on the API's origin. Towards the program go the request's path, query, headers and body as they came, but for
// the API's token, cookies and headers, and what concerns one hop only. Back come status, headers, body and trailers as the
// program sent them, but for what a browser would keep for, or apply to, the whole origin; every answer is sandboxed.
//
// Every request dials anew, so that the edge authorises each by itself and no connection is handed from one to another.
// Bytes are passed on as they come, both ways at once, in constant memory. Redirects are passed on, never followed.
//
// A [Proxy] is safe for concurrent use. It has no locks that a caller can see.
package ports
