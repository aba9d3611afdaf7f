package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// LogConfig is how the process logs.
type LogConfig struct {
	// Format is "text" or "json"; "" is "text".
	Format string
	// Level is "debug", "info", "warn" or "error"; "" is "info".
	Level string
}

// NewLogger makes the process's logger.
func NewLogger(w io.Writer, cfg LogConfig) (*slog.Logger, error) {
	var level slog.Level
	if cfg.Level != "" {
		switch strings.ToLower(cfg.Level) {
		case "debug", "info", "warn", "error":
		default:
			return nil, fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Level)
		}
		if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
			return nil, fmt.Errorf("log level %q: %w", cfg.Level, err)
		}
	}
	options := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	default:
		return nil, fmt.Errorf("log format %q: want text or json", cfg.Format)
	}
}
