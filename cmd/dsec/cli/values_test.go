package cli_test

import (
	"testing"

	"github.com/dsec-io/dsec/cmd/dsec/cli"
)

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"512m": 512, "2g": 2048, "2G": 2048, "1.5g": 1536, "512MiB": 512, "512mb": 512, "2048k": 2, "1t": 1 << 20,
		"": 0, "m": 0, "512": 0, "0m": 0, "-1g": 0, "1k": 0, "1.0001m": 0, "nang": 0, "infg": 0, "9999999999t": 0, "5x": 0,
	} {
		if got, err := cli.ParseMemory(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("parseMemory(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}
