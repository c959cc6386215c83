package certs

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo makes the logger that certmagic wants of the one we have.
func zapTo(log *slog.Logger) *zap.Logger { return zap.New(bridge{log}) }

type bridge struct{ log *slog.Logger }

func (b bridge) Enabled(level zapcore.Level) bool {
	return b.log.Enabled(context.Background(), slogLevel(level))
}

func (b bridge) With(fields []zapcore.Field) zapcore.Core {
	return bridge{b.log.With(attrs(fields)...)}
}

func (b bridge) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(entry.Level) {
		return checked.AddCore(entry, b)
	}
	return checked
}

func (b bridge) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	b.log.Log(context.Background(), slogLevel(entry.Level), "certificates: "+entry.Message, attrs(fields)...)
	return nil
}

func (b bridge) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		field.AddTo(encoder)
	}
	var all []any
	for name, value := range encoder.Fields {
		all = append(all, slog.Any(name, value))
	}
	return all
}

func slogLevel(level zapcore.Level) slog.Level {
	switch {
	case level <= zapcore.DebugLevel:
		return slog.LevelDebug
	case level == zapcore.InfoLevel:
		return slog.LevelInfo
	case level == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}
