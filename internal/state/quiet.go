package state

import (
	"log/slog"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quietLogger passes on what etcd says: its errors as our warnings, its warnings (a slow disk, mostly) for who debugs,
// and the rest to nobody. Where etcd would end the process, only the goroutine ends, and dead gets the reason:
// sandboxes must not suffer from a broken folder of ours. While closing, its errors are that it's being closed.
func quietLogger(to *slog.Logger, closing *atomic.Bool) (log *zap.Logger, dead <-chan string) {
	why := make(chan string, 1) // the first reason
	return zap.New(&quiet{to: to, closing: closing}, zap.WithFatalHook(giveUp{why}), zap.WithPanicHook(giveUp{why})), why
}

// giveUp is what happens after a message that ends etcd.
type giveUp struct{ why chan<- string }

// OnWrite implements [zapcore.CheckWriteHook].
func (g giveUp) OnWrite(e *zapcore.CheckedEntry, _ []zapcore.Field) {
	select {
	case g.why <- e.Message:
	default:
	}
	runtime.Goexit()
}

// quiet is a zap core that writes to slog.
type quiet struct {
	to      *slog.Logger
	closing *atomic.Bool
	fields  []zapcore.Field
}

// Enabled implements [zapcore.LevelEnabler].
func (q *quiet) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

// With implements [zapcore.Core].
func (q *quiet) With(fields []zapcore.Field) zapcore.Core {
	return &quiet{to: q.to, closing: q.closing, fields: append(append([]zapcore.Field(nil), q.fields...), fields...)}
}

// Check implements [zapcore.Core].
func (q *quiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if q.Enabled(e.Level) {
		return ce.AddCore(e, q)
	}
	return ce
}

// Write implements [zapcore.Core]. Values stay here, but for errors: they may hold keys.
func (q *quiet) Write(e zapcore.Entry, fields []zapcore.Field) error {
	attrs := []any{slog.String("what", e.Message)}
	for _, f := range append(append([]zapcore.Field(nil), q.fields...), fields...) {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			attrs = append(attrs, slog.Any("err", err))
		}
	}
	if e.Level >= zapcore.ErrorLevel && !q.closing.Load() {
		q.to.Warn("etcd", attrs...)
	} else {
		q.to.Debug("etcd", attrs...)
	}
	return nil
}

// Sync implements [zapcore.Core].
func (q *quiet) Sync() error { return nil }
