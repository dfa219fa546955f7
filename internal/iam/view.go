package iam

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/state"
)

// Keys of the store.
const (
	keys        = "iam/"
	projectKeys = keys + "project/"
	tokenKeys   = keys + "token/"
	usedKeys    = keys + "used/"
)

// record is a token as it is kept: without its secret, and without what changes with time.
type record struct {
	api.Token
	SHA256 string `json:"sha256"`
}

func (r *record) hash() (digest, error) {
	var d digest
	if n, err := hex.Decode(d[:], []byte(r.SHA256)); err != nil || n != sha256.Size {
		return d, fmt.Errorf("token %s has no valid hash", r.ID)
	}
	return d, nil
}

// token is a token of the view. But for used and leases it never changes: a change makes a new one.
type token struct {
	rec      record
	digest   digest
	access   access
	revision int64         // of its key; 0: of the token file
	used     *atomic.Int64 // unix seconds, to the minute; 0: never
	flushed  *atomic.Int64 // what of that is in the store
	leases   *leases
}

func newToken(rec record, revision int64) (*token, error) {
	d, err := rec.hash()
	if err != nil {
		return nil, err
	}
	return &token{
		rec: rec, digest: d, access: compile(rec.Grants), revision: revision,
		used: new(atomic.Int64), flushed: new(atomic.Int64), leases: new(leases),
	}, nil
}

// expired tells whether the token's time is over.
func (t *token) expired(now time.Time) bool {
	return !t.rec.ExpiresAt.IsZero() && !now.Before(t.rec.ExpiresAt)
}

// usedStep is how exactly the last use is known.
const usedStep = 60

// touch remembers a use.
func (t *token) touch(now time.Time) {
	if s := now.Unix(); s-t.used.Load() >= usedStep {
		t.used.Store(s)
	}
}

// public is what may be told of a token.
func (t *token) public(now time.Time) api.Token {
	p := t.rec.Token
	if !p.Bootstrap {
		p.Prefix = secretPrefix + p.ID
	}
	p.Expired = t.expired(now)
	if s := t.used.Load(); s > 0 {
		p.LastUsedAt = time.Unix(s-s%usedStep, 0).UTC()
	}
	return p
}

// projectState is how far a project's life is.
type projectState string

const (
	projectLives    projectState = ""
	projectDeleting projectState = "deleting"
	projectDeleted  projectState = "deleted" // its name rests
)

// projectRecord is a project as it is kept.
type projectRecord struct {
	api.Project
	State     projectState `json:"state,omitempty"`
	DeletedAt time.Time    `json:"deleted_at,omitzero"`
}

// project is a project of the view. But for leases it never changes.
type project struct {
	rec      projectRecord
	revision int64
	leases   *leases
}

// public is what may be told of a project.
func (p *project) public() api.Project {
	out := p.rec.Project
	out.Deleting = p.rec.State == projectDeleting
	return out
}

func errRevoked() *api.Error {
	return api.FieldError(api.CodeUnauthenticated, "Authorization", "ask for a new one", "the token was revoked")
}

func errExpired() *api.Error {
	return api.FieldError(api.CodeUnauthenticated, "Authorization", "ask for a new one", "the token has expired")
}

func errDeleting() *api.Error {
	return api.FieldError(api.CodeConflict, "project", "", "the project is being deleted")
}

// applyLocked takes over one change of the store. What can't be read is left out and told: a token that isn't understood
// isn't accepted.
func (a *Authority) applyLocked(c state.Change) {
	var err error
	switch {
	case strings.HasPrefix(c.Key, tokenKeys):
		err = a.applyTokenLocked(strings.TrimPrefix(c.Key, tokenKeys), c)
	case strings.HasPrefix(c.Key, projectKeys):
		err = a.applyProjectLocked(strings.TrimPrefix(c.Key, projectKeys), c)
	case strings.HasPrefix(c.Key, usedKeys) && !c.Deleted:
		t, s := a.byID[strings.TrimPrefix(c.Key, usedKeys)], int64(0)
		if s, err = strconv.ParseInt(string(c.Value), 10, 64); err == nil && t != nil {
			t.flushed.Store(s)
			t.used.Store(max(t.used.Load(), s))
		}
	}
	if err != nil {
		a.log.Error("a record of the store can't be read", slog.String("key", c.Key), slog.Any("err", err))
	}
}

func (a *Authority) applyTokenLocked(id string, c state.Change) error {
	old := a.byID[id]
	if old != nil && old.rec.Bootstrap {
		return fmt.Errorf("token %s is one of the token file", id)
	}
	if c.Deleted {
		a.forgetLocked(old)
		return nil
	}
	var rec record
	if err := json.Unmarshal(c.Value, &rec); err != nil {
		a.forgetLocked(old)
		return err
	}
	if rec.ID != id {
		return fmt.Errorf("it is the record of %q", rec.ID)
	}
	t, err := newToken(rec, c.Revision)
	if err != nil {
		a.forgetLocked(old)
		return err
	}
	if old != nil {
		t.used, t.flushed, t.leases = old.used, old.flushed, old.leases
		delete(a.byHash, old.digest)
	}
	a.byID[id], a.byHash[t.digest] = t, t
	return nil
}

// forgetLocked ends a token.
func (a *Authority) forgetLocked(t *token) {
	if t == nil {
		return
	}
	delete(a.byID, t.rec.ID)
	delete(a.byHash, t.digest)
	t.leases.end(errRevoked())
}

func (a *Authority) applyProjectLocked(name string, c state.Change) error {
	old := a.projects[name]
	p := &project{revision: c.Revision, leases: new(leases)}
	if old != nil {
		p.leases = old.leases
	}
	if !c.Deleted {
		err := json.Unmarshal(c.Value, &p.rec)
		if err == nil && p.rec.Name != name {
			err = fmt.Errorf("it is the record of %q", p.rec.Name)
		}
		if err != nil {
			p.leases.end(errDeleting())
			delete(a.projects, name)
			return err
		}
	}
	switch {
	case c.Deleted:
		p.leases.end(errDeleting())
		delete(a.projects, name)
		return nil
	case p.rec.State == projectLives:
		p.leases.reopen()
	default:
		p.leases.end(errDeleting())
	}
	a.projects[name] = p
	return nil
}
