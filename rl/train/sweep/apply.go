package sweep

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dsec-io/dsec/rl/train"
)

// Apply returns cfg with settings changed, each named as in its JSON: "learn.rate", "horizon", "net.hidden.0". It's an
// error if there's no such setting, or if it takes whole numbers and this isn't one.
func Apply(cfg train.Config, params map[string]float64) (train.Config, error) {
	text, err := json.Marshal(cfg)
	if err != nil {
		return cfg, err
	}
	var tree map[string]any
	exact := json.NewDecoder(bytes.NewReader(text))
	exact.UseNumber() // a seed has more digits than a float64
	if err := exact.Decode(&tree); err != nil {
		return cfg, err
	}
	for name, x := range params {
		if err := set(tree, strings.Split(name, "."), x); err != nil {
			return cfg, fmt.Errorf("sweep: setting %s: %w", name, err)
		}
	}
	if text, err = json.Marshal(tree); err != nil {
		return cfg, fmt.Errorf("sweep: %w", err)
	}
	out := train.Config{Workers: cfg.Workers, Folder: cfg.Folder}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&out); err != nil {
		return cfg, fmt.Errorf("sweep: %w", err)
	}
	return out, nil
}

func set(node any, path []string, x float64) error {
	switch n := node.(type) {
	case map[string]any:
		if len(path) == 1 {
			n[path[0]] = x
			return nil
		}
		return set(n[path[0]], path[1:], x)
	case []any:
		var i int
		if _, err := fmt.Sscan(path[0], &i); err != nil || i < 0 || i >= len(n) {
			return fmt.Errorf("no element %q", path[0])
		}
		if len(path) == 1 {
			n[i] = x
			return nil
		}
		return set(n[i], path[1:], x)
	}
	return fmt.Errorf("no %q", path[0])
}
