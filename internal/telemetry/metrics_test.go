package telemetry_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/disclosured/disclosured/internal/telemetry"
)

var update = flag.Bool("update", false, "write the golden list anew")

var now = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// used is a process's metrics after each has been used once.
func used() *telemetry.Metrics {
	m := telemetry.New("1.2.3")
	m.Stream.Watch(func() time.Time { return now }, func() telemetry.StreamLevels {
		return telemetry.StreamLevels{State: "live", LedgerEnd: 110, ProvenOffset: 108, ProvenAt: now.Add(-2 * time.Second), HaltedAt: 3, StuckAt: 4}
	})
	m.Index.Watch(func() (telemetry.IndexLevels, bool) {
		return telemetry.IndexLevels{Offset: 108, Scopes: 2, Nodes: 17, Digests: 40, Contracts: 19, Unverifiable: 1, Missing: 3,
			Classes:  map[telemetry.TemplateClass]int{{Template: "ReplayNode", Class: "authentic"}: 17, {Template: "CoreState", Class: "puppet"}: 2},
			Findings: map[string]int{"gap": 1, "fork": 0}}, true
	})
	m.Stream.State("live")
	m.Stream.Update("transaction")
	m.Stream.Ignored("template")
	m.Stream.Blob("verified")
	m.Stream.Applied(2, 17, 3*time.Millisecond)
	m.Stream.Seeded(19, time.Second)
	m.Stream.Reconnect("eof")
	m.Stream.Reseed("pruned")
	m.Stream.Halt("undecodable")
	m.Stream.Proof(time.Millisecond)
	m.Index.Committed(time.Millisecond)
	m.Index.Oddity("unknown_archive", 2)
	m.API.CallStarted("PrepareRedeem")
	m.API.CallDone("PrepareRedeem", "OK", time.Millisecond)
	m.API.CallStarted("PrepareRedeem")
	m.API.CallDone("PrepareRedeem", "RATE_LIMITED", time.Millisecond)
	m.API.Panicked()
	m.API.WatchReady(func() bool { return true })
	m.API.Connected(true)
	m.API.Connected(true)
	m.API.Connected(false)
	m.API.ConnectionRefused("caller")
	m.Guard.Watch(func() (telemetry.GuardLevels, bool) {
		return telemetry.GuardLevels{Live: 7, MaxEntries: 10_000, Clients: 2, MaxLive: 2500, Lapsed: 5, HighestShare: 0.25, ClientsAtLimit: 1}, true
	})
	m.Guard.Reserved("reserved")
	m.Guard.TookOver()
	m.Guard.Settled("committed", 3*time.Second)
	return m
}

// The names, types and labels that dashboards and alerts are built on.
func TestGoldenNames(t *testing.T) {
	families, err := used().Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	others := map[string]bool{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "disclosured_") {
			others[f.GetName()] = true
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		lines = append(lines, fmt.Sprintf("%s{%s} %s: %s", f.GetName(), strings.Join(labels, ","), strings.ToLower(f.GetType().String()), f.GetHelp()))
		if f.GetType() == dto.MetricType_COUNTER != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s: counters, and only they, end in _total", f.GetName())
		}
	}
	sort.Strings(lines)
	got := strings.Join(lines, "\n") + "\n"
	const path = "testdata/metrics.golden"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("metrics changed (-want +got; go test -update writes them anew):\n%s", diff)
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if !others[name] {
			t.Errorf("no %s", name)
		}
	}
}

// value is a metric's value: of the series with these labels.
func value(t *testing.T, m *telemetry.Metrics, name string, labels ...string) float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			var own []string
			for _, l := range metric.GetLabel() {
				own = append(own, l.GetValue())
			}
			if f.GetName() != name || strings.Join(own, ",") != strings.Join(labels, ",") {
				continue
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				return metric.GetCounter().GetValue()
			case dto.MetricType_HISTOGRAM:
				return float64(metric.GetHistogram().GetSampleCount())
			default:
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s of %v", name, labels)
	return 0
}

func TestValues(t *testing.T) {
	m := used()
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"disclosured_stream_state", []string{"live"}, 1},
		{"disclosured_guard_live_reservations", nil, 7},
		{"disclosured_guard_lapsed_total", nil, 5},
		{"disclosured_guard_quota_highest_share", nil, 0.25},
		{"disclosured_guard_clients_at_quota", nil, 1},
		{"disclosured_guard_reservations_total", []string{"reserved"}, 1},
		{"disclosured_guard_settle_age_seconds", []string{"committed"}, 1},
		{"disclosured_stream_state", []string{"halted"}, 0},
		{"disclosured_stream_proof_age_seconds", nil, 2},
		{"disclosured_stream_last_message_age_seconds", nil, math.Inf(1)},
		{"disclosured_stream_ledger_end_offset", nil, 110},
		{"disclosured_stream_applied_events_total", nil, 17},
		{"disclosured_index_contracts", []string{"authentic", "ReplayNode"}, 17},
		{"disclosured_index_findings", []string{"fork"}, 0},
		{"disclosured_index_oddities_total", []string{"unknown_archive"}, 2},
		{"disclosured_api_calls_total", []string{"PrepareRedeem", "OK"}, 1},
		{"disclosured_api_refused_total", []string{"RATE_LIMITED"}, 1},
		{"disclosured_api_call_seconds", []string{"PrepareRedeem", "ok"}, 1},
		{"disclosured_api_call_seconds", []string{"PrepareRedeem", "limited"}, 1},
		{"disclosured_api_calls_in_flight", []string{"PrepareRedeem"}, 0},
		{"disclosured_api_panics_total", nil, 1},
		{"disclosured_api_connections", nil, 1},
		{"disclosured_ready", nil, 1},
		{"disclosured_api_connections_refused_total", []string{"caller"}, 1},
	} {
		if got := value(t, m, c.name, c.labels...); got != c.want {
			t.Errorf("%s%v = %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

// An index that is not there yet has no levels; a scrape works all the same.
func TestScrapeBeforeAnything(t *testing.T) {
	m := telemetry.New("x")
	m.Index.Watch(func() (telemetry.IndexLevels, bool) { return telemetry.IndexLevels{}, false })
	server := httptest.NewServer(m.Handler())
	defer server.Close()
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || !strings.Contains(string(body), `disclosured_build_info{go_version="go`) || strings.Contains(string(body), "disclosured_index_offset") {
		t.Errorf("%d %.500s", resp.StatusCode, body)
	}
}

// Bug D10: labels are bounded, whatever 50,000 events say, and a scrape never fails over them.
func TestD10LabelsAreBounded(t *testing.T) {
	m := used()
	classes := map[telemetry.TemplateClass]int{}
	m.Index.Watch(func() (telemetry.IndexLevels, bool) {
		return telemetry.IndexLevels{Classes: classes, Findings: map[string]int{"gap": 1, "ga p": 2, "g.p": 3}}, true
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		text := fmt.Sprintf("x%d", rng.Uint64())
		if i%3 == 0 {
			text = "party::" + text
		}
		m.API.CallStarted(text)
		m.API.CallDone(text, text, 0)
		m.Stream.Reconnect(text)
		m.Stream.Update(text)
		m.Stream.State(text)
		m.Index.Oddity(text, 1)
		m.API.ConnectionRefused(text)
		m.Guard.Reserved(text)
		m.Guard.Settled(text, 0)
		if i < 500 {
			classes[telemetry.TemplateClass{Template: text, Class: "a b"}]++
		}
	}
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	most := map[string]int{"disclosured_api_calls_total": 65 * 65, "disclosured_api_call_seconds": 65 * 3}
	for _, f := range families {
		if n := len(f.GetMetric()); n > most[f.GetName()] && n > 65 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if strings.Contains(l.GetValue(), "::") {
					t.Errorf("%s has the label value %q", f.GetName(), l.GetValue())
				}
			}
		}
	}
}

func TestNewLogger(t *testing.T) {
	for _, c := range []struct {
		cfg  telemetry.LogConfig
		want string // of an info and a debug line
	}{
		{telemetry.LogConfig{}, "level=INFO msg=one"},
		{telemetry.LogConfig{Format: "json", Level: "debug"}, `"msg":"two"`},
		{telemetry.LogConfig{Level: "ERROR"}, ""},
	} {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("one")
		log.Debug("two")
		if !strings.Contains(out.String(), c.want) || c.want == "" && out.Len() > 0 {
			t.Errorf("%+v logged %q, want %q in it", c.cfg, out.String(), c.want)
		}
	}
	for _, bad := range []telemetry.LogConfig{{Format: "xml"}, {Level: "loud"}, {Level: "info+3"}} {
		if _, err := telemetry.NewLogger(io.Discard, bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
