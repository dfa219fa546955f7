package iam

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
)

const (
	// secretPrefix lets scanners of repositories and logs find a leaked token.
	secretPrefix = "dsec_"
	idLen        = 10
	// maxSecret bounds what is hashed for a stranger.
	maxSecret = 512
)

type digest = [sha256.Size]byte

// newSecret makes a token: the prefix, its id, and 130 random bits. The id in it tells whose a leaked one is.
func newSecret() (id, secret string) {
	id = strings.ToLower(rand.Text()[:idLen])
	return id, secretPrefix + id + strings.ToLower(rand.Text())
}

// hash is what is kept of a secret. It is random enough that a plain hash can't be turned back.
func hash(secret string) digest { return sha256.Sum256([]byte(secret)) }

// IDOf is the id in what somebody calls a token by: the id, a beginning of it, the beginning of a secret, or, by
// accident, a whole secret, the rest of which goes no further.
func IDOf(given string) string {
	id := strings.TrimPrefix(given, secretPrefix)
	return id[:min(len(id), idLen)]
}

// Redact cuts the secrets out of what a client has called something by: it may have mixed up its arguments.
func Redact(given string) string {
	parts := strings.Split(given, secretPrefix)
	for i := range parts[1:] {
		parts[i+1] = IDOf(parts[i+1])
	}
	return strings.Join(parts, secretPrefix)
}
