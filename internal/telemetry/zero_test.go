package telemetry_test

import (
	"testing"

	"github.com/disclosured/disclosured/internal/telemetry"
)

// What an alert waits for is there from the start, at zero: of a series that appears with 1 Prometheus sees no increase.
func TestAlertedCountersBeginAtZero(t *testing.T) {
	m := telemetry.New("x")
	for _, c := range []struct{ name, label string }{
		{"disclosured_stream_reseeds_total", "pruned"}, {"disclosured_stream_reseeds_total", "damaged"}, {"disclosured_stream_blobs_total", "mismatch"},
		{"disclosured_api_refused_total", "RATE_LIMITED"}, {"disclosured_api_connections_refused_total", "caller"},
	} {
		if got := value(t, m, c.name, c.label); got != 0 {
			t.Errorf("%s of %s begins at %v", c.name, c.label, got)
		}
	}
	if got := value(t, m, "disclosured_api_panics_total"); got != 0 {
		t.Errorf("panics begin at %v", got)
	}
}
