package openapi

import "github.com/dsec-io/dsec/api"

// What examples have in common.
const (
	sb    = "/v1/sandboxes/{sandbox}"
	lines = "Accept: application/x-ndjson"
	raw   = "Content-Type: application/octet-stream"
)

func save(name string) map[string]string { return map[string]string{name: "id"} }

// requests are the examples without answers. They are run from top to bottom on one node and leave nothing behind.
func requests() []Example {
	var all []Example
	for _, some := range [][]Example{sandboxRequests(), commandRequests(), fileRequests(), imageRequests(), iamRequests(), lastRequests()} {
		all = append(all, some...)
	}
	return all
}

func sandboxRequests() []Example {
	return []Example{
		{Op: "healthz", Name: "alive", Path: "/healthz"},
		{Op: "readyz", Name: "ready", Path: "/readyz"},
		{Op: "listImages", Name: "all", Path: "/v1/images"},
		{Op: "getImage", Name: "of the machine", Path: "/v1/images/busybox"},
		{Op: "getImage", Name: "unknown", Path: "/v1/images/nothing"},

		{Op: "createSandbox", Name: "all defaults", Path: "/v1/sandboxes", Body: `{"image": "busybox"}`, Save: save("plain")},
		{
			Op: "createSandbox", Name: "with limits, labels and a start process", Path: "/v1/sandboxes", Save: save("sandbox"),
			Body: `{"image": "busybox", "resources": {"cpu": 0.5, "memory_mb": 256}, "labels": {"team": "rl"}, "env": {"LANG": "C.UTF-8"}, "ttl": {"running_s": 600, "max_s": 3600}, "command": ["sh", "-c", "echo booted; sleep 600"]}`,
		},
		{Op: "createSandbox", Name: "a field that isn't known", Path: "/v1/sandboxes", Body: `{"image": "busybox", "cpus": 2}`},
		{Op: "createSandbox", Name: "what can't be enforced", Path: "/v1/sandboxes", Body: `{"image": "busybox", "resources": {"disk_mb": 100}}`},
		{Op: "createSandbox", Name: "an image that isn't there", Path: "/v1/sandboxes", Body: `{"image": "nothing"}`},
		{Op: "listSandboxes", Name: "running, with a label", Path: "/v1/sandboxes?state=running&label=team%3Drl&limit=1"},
		{Op: "getSandbox", Name: "running", Path: sb},
		{Op: "getSandbox", Name: "unknown", Path: "/v1/sandboxes/saaaaaaaaaaaaaaaaaaaaa"},
		{Op: "patchSandbox", Name: "more memory", Path: sb, Body: `{"resources": {"memory_mb": 512}}`},
		{Op: "patchSandbox", Name: "other labels", Path: sb, Body: `{"labels": {"team": "rl", "round": "2"}}`},
		{Op: "pauseSandbox", Name: "until something is to be done in it", Path: sb + "/pause"},
		{Op: "resumeSandbox", Name: "with a quarter of an hour at least", Path: sb + "/resume", Body: `{"running_s": 900}`},
		{Op: "extendSandbox", Name: "half an hour from now", Path: sb + "/extend", Body: `{"running_s": 1800}`},
		{Op: "getUsage", Name: "now", Path: sb + "/metrics"},
	}
}

func commandRequests() []Example {
	return []Example{
		{Op: "exec", Name: "a script", Path: sb + "/exec", Body: `{"shell": "echo out; echo err >&2; exit 3"}`},
		{Op: "exec", Name: "with input", Path: sb + "/exec", Body: `{"argv": ["sort"], "stdin": "b\na\n"}`},
		{Op: "exec", Name: "timed out", Path: sb + "/exec", Body: `{"argv": ["sleep", "100"], "timeout_ms": 50}`},
		{Op: "exec", Name: "bytes", Path: sb + "/exec", Body: `{"argv": ["printf", "\\377"]}`},
		{Op: "exec", Name: "with a key", Path: sb + "/exec", Headers: []string{"Idempotency-Key: patch-7f3a"}, Body: `{"shell": "echo x >>/tmp/log; wc -l </tmp/log"}`},
		{Op: "exec", Name: "the same again isn't carried out again", Path: sb + "/exec", Headers: []string{"Idempotency-Key: patch-7f3a"}, Body: `{"shell": "echo x >>/tmp/log; wc -l </tmp/log"}`},
		{Op: "exec", Name: "the key for something else", Path: sb + "/exec", Headers: []string{"Idempotency-Key: patch-7f3a"}, Body: `{"argv": ["true"]}`},
		{Op: "exec", Name: "a command that isn't there", Path: sb + "/exec", Body: `{"argv": ["nothing"]}`},
		{Op: "readLogs", Name: "as text", Path: sb + "/logs"},
		{Op: "readLogs", Name: "as events", Path: sb + "/logs", Headers: []string{lines}},
		{Op: "listEvents", Name: "the first ones", Path: sb + "/events"},
		{Op: "listEvents", Name: "server-sent", Path: sb + "/events?since=3", Headers: []string{"Accept: text/event-stream"}},

		{Op: "startProcess", Name: "with open input", Path: sb + "/processes", Body: `{"argv": ["tr", "a-z", "A-Z"], "stdin_open": true, "tag": "reader"}`, Save: save("process")},
		{Op: "listProcesses", Name: "all", Path: sb + "/processes"},
		{Op: "getProcess", Name: "running", Path: sb + "/processes/{process}"},
		{Op: "writeStdin", Name: "a line, then the end", Path: sb + "/processes/{process}/stdin?close=true", Headers: []string{raw}, Body: "hello\n"},
		{Op: "attachProcess", Name: "from the start", Path: sb + "/processes/{process}/attach"},
		{Op: "startProcess", Name: "its stream", Path: sb + "/processes?stream=true", Body: `{"shell": "echo one"}`},
		{Op: "startProcess", Name: "on a terminal", Path: sb + "/processes", Body: `{"shell": "sleep 600", "tty": {"rows": 24, "cols": 80}}`, Save: save("terminal")},
		{Op: "resizeProcess", Name: "a larger window", Path: sb + "/processes/{terminal}/resize", Body: `{"rows": 50, "cols": 132}`},
		{Op: "signalProcess", Name: "Ctrl-C", Path: sb + "/processes/{terminal}/signal", Body: `{"signal": "SIGINT", "tree": true}`},
		{Op: "killProcess", Name: "at once", Path: sb + "/processes/{terminal}"},
		{Op: "getProcess", Name: "unknown", Path: sb + "/processes/nothing"},

		{Op: "createSession", Name: "with a name", Path: sb + "/sessions", Body: `{"id": "work", "cwd": "/tmp"}`},
		{Op: "exec", Name: "in a session", Path: sb + "/exec", Body: `{"shell": "cd /; export A=1", "session": "work"}`},
		{Op: "listSessions", Name: "all", Path: sb + "/sessions"},
		{Op: "interruptSession", Name: "idle", Path: sb + "/sessions/work/interrupt"},
		{Op: "closeSession", Name: "by name", Path: sb + "/sessions/work"},
	}
}

func fileRequests() []Example {
	return []Example{
		{Op: "writeFile", Name: "with missing directories", Path: sb + "/files?path=/srv/app/main.py&parents=1&mode=0644", Headers: []string{raw}, Body: "print('hello')\n"},
		{Op: "readFile", Name: "the content", Path: sb + "/files?path=/srv/app/main.py"},
		{Op: "readFile", Name: "a range", Path: sb + "/files?path=/srv/app/main.py", Headers: []string{"Range: bytes=0-4"}},
		{Op: "readFile", Name: "a document with digest", Path: sb + "/files?path=/srv/app/main.py&stat=1&digest=1"},
		{Op: "readFile", Name: "a directory", Path: sb + "/files?path=/srv/app&list=1"},
		{Op: "readFile", Name: "not there", Path: sb + "/files?path=/srv/nothing"},
		{Op: "changeFile", Name: "a directory", Path: sb + "/files?path=/srv/data&op=mkdir&mode=0700"},
		{Op: "changeFile", Name: "a symlink", Path: sb + "/files?path=/srv/link&op=symlink&to=app/main.py"},
		{Op: "changeFile", Name: "move", Path: sb + "/files?path=/srv/app/main.py&op=rename&to=/srv/data/main.py"},
		{Op: "changeFile", Name: "owner", Path: sb + "/files?path=/srv/data/main.py&op=chown&uid=1000&gid=1000"},
		{Op: "writeFile", Name: "a tree", Path: sb + "/files?path=/srv/data&tar=1", Headers: []string{"Content-Type: application/x-tar"}, Body: "@tree.tar"},
		{Op: "readFile", Name: "a tree", Path: sb + "/files?path=/srv/data&tar=1"},
		{Op: "removeFile", Name: "a tree", Path: sb + "/files?path=/srv/data&recursive=1"},

		{Op: "portGet", Name: "where nothing listens", Path: sb + "/ports/8000/"},
	}
}

func imageRequests() []Example {
	return []Example{
		{Op: "importImage", Name: "of a root file system", Path: "/v1/images?name=mine", Headers: []string{raw}, Body: "@rootfs.tar"},
		{Op: "importImage", Name: "with progress", Path: "/v1/images?name=mine&replace=1", Headers: []string{raw, lines}, Body: "@rootfs.tar"},
		{Op: "pullImage", Name: "a reference without a host", Path: "/v1/images/pull", Body: `{"reference": "python:3.12"}`},
		{Op: "pullImage", Name: "from where there is no registry", Path: "/v1/images/pull", Body: `{"reference": "127.0.0.1:1/team/app:1.2", "name": "app", "platform": "linux/amd64"}`},
		{Op: "pushImage", Name: "to where there is no registry", Path: "/v1/images/mine/push", Body: `{"reference": "127.0.0.1:1/team/mine:1.2"}`},
		{Op: "exportImage", Name: "as a tar", Path: "/v1/images/mine/export"},
		{Op: "removeImage", Name: "by name", Path: "/v1/images/mine"},
		{Op: "collectImages", Name: "what broke off", Path: "/v1/images/gc"},
	}
}

func iamRequests() []Example {
	return []Example{
		{Op: "whoami", Name: "the node's own token", Path: "/v1/tokens/self"},
		{Op: "createProject", Name: "by name", Path: "/v1/projects", Body: `{"name": "team-a"}`},
		{Op: "listProjects", Name: "all", Path: "/v1/projects"},
		{Op: "getProject", Name: "by name", Path: "/v1/projects/team-a"},
		{
			Op: "createToken", Name: "for a trainer, for a day", Path: "/v1/tokens", Headers: []string{api.HeaderProject + ": team-a"}, Save: save("token"),
			Body: `{"label": "trainer", "role": "developer", "expires_in_s": 86400}`,
		},
		{Op: "createToken", Name: "a scope that isn't known", Path: "/v1/tokens", Body: `{"scopes": ["sandbox:fly"]}`},
		{Op: "listTokens", Name: "of a project", Path: "/v1/tokens", Headers: []string{api.HeaderProject + ": team-a"}},
		{Op: "getToken", Name: "by id", Path: "/v1/tokens/{token}", Headers: []string{api.HeaderProject + ": team-a"}},
		{Op: "getToken", Name: "unknown", Path: "/v1/tokens/aaaaaaaaaa"},
		{Op: "revokeToken", Name: "by id", Path: "/v1/tokens/{token}", Headers: []string{api.HeaderProject + ": team-a"}},
		{Op: "readAudit", Name: "the newest of a project", Path: "/v1/audit?limit=1", Headers: []string{api.HeaderProject + ": team-a"}},
		{Op: "deleteProject", Name: "with what is left in it", Path: "/v1/projects/team-a"},
		{Op: "deleteProject", Name: "the default one", Path: "/v1/projects/default"},
		{Op: "readSandboxAudit", Name: "who made it", Path: sb + "/audit?limit=1"},
	}
}

func lastRequests() []Example {
	return []Example{
		{Op: "stopSandbox", Name: "running", Path: sb},
		{Op: "stopSandbox", Name: "again", Path: sb},
		{Op: "exec", Name: "in one that has ended", Path: sb + "/exec", Body: `{"argv": ["true"]}`},
		{Op: "stopSandbox", Name: "the other one", Path: "/v1/sandboxes/{plain}"},

		{Op: "upgradeToAether", Name: "without an upgrade", Path: "/v1/aether"},
		{Op: "metrics", Name: "all", Path: "/metrics"},
		{Op: "openapi", Name: "all", Path: "/openapi.json"},
		{Op: "docs", Name: "all", Path: "/docs"},
	}
}
