package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestHealthcheck(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			http.Error(w, "STALE: the last proof is old", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	listen := strings.TrimPrefix(server.URL, "http://")
	// A process's own host is never behind a proxy.
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	if code, said := exit(t, "healthcheck", "--ops-listen", listen, "--live"); code != exitOK {
		t.Errorf("--live: exit %d: %s", code, said)
	}
	if code, said := exit(t, "healthcheck", "--ops-listen", listen); code != exitFailure || !strings.Contains(said, "STALE") {
		t.Errorf("not ready: exit %d: %s", code, said)
	}
	t.Setenv("DISCLOSURED_OPS_LISTEN", strings.Replace(listen, "127.0.0.1", "0.0.0.0", 1))
	if code, said := exit(t, "healthcheck", "--live"); code != exitOK {
		t.Errorf("listening everywhere: exit %d: %s", code, said)
	}
	server.Close()
	if code, said := exit(t, "healthcheck", "--live"); code != exitFailure || !strings.Contains(said, "/livez") {
		t.Errorf("nobody there: exit %d: %s", code, said)
	}
}

// A service that hangs is not healthy.
func TestHealthcheckDoesNotWait(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	began := time.Now()
	code, said := exit(t, "healthcheck", "--ops-listen", strings.TrimPrefix(server.URL, "http://"), "--timeout", "100ms")
	if code != exitFailure || time.Since(began) > 5*time.Second {
		t.Errorf("exit %d after %s: %s", code, time.Since(began), said)
	}
}
