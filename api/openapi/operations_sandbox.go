package openapi

import "github.com/dsec-io/dsec/api"

const sandboxPath = "/v1/sandboxes/{id}"

func sandboxOperations() []Operation {
	return []Operation{
		{
			ID: "createSandbox", Method: "POST", Path: "/v1/sandboxes", Tag: "sandboxes", Summary: "Make a sandbox",
			Description: "It answers commands when the answer is there. What the body leaves out has a default, which the answer shows in `spec`. " +
				"A constraint that can't be enforced here is refused with `unsupported_constraint` and never dropped.",
			Body:    jsonOf(api.Spec{}),
			Answers: []Answer{{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.Sandbox{})}},
			Codes: codes(everywhere(), withBody(), []api.Code{
				api.CodeNoSuchImage, api.CodeUnsupportedConstraint, api.CodeImpossible, api.CodeNoCapacity, api.CodeQuota, api.CodeNotStarted, api.CodeDiskFull,
				api.CodeCommandNotFound, api.CodeCommandNotExecutable, api.CodeWorkdirNotFound, api.CodeNoSuchUser, api.CodeNoShell, api.CodeConflict, api.CodeNotFound,
				api.CodeSandboxDied,
			}),
		},
		{
			ID: "listSandboxes", Method: "GET", Path: "/v1/sandboxes", Tag: "sandboxes", Summary: "List sandboxes",
			Description: "Newest first, ended ones too for an hour. While `cursor` is in an answer, there is more.",
			Params: []Param{
				{Name: "label", In: "query", Description: "`KEY=VALUE`: only those with this label; of several, all must fit", Schema: &Schema{Type: "string", Pattern: "^[^=]+="}, Repeats: true},
				{Name: "state", In: "query", Description: "only those in this state", Schema: &Schema{Type: "string", Enum: rules()["State"].enum}},
				{Name: "limit", In: "query", Description: "at most so many", Schema: &Schema{Type: "integer", Minimum: new(1.0), Maximum: new(1000.0)}},
				text("cursor", "of the answer before: the next page"),
			},
			Answers: answers(200, api.SandboxList{}, ""), Codes: everywhere(),
		},
		{
			ID: "getSandbox", Method: "GET", Path: sandboxPath, Tag: "sandboxes", Summary: "Look at a sandbox",
			Description: "Also for an hour after its end. Reading wakes nothing.",
			Answers:     answers(200, api.Sandbox{}, ""), Codes: codes(everywhere(), ofSandbox()),
		},
		{
			ID: "patchSandbox", Method: "PATCH", Path: sandboxPath, Tag: "sandboxes", Summary: "Change a sandbox",
			Description: "A map that is given takes the place of the old one. A paused sandbox is changed without waking it.",
			Body:        jsonOf(api.Patch{}), Answers: answers(200, api.Sandbox{}, "the sandbox as it is now"),
			Codes: codes(everywhere(), withBody(), inSandbox(), []api.Code{
				api.CodeUnsupportedConstraint, api.CodeImpossible, api.CodeNoCapacity, api.CodeQuota, api.CodeConflict, api.CodeDiskFull,
			}),
		},
		{
			ID: "stopSandbox", Method: "DELETE", Path: sandboxPath, Tag: "sandboxes", Summary: "Stop a sandbox",
			Description: "With everything in it. Again: the same answer, with `already`.",
			Answers:     answers(200, api.Sandbox{}, "the sandbox as it ended"), Codes: codes(everywhere(), ofSandbox(), []api.Code{api.CodeWrongState}),
		},
		{
			ID: "extendSandbox", Method: "POST", Path: sandboxPath + "/extend", Tag: "sandboxes", Summary: "Give a sandbox more time",
			Description: "`ttl.running_s` isn't over before so many seconds from now, or from the end of a pause: an end that is later stays. It can't outlast `ttl.max_s`. A paused sandbox stays paused.",
			Body:        jsonOf(api.Extension{}), Answers: answers(200, api.Sandbox{}, "the sandbox, with its new `expires_at`"),
			Codes: codes(everywhere(), withBody(), inSandbox(), []api.Code{api.CodeImpossible, api.CodeDiskFull, api.CodeUnsupportedConstraint}),
		},
		{
			ID: "pauseSandbox", Method: "POST", Path: sandboxPath + "/pause", Tag: "sandboxes", Summary: "Make a sandbox stand still",
			Description: "With all that runs in it, until `resume`, or until a request that needs it: of commands, sessions, files and ports. Looking at it " +
				"(state, processes, logs, events, metrics) wakes nothing. What came less than a second before is answered first. " +
				"`ttl.running_s` and `ttl.idle_s` stand still, too, while `ttl.paused_s` and `ttl.max_s` go on. Again: the same answer, with `already`. " +
				"`pause_failed` says that it goes on as before.",
			Answers: answers(200, api.Sandbox{}, "the sandbox, which is `paused`"),
			Codes:   codes(everywhere(), withBody(), ofSandbox(), []api.Code{api.CodeWrongState, api.CodePauseFailed, api.CodeDiskFull, api.CodeUnsupportedConstraint}),
		},
		{
			ID: "resumeSandbox", Method: "POST", Path: sandboxPath + "/resume", Tag: "sandboxes", Summary: "Let a paused sandbox go on",
			Description: "With what was left of `ttl.running_s`; where nothing was (`on_expire` is `pause`) with all of it. `running_s` in the body gives it at least " +
				"so many seconds, as `extend` does. Again: the same answer, with `already`. `resume_failed` says that it is paused as before.",
			Body:    &Content{Optional: true, Media: []Media{{Type: mediaJSON, Of: api.Resumption{}}}},
			Answers: answers(200, api.Sandbox{}, "the sandbox, which is `running`"),
			Codes: codes(everywhere(), withBody(), ofSandbox(), []api.Code{
				api.CodeWrongState, api.CodeResumeFailed, api.CodeImpossible, api.CodeDiskFull, api.CodeUnsupportedConstraint,
			}),
		},
	}
}

func observingOperations() []Operation {
	return []Operation{
		{
			ID: "getUsage", Method: "GET", Path: sandboxPath + "/metrics", Tag: "observing", Summary: "What a sandbox uses",
			Answers: answers(200, api.Usage{}, ""), Codes: codes(everywhere(), inSandbox()),
		},
		{
			ID: "listEvents", Method: "GET", Path: sandboxPath + "/events", Tag: "observing", Summary: "What happened to a sandbox",
			Description: "One event a line; with `follow` the answer goes on until the sandbox's last event. With `Accept: text/event-stream` they come as " +
				"server-sent events whose id is `seq`, so that a browser which comes back goes on where it was. Events that are no longer kept are told as one of type `gap`.",
			Params: []Param{
				flag("follow", "go on as events happen"), number("since", "only events after this `seq`", 0),
				header("Last-Event-ID", "with server-sent events: as `since`"),
			},
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaLines, Of: api.Event{}, Lines: true}, {Type: mediaSSE}}}}},
			Codes:   codes(everywhere(), ofSandbox()),
		},
		{
			ID: "readLogs", Method: "GET", Path: sandboxPath + "/logs", Tag: "observing", Summary: "What the start process wrote",
			Description: "As text, or as events with offsets with `Accept: application/x-ndjson`. Reading wakes nothing, and goes on after the sandbox's end while its record is kept.",
			Params: []Param{
				flag("follow", "go on as it writes"), number("since", "from this byte of stdout", 0), number("since_stderr", "from this byte of stderr", 0),
			},
			Answers: []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaText}, {Type: mediaLines, Of: api.StreamEvent{}, Lines: true}}}}},
			Codes:   codes(everywhere(), inSandbox(), []api.Code{api.CodeNoSuchProcess}),
		},
	}
}

func sessionOperations() []Operation {
	const one = sandboxPath + "/sessions/{sid}"
	return []Operation{
		{
			ID: "createSession", Method: "POST", Path: sandboxPath + "/sessions", Tag: "sessions", Summary: "Open a shell session",
			Description: "A session keeps working directory and variables from command to command. Run one in it with `session` in the exec's body.",
			Body:        &Content{Optional: true, Media: []Media{{Type: mediaJSON, Of: api.SessionRequest{}}}},
			Answers:     answers(201, api.Session{}, ""),
			Codes: codes(everywhere(), withBody(), inSandbox(), []api.Code{
				api.CodeConflict, api.CodeNoSuchUser, api.CodeWorkdirNotFound, api.CodeQuota, api.CodeUnsupportedConstraint,
			}),
		},
		{
			ID: "listSessions", Method: "GET", Path: sandboxPath + "/sessions", Tag: "sessions", Summary: "List a sandbox's sessions",
			Answers: answers(200, []api.Session{}, ""), Codes: codes(everywhere(), inSandbox()),
		},
		{
			ID: "interruptSession", Method: "POST", Path: one + "/interrupt", Tag: "sessions", Summary: "Ctrl-C in a session",
			Description: "Ends the command that the session runs. The session goes on.",
			Answers:     nothing("done"), Codes: codes(everywhere(), inSandbox(), []api.Code{api.CodeNoSuchSession, api.CodeUnsupportedConstraint}),
		},
		{
			ID: "closeSession", Method: "DELETE", Path: one, Tag: "sessions", Summary: "Close a session",
			Answers: nothing("done"), Codes: codes(everywhere(), inSandbox(), []api.Code{api.CodeNoSuchSession}),
		},
	}
}
