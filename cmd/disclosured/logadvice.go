package main

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// advisingHandler adds to what is logged of a database's error what to do: a service that runs does not end because of it, it tries again, and its log is
// the only place where an operator learns that no waiting mends it.
type advisingHandler struct{ slog.Handler }

func (h advisingHandler) Handle(ctx context.Context, r slog.Record) error {
	todo := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" || a.Key == "err" {
			todo = loggedAdvice(a.Value.String())
		}
		return todo == ""
	})
	if todo != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("todo", todo))
	}
	return h.Handler.Handle(ctx, r)
}

func (h advisingHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return advisingHandler{h.Handler.WithAttrs(attrs)}
}

func (h advisingHandler) WithGroup(name string) slog.Handler {
	return advisingHandler{h.Handler.WithGroup(name)}
}

// sqlState is how PostgreSQL's client ends what the server said, in an error that is logged as a text.
var sqlState = regexp.MustCompile(`\(SQLSTATE ([0-9A-Z]{5})\)`)

// loggedAdvice is what a human has to do about a database's error, by its text; "" where nothing is known, or nothing need be done but to wait.
func loggedAdvice(said string) string {
	var fault databaseFault
	code := sqlState.FindStringSubmatch(said)
	switch {
	case code == nil:
		return ""
	case strings.Contains(said, "failed to connect to "):
		fault, _ = refusedFault(code[1])
	case strings.Contains(said, "replayguard"):
		fault = statementFault(&pgconn.PgError{Code: code[1]}, guardDamage)
	default:
		fault = statementFault(&pgconn.PgError{Code: code[1]}, indexDamage)
	}
	if !fault.human {
		return ""
	}
	return fault.todo
}
