package openapi

import "github.com/dsec-io/dsec/api"

func fileOperations() []Operation {
	const path = sandboxPath + "/files"
	file := needed(text("path", "an absolute path of any bytes but NUL, percent-encoded; `+` means a space"))
	user := text("user", "who does it: a name, uid, `name:group` or `uid:gid`; default: the sandbox's user")
	mode := Param{Name: "mode", In: "query", Description: "permission bits, octal", Schema: &Schema{Type: "string", Pattern: "^[0-7]{1,5}$"}}
	most := number("max_bytes", "refuse a file of more bytes", 1)
	noFollow := flag("no_follow", "of a symlink itself")
	errs := codes(everywhere(), inSandbox(), ofFiles())
	return []Operation{
		{
			ID: "readFile", Method: "GET", Path: path, Tag: "files", Summary: "Read a file, list a directory, look at either, pack or watch it",
			Description: "Without `stat`, `list` and `tar` the answer is the content of a regular file. An answer that can't be finished is broken off, never cut short in silence. HEAD of a regular file answers with the headers of its content, else as `stat` does. " +
				"With `watch` the answer is what happens to the file or directory from then on, one `FileEvent` a line (an empty line is a sign of life), or server-sent events where asked for.",
			Params: []Param{
				file, user, most, header("Range", "one range of bytes: `bytes=FROM-TO`, `bytes=FROM-` or `bytes=-LAST`"),
				flag("stat", "a document about the file"), noFollow, flag("digest", "with `stat`: the content's SHA-256"),
				flag("list", "a document a line about each file of the directory, in its own order"), flag("tar", "the file or tree as a tar; names are relative to the path"),
				flag("watch", "what happens to it, as it happens"), flag("recursive", "with `watch`: everything below, too"),
			},
			Answers: []Answer{
				{Status: 200, Headers: []string{"Accept-Ranges", "Last-Modified"}, Content: Content{Media: []Media{
					{Type: mediaBytes}, {Type: mediaJSON, Of: api.FileInfo{}}, {Type: mediaLines, Of: oneOf{api.FileInfo{}, api.FileEvent{}}, Lines: true}, {Type: mediaTar}, {Type: mediaSSE},
				}}},
				{Status: 206, Headers: []string{"Content-Range"}, Content: Content{Description: "the range that was asked for", Media: []Media{{Type: mediaBytes}}}},
			},
			Codes: codes(errs, []api.Code{api.CodeIsDirectory, api.CodeNotRegular, api.CodeTooLarge, api.CodeRange, api.CodeQuota, api.CodeConflict}),
		},
		{
			ID: "writeFile", Method: "PUT", Path: path, Tag: "files", Summary: "Write a file, or unpack a tar into a directory",
			Description: "The body goes to a file beside the old one, which takes its place when it is complete: a reader sees the old content or the new, and a broken upload changes nothing. A file that is replaced keeps its mode. " +
				"With `tar` the body is unpacked into the directory, which is made where it is missing; after an error that and the entries before it stay.",
			Params: []Param{
				file, user, mode, most, flag("parents", "make missing directories"), flag("no_replace", "refuse where the path exists"),
				flag("sync", "on the disk before the answer"), flag("tar", "the body is a tar"),
			},
			Body: &Content{Optional: true, Media: []Media{{Type: mediaBytes}, {Type: mediaTar}}},
			Answers: []Answer{{Status: 200, Content: Content{
				Description: "the file as it is now; with `tar`, how much was unpacked", Media: []Media{{Type: mediaJSON, Of: oneOf{api.FileInfo{}, api.Unpacked{}}}},
			}}},
			Codes: codes(errs, []api.Code{api.CodeExists, api.CodeIsDirectory, api.CodeNotRegular, api.CodeTooLarge, api.CodeDiskFull, api.CodeConflict}),
		},
		{
			ID: "changeFile", Method: "POST", Path: path, Tag: "files", Summary: "Make a directory or link, move, change mode or owner",
			Params: []Param{
				file, user,
				needed(Param{Name: "op", In: "query", Description: "what to do", Schema: &Schema{Type: "string", Enum: words("mkdir", "rename", "chmod", "chown", "symlink")}}),
				text("to", "rename: the new path; symlink: what it points at"), mode,
				{Name: "uid", In: "query", Description: "chown", Schema: &Schema{Type: "integer", Minimum: new(0.0), Maximum: new(65535.0)}},
				{Name: "gid", In: "query", Description: "chown", Schema: &Schema{Type: "integer", Minimum: new(0.0), Maximum: new(65535.0)}},
				flag("parents", "mkdir: with missing directories above, and none is an error that is there"), flag("no_replace", "rename: refuse where the new path exists"), noFollow,
			},
			Answers: answers(200, api.FileInfo{}, "the file as it is now"),
			Codes:   codes(errs, []api.Code{api.CodeExists, api.CodeIsDirectory, api.CodeNotEmpty, api.CodeNotRegular, api.CodeDiskFull, api.CodeConflict, api.CodeTooLarge}),
		},
		{
			ID: "removeFile", Method: "DELETE", Path: path, Tag: "files", Summary: "Remove a file",
			Description: "Or an empty directory. A symlink is removed itself. The root, and paths that end in `.` or `..`, are refused.",
			Params:      []Param{file, user, flag("recursive", "with everything below")},
			Answers:     nothing("it is gone"),
			Codes:       codes(errs, []api.Code{api.CodeNotEmpty, api.CodeIsDirectory, api.CodeConflict, api.CodeDiskFull}),
		},
	}
}

func imageOperations() []Operation {
	const all, one = "/v1/images", "/v1/images/{name}"
	noImage := []api.Code{api.CodeNoSuchImage, api.CodeNotFound}
	registry := codes(everywhere(), withBody(), noImage, []api.Code{
		api.CodeConflict, api.CodeDiskFull, api.CodeUnsupportedConstraint, api.CodeNotImplemented, // what the registry says, too
	})
	return []Operation{
		{
			ID: "importImage", Method: "POST", Path: all, Tag: "images", Summary: "Make an image of an archive",
			Description: "The body is a tar of a root file system, an OCI layout or what `docker save` writes; plain, gzip or zstd. With `Accept: application/x-ndjson` the answer is progress, then the image or the error.",
			Params: []Param{
				needed(Param{Name: "name", In: "query", Description: "what it is to be called", Schema: &Schema{Type: "string", Pattern: imagePattern}}),
				{Name: "format", In: "query", Description: "default: found out", Schema: &Schema{Type: "string", Enum: words("rootfs", "oci", "docker")}},
				flag("replace", "take the place of an image of that name; sandboxes that live keep what they started from"),
				flag("squash", "give files of ids above 65,535 to nobody, without setuid, setgid and capabilities"),
			},
			Body: &Content{Media: []Media{{Type: mediaBytes}}},
			Answers: []Answer{
				{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.Image{})},
				{Status: 200, Content: Content{Description: "progress, where asked for", Media: []Media{{Type: mediaLines, Of: api.ImageEvent{}, Lines: true}}}},
			},
			Codes: codes(everywhere(), []api.Code{
				api.CodeConflict, api.CodeExists, api.CodeTooLarge, api.CodeDiskFull, api.CodeUnsupportedConstraint, api.CodeNoCapacity, api.CodeQuota, api.CodeImpossible,
			}),
		},
		{
			ID: "pullImage", Method: "POST", Path: all + "/pull", Tag: "images", Summary: "Fetch an image from a registry",
			Description: "The node fetches it, with the credentials in the body, which are kept nowhere. With `Accept: application/x-ndjson` the answer is progress, then the image or the error.",
			Body:        jsonOf(api.ImagePull{}),
			Answers: []Answer{
				{Status: 201, Headers: []string{"Location"}, Content: *jsonOf(api.Image{})},
				{Status: 200, Content: Content{Description: "it was up to date; or progress, where asked for", Media: []Media{{Type: mediaJSON, Of: api.Image{}}, {Type: mediaLines, Of: api.ImageEvent{}, Lines: true}}}},
			},
			Codes: registry,
		},
		{
			ID: "pushImage", Method: "POST", Path: one + "/push", Tag: "images", Summary: "Send an image to a registry",
			Description: "As one layer. The same image has the same digest, and what the registry has isn't sent again.",
			Body:        jsonOf(api.ImagePush{}),
			Answers: []Answer{
				{Status: 200, Content: Content{Description: "what was pushed; or progress, where asked for", Media: []Media{{Type: mediaJSON, Of: api.ImagePushed{}}, {Type: mediaLines, Of: api.ImageEvent{}, Lines: true}}}},
			},
			Codes: registry,
		},
		{
			ID: "listImages", Method: "GET", Path: all, Tag: "images", Summary: "List images", Answers: answers(200, api.ImageList{}, "by name"), Codes: everywhere(),
		},
		{
			ID: "getImage", Method: "GET", Path: one, Tag: "images", Summary: "Look at an image", Answers: answers(200, api.Image{}, ""), Codes: codes(everywhere(), noImage),
		},
		{
			ID: "removeImage", Method: "DELETE", Path: one, Tag: "images", Summary: "Remove an image",
			Description: "Images of the machine belong to every instance on it and can't be removed here.",
			Params:      []Param{flag("force", "although sandboxes live that were made from it: they go on")},
			Answers:     answers(200, api.ImageRemoved{}, ""), Codes: codes(everywhere(), noImage, []api.Code{api.CodeConflict}),
		},
		{
			ID: "collectImages", Method: "POST", Path: all + "/gc", Tag: "images", Summary: "Remove what nothing needs",
			Description: "What imports that broke off have left.", Params: []Param{flag("all", "also images that no living sandbox was made from")},
			Answers: answers(200, api.ImageRemoved{}, ""), Codes: codes(everywhere(), []api.Code{api.CodeConflict, api.CodeUnsupportedConstraint}),
		},
		{
			ID: "exportImage", Method: "GET", Path: one + "/export", Tag: "images", Summary: "An image's tree as a tar",
			Description: "Importing it gives the same image again.",
			Answers:     []Answer{{Status: 200, Content: Content{Media: []Media{{Type: mediaTar}}}}}, Codes: codes(everywhere(), noImage, []api.Code{api.CodeConflict}),
		},
	}
}
