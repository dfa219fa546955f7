// Package iamface is the part of the REST face that is about who may do what: which scope each route and method needs,
// how a request is admitted, what is written into the audit log, and the routes of projects, tokens and the log.
//
// A route or method that no table names is refused to everybody. A Face is safe for concurrent use.
package iamface
