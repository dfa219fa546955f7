package fault

// Points lists every point, in the order in which a life meets them. What begins with a file's kind ("record", "events",
// "log", "keys") is an operation on such files; the rest are steps of the container backend and the edge.
func Points() []string {
	return []string{
		// Records of sandboxes.
		"record:write", "record:append", "record:rename", "record:sync", "record:remove-tmp", "record:remove", "orphan:remove",
		// Events of a sandbox.
		"events:append", "events:write", "events:rename", "events:remove-tmp", "events:remove",
		// The log of an ended sandbox.
		"log:write", "log:rename", "log:remove-tmp", "log:remove",
		// Idempotency keys.
		"keys:append", "keys:result", "keys:result-remove", "keys:remove",
		// A shard's start.
		"shard:owner", "shard:groups", "shard:process", "shard:connect",
		// A create, in order. "made" comes after the backend's part, "command" before the start process.
		"create:image", "create:range", "create:userns", "create:upper", "create:lower", "create:identify", "create:overlay",
		"create:name", "create:groups", "create:join", "create:init", "create:pidfd", "create:identity", "box:watch",
		"create:announce", "create:announced", "create:made", "create:command",
		// A sandbox that was made ahead.
		"ready:hand",
		// A pause, before anything is frozen, and a resume, before anything is thawed.
		"pause:freeze", "resume:thaw",
		// A change of limits.
		"limits:set",
		// The end of a sandbox, or of one that was half made.
		"end:kill", "end:groups", "end:upper", "end:files", "clean:groups",
		// Adoption by the next edge.
		"adopt:shard", "adopt:groups", "adopt:announce",
	}
}
