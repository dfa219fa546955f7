package account

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
)

func files() *Files {
	return &Files{
		Passwd: []byte("root:x:0:0:root:/root:/bin/sh\n# comment\n\nbroken\napp:x:1000:1000:A,B:/home/app:/bin/bash\nnohome:x:1001:1:::\nbig:x:70000:1::/:\n12:x:13:13::/twelve:\ncrlf:x:a:b::/:\n"),
		Group:  []byte("root:x:0:\napp:x:1000:\ndocker:x:998:other,app\nx:x:\nwheel:x:10:app, root\ndup:x:998:app\nhuge:x:99999:app"),
	}
}

func TestLookup(t *testing.T) {
	for who, want := range map[string]Account{
		"":          {0, 0, []uint32{0, 10}, "root", "/root", "/bin/sh"},
		"root":      {0, 0, []uint32{0, 10}, "root", "/root", "/bin/sh"},
		"0":         {0, 0, []uint32{0, 10}, "root", "/root", "/bin/sh"},
		"app":       {1000, 1000, []uint32{1000, 998, 10}, "app", "/home/app", "/bin/bash"},
		"1000":      {1000, 1000, []uint32{1000, 998, 10}, "app", "/home/app", "/bin/bash"},
		"app:wheel": {1000, 10, []uint32{10}, "app", "/home/app", "/bin/bash"},
		"1234":      {1234, 0, []uint32{0}, "", "/", ""},
		"1234:5":    {1234, 5, []uint32{5}, "", "/", ""},
		":5":        {0, 5, []uint32{5}, "root", "/root", "/bin/sh"},
		"nohome":    {1001, 1, []uint32{1}, "nohome", "/", ""},
		"12":        {13, 13, []uint32{13}, "12", "/twelve", ""}, // a name, although it looks like an id
	} {
		got, err := files().Lookup(who)
		if err != nil {
			t.Errorf("Lookup(%q) = %v", who, err)
			continue
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("Lookup(%q) (-want +got):\n%s", who, diff)
		}
	}
	for _, who := range []string{"nobody", "-1", "70000", "big", "crlf", "app:nosuch", "app:-1", "app:", "broken", "app:99999"} {
		if got, err := files().Lookup(who); !api.IsCode(err, api.CodeNoSuchUser) {
			t.Errorf("Lookup(%q) = %+v, %v", who, got, err)
		}
	}
}

func TestRootIsThereWithoutFiles(t *testing.T) {
	for _, who := range []string{"", "root", "0"} {
		got, err := new(Files).Lookup(who)
		if err != nil || got.UID != 0 || got.Home != "/root" {
			t.Errorf("Lookup(%q) = %+v, %v", who, got, err)
		}
	}
}

func FuzzLookup(f *testing.F) {
	seed := files()
	f.Add(seed.Passwd, seed.Group, "app:wheel")
	f.Add([]byte(":::::::::"), []byte("::::"), "::")
	f.Fuzz(func(t *testing.T, passwd, group []byte, who string) {
		acc, err := (&Files{passwd, group}).Lookup(who)
		if err != nil {
			if !api.IsCode(err, api.CodeNoSuchUser) {
				t.Errorf("Lookup(%q) = %v", who, err)
			}
			return
		}
		if acc.UID < 0 || acc.UID > maxID || acc.GID < 0 || acc.GID > maxID || acc.Home == "" {
			t.Errorf("Lookup(%q) = %+v", who, acc)
		}
	})
}

func TestCompleteEnv(t *testing.T) {
	acc := &Account{Name: "app", Home: "/home/app", Shell: "/bin/bash"}
	env := [][]byte{[]byte("HOME=/mine"), []byte("A=1")}
	want := []string{"HOME=/mine", "A=1", "PATH=" + DefaultPath, "USER=app", "LOGNAME=app", "TERM=xterm", "SHELL=/bin/bash"}
	var got []string
	for _, e := range CompleteEnv(env, acc, true) {
		got = append(got, string(e))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if v, ok := LookupEnv([][]byte{[]byte("A=1"), []byte("A=2"), []byte("AB=3")}, "A"); v != "2" || !ok {
		t.Errorf("LookupEnv() = %q, %v", v, ok)
	}
}

// What was read before the first command counts for that, unless files were touched meanwhile.
func TestCacheReadsAhead(t *testing.T) {
	var c Cache
	reads := 0
	read := func(f *Files) error {
		reads++
		*f = *files()
		return nil
	}
	find := func(who string, want int) {
		t.Helper()
		if _, err := c.Find(who, read); err != nil || reads != want {
			t.Errorf("Find(%q): %v, %d reads, want %d", who, err, reads, want)
		}
	}
	c.Ahead(read) // nobody has said that the sandbox is new
	if reads != 0 {
		t.Errorf("%d reads", reads)
	}
	c.Expect()
	c.Ahead(read)
	c.Ahead(read)
	find("app", 1)
	find("app", 2)
	c.Expect()
	c.Ahead(read)
	c.Touch()
	find("app", 4)
	c.Expect()
	find("app", 5) // it was faster
	c.Ahead(read)
	if reads != 5 {
		t.Errorf("read again after the first command")
	}
}
