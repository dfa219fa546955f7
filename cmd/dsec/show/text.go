package show

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Value prints one value of a JSON document; a number as it was written.
func Value(v any) string {
	b, err := JSON(v, "")
	if err != nil {
		return err.Error()
	}
	return strings.Trim(string(b), `"`)
}

// Figure prints a figure with the unit that its name says; limits one by one.
func Figure(name string, v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+"="+Value(v[k]))
		}
		return strings.Join(parts, " ")
	case float64:
		switch {
		case strings.HasSuffix(name, "_bytes"):
			return fmt.Sprintf("%.0f (%.1f MiB)", v, v/(1<<20))
		case strings.HasSuffix(name, "_ns"):
			return fmt.Sprintf("%.0f (%s)", v, time.Duration(v).Round(time.Microsecond))
		}
	}
	return Value(v)
}

// Age prints how long ago a time was.
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Time prints a time as this machine's user reads it; nothing for none.
func Time(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

// Map prints a map in the order of its keys.
func Map(m map[string]string) string {
	pairs := make([]string, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// Size prints a number of bytes as people do.
func Size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}

// Clip keeps a column from filling the screen.
func Clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
