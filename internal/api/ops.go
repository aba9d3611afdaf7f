package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// opsHandler are the operator's endpoints. /livez is 200 as long as the process serves: a supervisor restarts it otherwise, and a
// restart mends nothing that is wrong with the ledger. /readyz is 200 or 503 as the calls would be answered. /healthz says why, in
// fixed words: what exactly is wrong can name parties, contracts and hosts, and is in the log, which has another audience than a port that may
// be open to a whole network.
func (s *Server) opsHandler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	if metrics != nil {
		mux.Handle("GET /metrics", newScrapes(metrics, defaultScrapeBounds))
	}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "live\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if refused := s.service.ready(); refused != nil {
			plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%s: %s\n", refused.Reason, refused.Message))
			return
		}
		plain(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		report := s.healthReport()
		body, err := json.MarshalIndent(report, "", "  ")
		if err != nil { // of strings, numbers and maps of them: it does not fail
			plain(w, http.StatusInternalServerError, "the report can't be encoded\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !report.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		w.Write(append(body, '\n'))
	})
	return mux
}

type connKey struct{}

// withConn is http.Server's ConnContext: requests know their connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// countCalls tells a request's connection that it has one.
func countCalls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.begin()
			defer c.end()
		}
		next.ServeHTTP(w, r)
	})
}

// uncounted is for the endpoints' connections: disclosured_api_connections is about callers of the API.
type uncounted struct{}

func (uncounted) Connected(bool)           {}
func (uncounted) ConnectionRefused(string) {}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	fmt.Fprint(w, text)
}

// healthReport is /healthz. Offsets are strings, as everywhere in JSON here: readers that keep numbers as doubles would round
// them.
type healthReport struct {
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Version string `json:"version"`
	Store   string `json:"store"`
	Stream  struct {
		State            string     `json:"state"`
		Detail           string     `json:"detail,omitempty"`
		ParticipantID    string     `json:"participantId"`
		LedgerAPIVersion string     `json:"ledgerApiVersion"`
		LedgerEnd        int64      `json:"ledgerEnd,string"`
		HaltedAt         int64      `json:"haltedAtOffset,string,omitempty"`
		LastMessageAt    *time.Time `json:"lastMessageAt,omitempty"`
		Synchronizers    []string   `json:"synchronizers"`
	} `json:"stream"`
	Proof struct {
		Offset  int64      `json:"offset,string"`
		At      *time.Time `json:"at,omitempty"`
		AgeSecs *float64   `json:"ageSeconds,omitempty"`
		Bound   float64    `json:"boundSeconds"`
	} `json:"proof"`
	Index *indexReport `json:"index,omitempty"`
}

type indexReport struct {
	ParticipantID string         `json:"participantId"`
	Offset        int64          `json:"offset,string"`
	UpdateID      string         `json:"updateId"`
	RecordTime    *time.Time     `json:"recordTime,omitempty"`
	Nodes         int            `json:"nodes"`
	Digests       int            `json:"digests"`
	Scopes        int            `json:"scopes"`
	Clean         bool           `json:"auditClean"`
	Findings      map[string]int `json:"findings"`
}

func (s *Server) healthReport() healthReport {
	refused := s.service.ready()
	status := s.service.status()
	view := s.service.index.View()
	now := s.service.now()

	report := healthReport{Ready: refused == nil, Version: s.cfg.Info.Version, Store: s.cfg.Info.Store}
	if refused != nil {
		report.Reason, report.Message = string(refused.Reason), refused.Message
	}
	report.Stream.State, report.Stream.Detail = status.State, streamDetails[status.State]
	report.Stream.ParticipantID, report.Stream.LedgerAPIVersion = status.ParticipantID, status.LedgerAPIVersion
	report.Stream.LedgerEnd, report.Stream.HaltedAt = status.LedgerEnd, status.HaltedAt
	report.Stream.LastMessageAt, report.Stream.Synchronizers = optionalTime(status.LastMessageAt), status.Synchronizers
	report.Proof.Offset, report.Proof.At = status.ProvenOffset, optionalTime(status.ProvenAt)
	report.Proof.Bound = s.cfg.FreshnessBound.Seconds()
	if !status.ProvenAt.IsZero() {
		age := ageOf(status, now).Seconds()
		report.Proof.AgeSecs = &age
	}
	if view != nil {
		pos, stats := view.Position(), view.Stats()
		report.Index = &indexReport{
			ParticipantID: pos.ParticipantID, Offset: pos.Offset, UpdateID: pos.UpdateID, RecordTime: optionalTime(pos.RecordTime),
			Nodes: stats.Nodes, Digests: stats.Digests, Scopes: stats.Scopes, Clean: view.Clean(), Findings: map[string]int{},
		}
		for kind, n := range view.FindingCounts() {
			report.Index.Findings[string(kind)] = n
		}
	}
	return report
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}
