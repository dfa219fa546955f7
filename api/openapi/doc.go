// Package openapi describes DSec's REST interface as an OpenAPI 3.1 document.
//
// Types, and what their fields mean, come from package api: shapes by reflection, words from the doc comments, which
// `go generate` copies into this package. What a Go type can't say (enumerations, bounds) is in a table, and so are the
// operations, the codes they fail with, and the examples. Tests hold all of it to what is true: the server's routes, a
// real node's answers to every example, and generated requests.
//
// The document is the same every time; make it once and keep it. Everything here is pure and safe for concurrent use.
package openapi

//go:generate go test -run ^TestGenerated$ -update .
