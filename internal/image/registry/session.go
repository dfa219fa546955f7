package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

const (
	field        = "reference"
	maxRedirects = 5
)

// session talks to one registry for one pull or push.
type session struct {
	ref    reference.Reference
	repo   name.Repository
	base   string // scheme and host
	polite *polite
	client *http.Client
	signed http.RoundTripper
	close  func()
}

// connect finds out how the registry is talked to, and logs in. scopes are what is to be done with which repository.
func (m *Remote) connect(ctx context.Context, ref reference.Reference, access api.RegistryAccess, scopes func(name.Repository) []string) (*session, error) {
	if len(m.cfg.Allow) > 0 && !allowed(m.cfg.Allow, ref.Host) {
		return nil, api.FieldError(api.CodeForbidden, field, "the server's --registry names those that it may talk to", "this server doesn't talk to the registry %s", ref.Host)
	}
	repo, err := ref.Repo(access.Insecure)
	if err != nil {
		return nil, err
	}
	select { // however many images are asked for at once, the registry sees few of us
	case m.asks <- struct{}{}:
		defer func() { <-m.asks }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	base, err := newTransport(ref, access)
	if err != nil {
		return nil, err
	}
	next := &polite{next: base, insecure: access.Insecure, stall: m.cfg.Stall, patience: m.cfg.Patience}
	auth := authn.Anonymous
	if a := access.Auth; a != nil && *a != (api.RegistryAuth{}) {
		auth = authn.FromConfig(authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken})
	}
	s := &session{ref: ref, repo: repo, polite: next, close: base.CloseIdleConnections}
	if s.signed, err = transport.NewWithContext(ctx, repo.Registry, auth, next, scopes(repo)); err != nil {
		s.close()
		return nil, s.explain(err, "")
	}
	// The scheme is put right by the transport, which has found out which it is.
	s.base = repo.Scheme() + "://" + repo.RegistryStr()
	s.client = &http.Client{Transport: s.signed, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("redirected %d times", len(via))
		}
		return nil
	}}
	return s, nil
}

func allowed(list []string, host string) bool {
	return slices.Contains(list, host)
}

// request asks for something of the repository. An answer with another status than those wanted is an error.
func (s *session) request(ctx context.Context, method, path string, header http.Header, want ...int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+"/v2/"+s.ref.Repository+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	if err := transport.CheckError(resp, want...); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// explain makes an error of talking to the registry one that a client understands. what is what was asked for; empty:
// the registry itself. It tells nothing of the addresses that a registry has sent us to, which may hold signatures.
func (s *session) explain(err error, what string) error {
	if _, typed := errors.AsType[*api.Error](err); typed || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	host := s.ref.Host
	told := func(code api.Code, hint, format string, args ...any) error {
		return api.FieldError(code, field, hint, format, args...)
	}
	var authority x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	switch { // before the status: where both TLS and plain HTTP were tried, the latter answers too
	case errors.As(err, &authority):
		return told(api.CodeUnavailable, "give the authority's certificate with --ca-file", "nobody we know vouches for the certificate of %s", host)
	case errors.As(err, &wrongName):
		return told(api.CodeUnavailable, "use the name that its certificate has", "the certificate of %s is for another host", host)
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return s.status(e, what, told)
	}
	switch {
	case errors.Is(err, errPlain), errors.Is(err, http.ErrSchemeMismatch):
		return told(api.CodeUnavailable, "say --insecure to talk to it without encryption", "%s speaks plain HTTP, or sends us to where that is spoken", host)
	case errors.Is(err, errAddress):
		return told(api.CodeForbidden, "", "%s leads to an address that isn't to be reached from here", host)
	}
	return told(api.CodeUnavailable, "see whether the host is right and can be reached from the node", "the registry %s can't be reached: %v", host, withoutURL(err))
}

// status explains an answer of the registry, or of what it has sent us to.
func (s *session) status(e *transport.Error, what string, told func(api.Code, string, string, ...any) error) error {
	host := s.ref.Host
	if what == "" {
		what = s.ref.Repository
	}
	switch e.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return told(api.CodeForbidden, "`docker login "+host+"` where dsec runs; many registries also say so of what isn't there", "%s doesn't let us have %s", host, what)
	case http.StatusNotFound:
		return told(api.CodeNoSuchImage, "see whether repository and tag are spelt right", "%s has no %s", host, what)
	case http.StatusTooManyRequests:
		e := api.FieldError(api.CodeTooMany, field, "try again later; logging in often raises the limit", "%s doesn't take more requests now", host)
		e.RetryMS = s.polite.askedFor().Milliseconds()
		return e
	}
	return told(api.CodeUnavailable, "try again later", "%s answers %d to the request for %s", host, e.StatusCode, what)
}

// withoutURL takes the address out of an error of net/http.
func withoutURL(err error) error {
	for {
		e, ok := errors.AsType[*url.Error](err)
		if !ok || e.Err == nil {
			return err
		}
		err = e.Err
	}
}
