// Package contract holds a real node to its own description: every example of the OpenAPI document is run as it is
// shown, and generated requests, valid and broken, drive every operation.
package contract

import (
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }
