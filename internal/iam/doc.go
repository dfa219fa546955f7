// Package iam decides who may do what: it knows projects and tokens, what a token may do in which project, and the
// requests that are open on a token's behalf.
//
// A decision is a pure function of a token's grants: nothing is allowed that no grant says. Decisions are made on a view
// in memory that follows the store, so authenticating a request costs a hash and a look-up and asks nobody. The view is
// loaded by the first request that needs it: the tokens of the server's own file are known without it.
//
// What [Authority.CreateToken] has answered is on disk. When [Authority.RevokeToken] or [Authority.DeleteProject]
// answers, the view has changed: no request is admitted any more, and those that were open have been cancelled, streams
// on upgraded connections too. Secrets are known only to who was told: what is kept is a hash of at least 128 random bits.
//
// Lock order: Authority.mu, then a leases' mu. All methods are safe for concurrent use.
package iam
