package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Query chooses records. Zero values choose all.
type Query struct {
	Project  string
	Token    string
	Action   string
	Resource string
	Decision api.Decision
	Result   string
	Since    time.Time // at or after
	Until    time.Time // before
	Before   uint64    // a number: records before it; 0: all
	Limit    int
}

func (q *Query) matches(rec *api.AuditRecord) bool {
	same := func(want, have string) bool { return want == "" || want == have }
	return (q.Before == 0 || rec.Seq < q.Before) && same(q.Project, rec.Project) && same(q.Token, rec.Token) && same(q.Action, rec.Action) &&
		same(q.Resource, rec.Resource) && same(string(q.Decision), string(rec.Decision)) && same(q.Result, rec.Result) &&
		(q.Since.IsZero() || !rec.Time.Before(q.Since)) && (q.Until.IsZero() || rec.Time.Before(q.Until))
}

// needle is a text that a matching line must hold, so that most lines needn't be decoded.
func (q *Query) needle() []byte {
	for _, s := range []string{q.Resource, q.Token, q.Result, q.Project} {
		if text, err := json.Marshal(s); s != "" && err == nil {
			return text
		}
	}
	return nil
}

// Read gives the newest records that match, newest first, and tells whether there are more. It reads from the files,
// a file at a time, after writing what waits.
func (l *Log) Read(ctx context.Context, q Query) (list []api.AuditRecord, more bool, err error) {
	if err := l.Flush(); err != nil {
		l.cfg.Logger.Warn("the audit log is read without its end")
	}
	for k := range kinds {
		if list, err = l.readKind(ctx, k, &q, list); err != nil {
			return nil, false, fmt.Errorf("read audit log: %w", err)
		}
	}
	slices.SortFunc(list, func(a, b api.AuditRecord) int { return cmp.Compare(b.Seq, a.Seq) })
	if len(list) > q.Limit {
		return list[:q.Limit], true, nil
	}
	return list, false, nil
}

// readKind adds up to one record more than the limit.
func (l *Log) readKind(ctx context.Context, k Kind, q *Query, list []api.AuditRecord) ([]api.AuditRecord, error) {
	names, err := l.names(k)
	if err != nil {
		return nil, err
	}
	need, found := q.needle(), 0
	for _, name := range slices.Backward(names) {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		old := false // nothing before this can match
		err := eachLine(filepath.Join(l.cfg.Dir, name), func(line []byte) bool {
			if need != nil && !bytes.Contains(line, need) {
				return true
			}
			var rec api.AuditRecord
			if json.Unmarshal(line, &rec) != nil {
				return true // the half line that a crash has left
			}
			if !q.Since.IsZero() && rec.Time.Before(q.Since) {
				old = true
				return false
			}
			if q.matches(&rec) {
				list = append(list, rec)
				found++
			}
			return found <= q.Limit
		})
		if err != nil && !os.IsNotExist(err) { // it may be removed meanwhile
			return nil, err
		}
		if found > q.Limit || old {
			return list, nil
		}
	}
	return list, nil
}

// eachLine tells the lines of a file, the last first, while told is true.
func eachLine(path string, told func(line []byte) bool) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		data = bytes.TrimSuffix(data, []byte{'\n'})
		i := bytes.LastIndexByte(data, '\n')
		if line := data[i+1:]; len(line) > 0 && !told(line) {
			return nil
		}
		data = data[:i+1]
	}
	return nil
}
