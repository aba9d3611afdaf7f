package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
)

// newTLSGuarded is a guarded world whose clients show certificates, and how to become one of them.
func newTLSGuarded(t *testing.T, limits replayguard.Limits) (g *guarded, as func(name string) disclosurev1.SubmissionServiceClient) {
	t.Helper()
	dir := t.TempDir()
	ca := newAuthority(t)
	files := api.TLSFiles{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ClientCAFile: filepath.Join(dir, "ca.pem")}
	certPEM, keyPEM := ca.issue(t, "127.0.0.1")
	for path, content := range map[string][]byte{files.CertFile: certPEM, files.KeyFile: keyPEM, files.ClientCAFile: ca.pem} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g = newGuarded(t, guardStores[0], limits, func(c *api.Config, _ *api.Deps) {
		c.TLS = files
		c.Guard.AllowAnonymous = false
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.pem)
	return g, func(name string) disclosurev1.SubmissionServiceClient {
		cert, err := tls.X509KeyPair(ca.issue(t, name))
		if err != nil {
			t.Fatal(err)
		}
		conn := g.dial(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}}))
		t.Cleanup(func() { conn.Close() })
		return disclosurev1.NewSubmissionServiceClient(conn)
	}
}

// The client is the certificate's subject: over a renewed certificate it is the same, and no request says otherwise.
func TestGuardClientIsTheCertificatesSubject(t *testing.T) {
	limits := roomy(10)
	limits.AllowRelease = true
	g, as := newTLSGuarded(t, limits)
	alice, mallory, renewed := as("alice"), as("mallory"), as("alice")
	req := g.request(1, 60)
	req.IdempotencyKey = "key"
	held := wantOutcome(t, alice, outcomeReserved, req)
	wantOutcome(t, mallory, outcomeReceived, req) // with the same key
	if again := wantOutcome(t, renewed, outcomeReserved, req); !again.GetAgain() || again.GetToken() != held.GetToken() {
		t.Errorf("got %v, want the reservation again", again)
	}
	ctx := t.Context()
	for name, call := range map[string]func(disclosurev1.SubmissionServiceClient) error{
		"settle": func(c disclosurev1.SubmissionServiceClient) error {
			_, err := c.Settle(ctx, &disclosurev1.SettleRequest{Token: held.GetToken(), Outcome: 1})
			return err
		},
		"extend": func(c disclosurev1.SubmissionServiceClient) error {
			_, err := c.Extend(ctx, &disclosurev1.ExtendRequest{Token: held.GetToken(), ExpiresAt: &timestamppb.Timestamp{Seconds: g.clock().Unix() + 90}})
			return err
		},
		"release": func(c disclosurev1.SubmissionServiceClient) error {
			_, err := c.Release(ctx, &disclosurev1.ReleaseRequest{Token: held.GetToken()})
			return err
		},
	} {
		t.Run("another's token can't "+name, func(t *testing.T) { wantReason(t, call(mallory), api.NoReservation) })
	}
	if _, err := renewed.Settle(ctx, &disclosurev1.SettleRequest{Token: held.GetToken(), Outcome: 1}); err != nil {
		t.Errorf("the holder over a renewed certificate: %v", err)
	}
}

// One client floods and is refused by its own quota; another's first message is admitted.
func TestGuardFloodOfOneClient(t *testing.T) {
	g, as := newTLSGuarded(t, replayguard.Limits{MaxEntries: 8})
	flooder, another := as("flooder"), as("another")
	for i := range uint64(2) { // a quarter
		wantOutcome(t, flooder, outcomeReserved, g.request(i, 60))
	}
	for i := range uint64(30) {
		answer := wantOutcome(t, flooder, outcomeOther, g.request(100+i, 60))
		if answer.GetOtherReason() != disclosurev1.OtherReason_OTHER_REASON_QUOTA {
			t.Fatalf("the flooder is refused for %v", answer.GetOtherReason())
		}
	}
	wantOutcome(t, another, outcomeReserved, g.request(200, 60))
}

// A guard that lacks a part, or that can't tell who asks, refuses everything, and says which.
func TestGuardOff(t *testing.T) {
	for why, change := range map[string]option{
		"disabled":              func(c *api.Config, d *api.Deps) { d.Guard, c.Guard.AllowAnonymous = nil, true },
		"no_client_certificate": func(c *api.Config, _ *api.Deps) { c.Guard.AllowAnonymous = false },
	} {
		t.Run(why, func(t *testing.T) {
			g := newGuarded(t, guardStores[0], roomy(10), change)
			ctx := t.Context()
			for name, call := range map[string]func() error{
				"Reserve": func() error { _, err := g.relayer.Reserve(ctx, g.request(1, 60)); return err },
				"Settle":  func() error { _, err := g.relayer.Settle(ctx, &disclosurev1.SettleRequest{}); return err },
				"Extend":  func() error { _, err := g.relayer.Extend(ctx, &disclosurev1.ExtendRequest{}); return err },
				"Release": func() error { _, err := g.relayer.Release(ctx, &disclosurev1.ReleaseRequest{}); return err },
			} {
				err := call()
				if info := wantReason(t, err, api.SubmissionsOff); info.GetMetadata()["why"] != why {
					t.Errorf("%s: off because of %v, want %s", name, info.GetMetadata(), why)
				}
				checkRow(t, err)
			}
			g.wantLive(t, 0)
		})
	}
	cfg := api.DefaultConfig()
	cfg.Guard.MaxTTL = time.Second - 1
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "time to live") {
		t.Errorf("a greatest time to live of less than a second: %v", err)
	}
}

// failingGuard is a store whose database is gone.
type failingGuard struct{ replayguard.Store }

func (failingGuard) Reserve(context.Context, replayguard.Request) (replayguard.Reservation, error) {
	return replayguard.Reservation{}, errors.New("reserving in the database: connection refused to postgres://secret@db")
}

func (failingGuard) Settle(context.Context, replayguard.Claim, replayguard.Outcome) (replayguard.Reservation, error) {
	return replayguard.Reservation{}, context.DeadlineExceeded // the store's own
}

// A store that fails is its own reason, and the cause stays in the log.
func TestGuardUnavailable(t *testing.T) {
	g := newGuarded(t, guardStores[0], roomy(10), withGuard(failingGuard{}))
	_, err := g.relayer.Reserve(t.Context(), g.request(1, 60))
	wantReason(t, err, api.GuardUnavailable)
	checkRow(t, err)
	if strings.Contains(err.Error(), "secret") || !strings.Contains(g.logs.String(), "connection refused") {
		t.Errorf("the cause belongs into the log alone: %v", err)
	}
	_, err = g.relayer.Settle(t.Context(), &disclosurev1.SettleRequest{Token: strings.Repeat("0", 64) + ".1", Outcome: 1})
	wantReason(t, err, api.GuardUnavailable)
}

// What the guard decides is counted, by outcomes of a fixed set.
func TestGuardMetrics(t *testing.T) {
	g := newGuarded(t, guardStores[0], roomy(1), func(_ *api.Config, d *api.Deps) { d.GuardMetrics = nil })
	g.want(t, outcomeReserved, g.request(1, 60)) // without metrics, too

	w := newGuarded(t, guardStores[0], roomy(1))
	req := w.request(1, 60)
	req.IdempotencyKey = "key"
	held := w.want(t, outcomeReserved, req)
	w.want(t, outcomeReserved, req)
	w.want(t, outcomeReceived, w.request(1, 60))
	w.want(t, outcomeOther, w.request(2, 60))
	w.wantError(t, api.NotAuthentic, reserveRequest(forged(2), w.clock().Unix()+60))
	w.advance(10)
	if _, err := w.relayer.Settle(t.Context(), &disclosurev1.SettleRequest{Token: held.GetToken(), Outcome: 1}); err != nil {
		t.Fatal(err)
	}
	w.advance(60)
	w.want(t, outcomeReserved, w.request(3, 0))
	w.advance(1)
	w.want(t, outcomeReserved, w.request(3, 60)) // takes a lapsed one over
	_, text := w.get("/metrics")
	for _, line := range []string{
		`disclosured_guard_reservations_total{outcome="reserved"} 3`,
		`disclosured_guard_reservations_total{outcome="again"} 1`,
		`disclosured_guard_reservations_total{outcome="already_received"} 1`,
		`disclosured_guard_reservations_total{outcome="capacity"} 1`,
		`disclosured_guard_reservations_total{outcome="not_authentic"} 1`,
		`disclosured_guard_takeovers_total 1`,
		`disclosured_guard_settle_age_seconds_sum{outcome="committed"} 10`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q in /metrics", line)
		}
	}
}
