package main

import (
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// Whoever asks at a wrong port, or with TLS where there is none, is told so, and does not wait for it to pass.
func TestWrongTransportIsExplained(t *testing.T) {
	sim := ledgersim.New(ledgersim.Options{Seed: 1})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	began := time.Now()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"resolve", "--consumer", "c", "--server", address, "--tls", "00"}, "leave out --tls"},
		{[]string{"resolve", "--consumer", "c", "--server", "127.0.0.1:1", "00"}, "is `disclosured serve` running"},
		{[]string{"bootstrap", "--participant-address", address}, "--participant-plaintext"},
		{[]string{"healthcheck", "--ops-listen", address}, "is no HTTP server"},
	} {
		if code, said := exit(t, c.args...); code != exitFailure || !strings.Contains(said, c.want) {
			t.Errorf("%q: exit %d, want %d and words about %q; it said %s", c.args, code, exitFailure, c.want, said)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %s: something that can't pass was waited for", took)
	}
}
