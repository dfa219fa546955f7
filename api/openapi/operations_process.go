package openapi

import "github.com/dsec-io/dsec/api"

func processOperations() []Operation {
	const all = sandboxPath + "/processes"
	const one = all + "/{pid}"
	noProcess := []api.Code{api.CodeNoSuchProcess}
	lines := Media{Type: mediaLines, Of: api.StreamEvent{}, Lines: true}
	return []Operation{
		{
			ID: "exec", Method: "POST", Path: sandboxPath + "/exec", Tag: "commands", Summary: "Run a command and wait for its end",
			Description: "How a command ended is data in the answer, never an HTTP error: an HTTP error says that it provably didn't start (422), or that DSec failed. " +
				"Once it has started the answer is 200 with what there is; what of ours failed is told in `infra_error`. A client that leaves cancels the whole tree.",
			Body: jsonOf(api.ExecRequest{}), Answers: answers(200, api.ExecResult{}, "the command started, and this is how it ended"),
			Codes: codes(everywhere(), withBody(), inSandbox(), ofStart()),
		},
		{
			ID: "startProcess", Method: "POST", Path: all, Tag: "processes", Summary: "Start a process",
			Description: "It goes on when the request has ended; its output is kept and can be read from any offset. With `stream`, or `Accept: application/x-ndjson`, the answer is its stream from the first byte, and the process outlives the stream.",
			Params:      []Param{flag("stream", "answer with its output as it comes")},
			Body:        jsonOf(api.StartRequest{}),
			Answers: []Answer{
				{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.Process{})},
				{Status: 200, Content: Content{Description: "its stream, where asked for", Media: []Media{lines}}},
			},
			Codes: codes(everywhere(), withBody(), inSandbox(), ofStart()),
		},
		{
			ID: "listProcesses", Method: "GET", Path: all, Tag: "processes", Summary: "List processes",
			Description: "Those that were started by this interface and are still known, running or not.",
			Answers:     answers(200, []api.Process{}, ""), Codes: codes(everywhere(), inSandbox()),
		},
		{
			ID: "getProcess", Method: "GET", Path: one, Tag: "processes", Summary: "Look at a process",
			Answers: answers(200, api.Process{}, ""), Codes: codes(everywhere(), inSandbox(), noProcess),
		},
		{
			ID: "attachProcess", Method: "GET", Path: one + "/attach", Tag: "processes", Summary: "Follow a process's output",
			Description: "From the given offsets to its end, one `StreamEvent` a line. What isn't kept any more is told as a `gap`. " +
				"An upgrade to a WebSocket gives the same events as text messages, and takes `ProcessInput` messages: a message that can't be carried out is answered with an `error` event, and the connection goes on. " +
				"The close code is 1000 after the process's end.",
			Params: []Param{number("stdout_offset", "from this byte of stdout", 0), number("stderr_offset", "from this byte of stderr", 0)},
			Answers: []Answer{
				{Status: 200, Content: Content{Media: []Media{lines}}},
				{Status: 101, Content: Content{Description: "a WebSocket, where asked for: `StreamEvent` out, `ProcessInput` in"}},
			},
			Codes: codes(everywhere(), inSandbox(), noProcess),
		},
		{
			ID: "writeStdin", Method: "POST", Path: one + "/stdin", Tag: "processes", Summary: "Write to a process",
			Description: "The body, of any type and length, is written as it comes and in order. The answer is there when the process's side has it all.",
			Params:      []Param{flag("close", "end its input after the body")},
			Body:        &Content{Optional: true, Media: []Media{{Type: mediaBytes}}},
			Answers:     answers(200, api.Written{}, ""),
			Codes:       codes(everywhere(), inSandbox(), noProcess, []api.Code{api.CodeUnsupportedConstraint, api.CodeConflict}),
		},
		{
			ID: "signalProcess", Method: "POST", Path: one + "/signal", Tag: "processes", Summary: "Signal a process",
			Body: jsonOf(api.SignalRequest{}), Answers: nothing("sent"),
			Codes: codes(everywhere(), withBody(), inSandbox(), noProcess, []api.Code{api.CodeUnsupportedConstraint}),
		},
		{
			ID: "resizeProcess", Method: "POST", Path: one + "/resize", Tag: "processes", Summary: "Resize a process's terminal",
			Body: jsonOf(api.Size{}), Answers: nothing("done"),
			Codes: codes(everywhere(), withBody(), inSandbox(), noProcess, []api.Code{api.CodeUnsupportedConstraint, api.CodeConflict}),
		},
		{
			ID: "killProcess", Method: "DELETE", Path: one, Tag: "processes", Summary: "Kill a process with all it started",
			Answers: nothing("it has been killed"), Codes: codes(everywhere(), inSandbox(), noProcess),
		},
	}
}
