package openapi

import "github.com/dsec-io/dsec/api"

func serverOperations() []Operation {
	plain := []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaText}}}}}
	public := []api.Code{api.CodeForbidden, api.CodeInternal}
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
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaJSON, Of: map[string]any{}}}}}}, Codes: public,
		},
		{
			ID: "docs", Method: "GET", Path: "/docs", Tag: "server", Summary: "This document as a page", Public: true,
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaHTML}}}}}, Codes: public,
		},
	}
}
