// Package cases holds the field's bug reports as tests, one per case, named after its number and title. Each drives a
// real `dsec dev` through the SDK or plain HTTP.
package cases

import (
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }
