// Command dsec is DSec's command line: the client of a DSec server, and the server itself.
//
// Nothing but main reads the process's arguments and environment or exits; everything else gets them from [run], so
// that tests run whole commands in-process.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
