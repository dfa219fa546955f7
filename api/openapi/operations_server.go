package openapi

import (
	"strings"

	"github.com/dsec-io/dsec/api"
)

// portOperations are one operation with every method, because a program in a sandbox may take any.
func portOperations() []Operation {
	var all []Operation
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		op := Operation{
			ID: "port" + method[:1] + strings.ToLower(method[1:]), Method: method, Path: sandboxPath + "/ports/{port}/{path}", Tag: "ports",
			Summary: "Ask a program that listens in a sandbox",
			Description: "Any method, and a WebSocket or any other upgrade. Path (any number of parts, as they are), query, headers and body go to the program, but for our token, cookies and what concerns one hop; " +
				"its answer comes back as it is, but for what a browser would keep for the whole origin: cookies and service workers are dropped, and `Content-Security-Policy: sandbox` is added. Redirects are passed on.",
			Answers: []Answer{{Content: Content{Description: "what the program answers"}}},
			Codes:   codes(everywhere(), inSandbox(), []api.Code{api.CodePortUnreachable, api.CodePortFailed, api.CodeUnsupportedConstraint, api.CodeTooLarge}),
		}
		if method == "POST" || method == "PUT" || method == "PATCH" {
			op.Body = &Content{Optional: true, Media: []Media{{Type: "*/*"}}}
		}
		all = append(all, op)
	}
	return all
}

func serverOperations() []Operation {
	plain := []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaText}}}}}
	public := []api.Code{api.CodeForbidden, api.CodeInternal}
	plainQuery := codes(public, []api.Code{api.CodeInvalid, api.CodeUnknownField})
	return []Operation{
		{
			ID: "upgradeToAether", Method: "GET", Path: "/v1/aether", Tag: "server", Summary: "Switch to the Aether protocol",
			Description: "With `Connection: Upgrade` and `Upgrade: aether` the connection speaks the protocol of docs/aether.md from then on, with the project of the request's token. libdsec and the command line use it.",
			Answers:     []Answer{{Status: 101, Content: Content{Description: "the protocol was switched"}}}, Codes: everywhere(),
		},
		{
			ID: "healthz", Method: "GET", Path: "/healthz", Tag: "server", Summary: "Does the server live?", Public: true, Answers: plain, Codes: public,
		},
		{
			ID: "readyz", Method: "GET", Path: "/readyz", Tag: "server", Summary: "Can requests be served?", Public: true, Answers: plain,
			Codes: codes(public, []api.Code{api.CodeUnavailable}),
		},
		{
			ID: "metrics", Method: "GET", Path: "/metrics", Tag: "server", Summary: "Figures for Prometheus", Public: true,
			Description: "No token is needed on the machine itself; a request that came through a proxy needs one.",
			Answers:     plain, Codes: codes(public, []api.Code{api.CodeUnauthenticated}),
		},
		{
			ID: "openapi", Method: "GET", Path: "/openapi.json", Tag: "server", Summary: "This document", Public: true,
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaJSON, Of: map[string]any{}}}}}}, Codes: plainQuery,
		},
		{
			ID: "docs", Method: "GET", Path: "/docs", Tag: "server", Summary: "This document as a page", Public: true,
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaHTML}}}}}, Codes: plainQuery,
		},
	}
}
