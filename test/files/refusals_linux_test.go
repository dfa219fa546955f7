package files

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestCase38TheRest has what the table of internal cases leaves open: every operation with every way to fail that it has.
func TestCase38TheRest(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	testbed.Output(t, sb, "mkdir -p /d/sub /full && echo hello > /f && : > /full/f && mkdir -m 700 /closed && echo x > /closed/f && mkdir /roots && echo x > /roots/f && chmod 600 /roots/f && ln -s loop /loop && mkfifo /fifo")
	before := testbed.Output(t, sb, "find / -xdev | sort | md5sum; cat /f")
	plain := faced{n, sb.ID()}
	whole := packed(t, tar.Header{Name: "entry"}).Bytes()
	all := refusedForFiles()
	maps.Copy(all, refusedForWhatIsAsked())
	for _, code := range slices.Sorted(maps.Keys(all)) {
		for line := range strings.Lines(all[code]) {
			method, query, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok {
				continue
			}
			q, err := url.ParseQuery(strings.ReplaceAll(query, "&as-app", "&user=1000:1000"))
			if err != nil {
				t.Fatal(err)
			}
			status, body := plain.do(t, method, q, bytes.NewReader(whole))
			var e api.Error
			if err := json.Unmarshal(body, &e); err != nil || e.Code != code || e.HTTP != status || status != code.Status() || e.Detail == "" || e.Field == "" {
				t.Errorf("%s ?%s: %d %s; want %d %s", method, query, status, body, code.Status(), code)
			}
		}
	}
	if after := testbed.Output(t, sb, "find / -xdev | sort | md5sum; cat /f"); after != before {
		t.Errorf("the refused requests changed something: %s, then %s", before, after)
	}
}

// refusedForFiles are requests by how they are refused, one a line, for what files there are; &as-app acts as a user
// without rights.
func refusedForFiles() map[api.Code]string {
	return map[api.Code]string{
		api.CodeFileNotFound: `
			GET path=/no&stat=1&digest=1
			GET path=/no/no&list=1
			GET path=/no/no&watch=1
			POST path=/no&op=chown&uid=1
			POST path=/no/l&op=symlink&to=/x
			POST path=/no/no&op=rename&to=/y
			POST path=/no&op=rename&to=/f
			POST path=/d&op=rename&to=/no/y
			DELETE path=/no/no
			DELETE path=/no/no&recursive=1`,
		api.CodeNotDirectory: `
			GET path=/f/x&list=1
			GET path=/f/x&tar=1
			GET path=/f/x&stat=1&digest=1
			GET path=/f/x&watch=1
			GET path=/f/x&stat=1&no_follow=1
			PUT path=/f/x&tar=1
			POST path=/f/d&op=mkdir
			POST path=/f/d/e&op=mkdir&parents=1
			POST path=/f/x&op=rename&to=/y
			POST path=/f&op=rename&to=/f/x
			POST path=/f/x&op=chmod&mode=600
			POST path=/f/x&op=chown&uid=1
			POST path=/f/x&op=symlink&to=/x
			DELETE path=/f/x&recursive=1`,
		api.CodePermissionDenied: `
			GET path=/roots/f&stat=1&digest=1&as-app
			GET path=/roots/f&tar=1&as-app
			GET path=/closed/f&watch=1&as-app
			GET path=/closed/f&list=1&as-app
			PUT path=/roots&tar=1&as-app
			PUT path=/roots/t&tar=1&as-app
			PUT path=/closed/t&tar=1&as-app
			PUT path=/roots/f&as-app
			POST path=/closed/d&op=mkdir&as-app
			POST path=/closed/a/d&op=mkdir&parents=1&as-app
			POST path=/roots/f&op=rename&to=/tmp/x&as-app
			POST path=/closed/f&op=rename&to=/tmp/x&as-app
			POST path=/roots/f&op=rename&to=/roots/x&as-app
			POST path=/closed/f&op=chmod&mode=600&as-app
			POST path=/roots/f&op=chmod&mode=666&as-app
			POST path=/closed/f&op=chown&uid=1000&as-app
			POST path=/roots/l&op=symlink&to=/x&as-app
			DELETE path=/closed/f&as-app
			DELETE path=/closed&recursive=1&as-app`,
		api.CodeExists: `
			PUT path=/d&no_replace=1
			PUT path=/loop&no_replace=1
			POST path=/f&op=mkdir
			POST path=/loop&op=mkdir
			POST path=/d&op=symlink&to=/x
			POST path=/f&op=rename&to=/d&no_replace=1
			POST path=/d&op=rename&to=/full&no_replace=1`,
	}
}

// refusedForWhatIsAsked are those that can't be done to the file that there is.
func refusedForWhatIsAsked() map[api.Code]string {
	return map[api.Code]string{
		api.CodeIsDirectory: `
			PUT path=/d/
			PUT path=/new/
			PUT path=/d/sub/..
			POST path=/f&op=rename&to=/full
			GET path=/&stat=1&digest=1`,
		api.CodeNotEmpty: `
			POST path=/d&op=rename&to=/full
			DELETE path=/full`,
		api.CodeNotRegular: `
			GET path=/fifo&stat=1&digest=1
			GET path=/fifo&tar=1
			GET path=/dev/null&tar=1
			PUT path=/dev/null`,
		api.CodeLinkLoop: `
			GET path=/loop&list=1
			GET path=/loop&tar=1
			GET path=/loop&stat=1
			GET path=/loop&watch=1
			GET path=/loop/x
			PUT path=/loop/x
			POST path=/loop/x&op=mkdir
			POST path=/loop/x&op=rename&to=/y
			POST path=/f&op=rename&to=/loop/x
			POST path=/loop&op=chmod&mode=600
			POST path=/loop&op=chown&uid=1
			POST path=/loop/x&op=symlink&to=/x
			DELETE path=/loop/x`,
		api.CodeConflict: `
			POST path=/f&op=rename&to=/proc/f
			POST path=/f&op=rename&to=/dev/null
			DELETE path=/dev/null
			DELETE path=/proc`,
		api.CodeTooLarge: `
			PUT path=/f&max_bytes=5
			GET path=/f&max_bytes=1`,
		api.CodeInvalid: `
			PUT path=/f&mode=77777
			PUT path=/f&max_bytes=0
			PUT path=/f&max_bytes=-1
			POST path=/d&op=rename&to=/d/sub/x
			POST path=/f&op=rename&to=y
			POST path=/f&op=chown
			POST path=/f&op=symlink
			DELETE path=/
			DELETE path=/d/..&recursive=1`,
	}
}
