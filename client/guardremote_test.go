package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
	"github.com/disclosured/disclosured/replayguard"
)

// A guard that is killed before, in between, or after: the submission goes ahead exactly where there is no decision, and says so.
func TestRemoteGuardKilled(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	var seen events
	quick := client.GuardOptions{Observe: seen.observe, CallTimeout: time.Second}
	t.Run("before", func(t *testing.T) {
		s, store := w.serveGuard(roomy(10), nil)
		s.stop()
		g := w.remote(quick, s.address)
		a := admit(t, g, w.submission(w.vaa()), client.Unguarded, client.EndingCommitted)
		if codeOf(a.Unguarded) != codes.Unavailable || !strings.Contains(a.Unguarded.Error(), s.address) {
			t.Errorf("unguarded because of %v", a.Unguarded)
		}
		if seen.count(client.EventUnguarded) != 1 || seen.count(client.EventSettled) != 0 {
			t.Errorf("observed %+v", seen.all)
		}
		store.wantLive(t, 0)
	})
	t.Run("in between", func(t *testing.T) {
		s, store := w.serveGuard(roomy(10), nil)
		w.waitReady(s.address)
		g := w.remote(quick, s.address)
		submission := w.submission(w.vaa())
		var stopped time.Time
		a, err := g.Admit(t.Context(), submission, func(context.Context, client.Admission) client.Ending {
			s.stop()
			stopped = time.Now()
			return client.EndingCommitted
		})
		if err != nil || a.Decision != client.Admitted || a.Unguarded != nil || codeOf(a.Held) != codes.Unavailable {
			t.Errorf("%+v, error %v; want it admitted, and that settling failed", a, err)
		}
		if took := time.Since(stopped); took > 5*time.Second {
			t.Errorf("settling was given up after %s", took)
		}
		store.wantEnds(t)
		store.wantLive(t, 1)
	})
	t.Run("after, and started again", func(t *testing.T) {
		s, store := w.serveGuard(roomy(10), nil)
		w.waitReady(s.address)
		g := w.remote(quick, s.address)
		first := w.submission(w.vaa())
		if a := admit(t, g, first, client.Admitted, client.EndingCommitted); a.Held != nil {
			t.Error(a.Held)
		}
		store.wantEnds(t, "committed")
		s.stop()
		admit(t, g, w.submission(w.vaa()), client.Unguarded, client.EndingUnknown)
		again, _ := w.serveGuard(roomy(10), func(c *api.Config, d *api.Deps) { c.Listen, d.Guard = s.address, store })
		w.waitReady(again.address)
		w.eventually("a guard that decides again", func() error {
			a, err := g.Admit(t.Context(), first, func(context.Context, client.Admission) client.Ending { return client.EndingUnknown })
			if err == nil && a.Decision != client.AlreadyReceived {
				err = errors.Join(errors.New("it is "+a.Decision.String()), a.Unguarded)
			}
			return err
		})
	})
}

// codeOf is the code of the first gRPC status in an error, OK where there is none.
func codeOf(err error) codes.Code {
	var of interface {
		error
		GRPCStatus() *status.Status
	}
	if !errors.As(err, &of) {
		return codes.OK
	}
	return of.GRPCStatus().Code()
}

// scripted is a submission service that answers by functions, of which those that are nil are not implemented.
type scripted struct {
	disclosurev1.UnimplementedSubmissionServiceServer
	reserve func(context.Context, *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error)
	settle  func(context.Context, *disclosurev1.SettleRequest) (*disclosurev1.SettleResponse, error)
	extend  func(context.Context, *disclosurev1.ExtendRequest) (*disclosurev1.ExtendResponse, error)
}

func (s *scripted) Reserve(ctx context.Context, r *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
	if s.reserve == nil {
		return s.UnimplementedSubmissionServiceServer.Reserve(ctx, r)
	}
	return s.reserve(ctx, r)
}

func (s *scripted) Settle(ctx context.Context, r *disclosurev1.SettleRequest) (*disclosurev1.SettleResponse, error) {
	if s.settle == nil {
		return s.UnimplementedSubmissionServiceServer.Settle(ctx, r)
	}
	return s.settle(ctx, r)
}

func (s *scripted) Extend(ctx context.Context, r *disclosurev1.ExtendRequest) (*disclosurev1.ExtendResponse, error) {
	if s.extend == nil {
		return s.UnimplementedSubmissionServiceServer.Extend(ctx, r)
	}
	return s.extend(ctx, r)
}

// serveScripted serves it, or, where s is nil, a server that knows no such service.
func (w *world) serveScripted(s *scripted) string {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	server := grpc.NewServer()
	if s != nil {
		disclosurev1.RegisterSubmissionServiceServer(server, s)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	w.t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

// through is a service that passes everything on to a real one.
func (w *world) through(address string) *scripted {
	real := disclosurev1.NewSubmissionServiceClient(w.dial(address))
	return &scripted{
		reserve: func(ctx context.Context, r *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
			return real.Reserve(ctx, r)
		},
		settle: func(ctx context.Context, r *disclosurev1.SettleRequest) (*disclosurev1.SettleResponse, error) {
			return real.Settle(ctx, r)
		},
		extend: func(ctx context.Context, r *disclosurev1.ExtendRequest) (*disclosurev1.ExtendResponse, error) {
			return real.Extend(ctx, r)
		},
	}
}

// Which errors let a submission go ahead, and which are somebody's to correct.
func TestRemoteGuardErrors(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	var answer atomic.Pointer[status.Status]
	address := w.serveScripted(&scripted{reserve: func(context.Context, *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
		return nil, answer.Load().Err()
	}})
	for code, want := range map[codes.Code]client.Decision{
		codes.Unavailable: client.Unguarded, codes.DeadlineExceeded: client.Unguarded, codes.Internal: client.Unguarded, codes.Unknown: client.Unguarded,
		codes.Aborted: client.Unguarded, codes.DataLoss: client.Unguarded, codes.Canceled: client.Unguarded,
		codes.Unimplemented: client.Refused, codes.Unauthenticated: client.Refused, codes.PermissionDenied: client.Refused, codes.InvalidArgument: client.Refused,
		codes.NotFound: client.Refused, codes.FailedPrecondition: client.Refused, codes.ResourceExhausted: client.Refused, codes.AlreadyExists: client.Refused,
		codes.OutOfRange: client.Refused, codes.Code(99): client.Refused,
	} {
		t.Run(code.String(), func(t *testing.T) {
			for _, reason := range []string{"", "SOME_REASON"} {
				st := status.New(code, "of the test")
				if reason != "" {
					var err error
					if st, err = st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "disclosured"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)}); err != nil {
						t.Fatal(err)
					}
				}
				answer.Store(st)
				a := admit(t, w.remote(client.GuardOptions{}, address), w.submission(w.vaa()), want, client.EndingCommitted)
				if want == client.Unguarded {
					if codeOf(a.Unguarded) != code {
						t.Errorf("unguarded because of %v", a.Unguarded)
					}
					continue
				}
				if reason == "" && (a.Reason != strings.ToUpper(code.String()) || a.RetryAfter != 0) || reason != "" && (a.Reason != reason || a.RetryAfter != 7*time.Second) {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	t.Run("an outcome of a later version", func(t *testing.T) {
		later := w.serveScripted(&scripted{reserve: func(context.Context, *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
			return &disclosurev1.ReserveResponse{Outcome: 99}, nil
		}})
		if a := admit(t, w.remote(client.GuardOptions{}, later), w.submission(w.vaa()), client.Refused, 0); a.Reason != "OUTCOME_99_REASON_0" {
			t.Errorf("%+v", a)
		}
	})
	t.Run("consumed", func(t *testing.T) {
		consumed := w.serveScripted(&scripted{reserve: func(context.Context, *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
			return &disclosurev1.ReserveResponse{Outcome: disclosurev1.ReserveOutcome_RESERVE_OUTCOME_CONSUMED, Consumption: &disclosurev1.Consumption{UpdateId: "1220ab"}}, nil
		}})
		if a := admit(t, w.remote(client.GuardOptions{}, consumed), w.submission(w.vaa()), client.AlreadyConsumed, 0); a.UpdateID != "1220ab" || a.Endpoint != consumed {
			t.Errorf("%+v", a)
		}
	})
	t.Run("an address without the service", func(t *testing.T) {
		if a := admit(t, w.remote(client.GuardOptions{}, w.serveScripted(nil)), w.submission(w.vaa()), client.Refused, 0); a.Reason != "UNIMPLEMENTED" {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a service that is switched off", func(t *testing.T) {
		if a := admit(t, w.remote(client.GuardOptions{}, w.services[0]), w.submission(w.vaa()), client.Refused, 0); a.Reason != "SUBMISSIONS_OFF" {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a VAA that is not genuine", func(t *testing.T) {
		s, store := w.serveGuard(roomy(10), nil)
		w.waitReady(s.address)
		genuine := w.vaa()
		forged := *genuine
		forged.Signatures = nil
		if a := admit(t, w.remote(client.GuardOptions{}, s.address), w.submission(&forged), client.Refused, 0); a.Reason != "NOT_AUTHENTIC" {
			t.Errorf("%+v", a)
		}
		store.wantLive(t, 0)
		admit(t, w.remote(client.GuardOptions{}, s.address), w.submission(genuine), client.Admitted, client.EndingCommitted)
	})
}

// A guard that takes connections and never answers: the submission waits for it no longer than ReserveTimeout.
func TestRemoteGuardSilent(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	asked := make(chan struct{}, 16)
	silent := w.serveScripted(&scripted{reserve: func(ctx context.Context, _ *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections by its backlog, and no more
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, address := range map[string]string{"to the question": silent, "to the connection": listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			g := w.remoteWith(client.RemoteGuardOptions{
				GuardOptions: client.GuardOptions{CallTimeout: 200 * time.Millisecond}, ReserveTimeout: 500 * time.Millisecond, Rounds: 100,
				Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
			}, address)
			begun := time.Now()
			a := admit(t, g, w.submission(w.vaa()), client.Unguarded, client.EndingCommitted)
			if took := time.Since(begun); took < 400*time.Millisecond || took > 5*time.Second {
				t.Errorf("it was decided after %s: %v", took, a.Unguarded)
			}
		})
	}
	t.Run("the caller leaves while it is asked", func(t *testing.T) {
		for len(asked) > 0 {
			<-asked
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-asked
			cancel(errLeft)
		}()
		a, err := w.remote(client.GuardOptions{}, silent).Admit(ctx, w.submission(w.vaa()), func(context.Context, client.Admission) client.Ending {
			t.Error("it was submitted")
			return 0
		})
		if a.Decision != client.Refused || a.Reason != "CANCELLED" || !errors.Is(err, errLeft) {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// The answer to a reservation is lost: asked again with its key, the guard gives it back. One reservation, one submission.
func TestRemoteGuardLostAnswer(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	s, store := w.serveGuard(roomy(10), nil)
	w.waitReady(s.address)
	lossy := w.through(s.address)
	pass, lose := lossy.reserve, atomic.Int64{}
	lossy.reserve = func(ctx context.Context, r *disclosurev1.ReserveRequest) (*disclosurev1.ReserveResponse, error) {
		got, err := pass(ctx, r)
		if lose.Add(-1) >= 0 {
			return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
		}
		return got, err
	}
	address := w.serveScripted(lossy)
	g := w.remote(client.GuardOptions{}, address)

	lose.Store(1)
	if a := admit(t, g, w.submission(w.vaa()), client.Admitted, client.EndingCommitted); !a.Again || a.Held != nil {
		t.Errorf("%+v, want the reservation again", a)
	}
	store.wantLive(t, 1)
	store.wantEnds(t, "committed")

	// At another replica, too.
	lose.Store(1)
	if a := admit(t, w.remote(client.GuardOptions{}, address, s.address), w.submission(w.vaa()), client.Admitted, client.EndingCommitted); !a.Again || a.Endpoint != s.address {
		t.Errorf("%+v, want the reservation again, of the replica", a)
	}

	// All answers are lost: it goes ahead, and there is nothing to settle. The reservation stays.
	lose.Store(100)
	third := w.submission(w.vaa())
	admit(t, g, third, client.Unguarded, client.EndingCommitted)
	lose.Store(0)
	admit(t, g, third, client.AlreadyReceived, 0)
	store.wantLive(t, 3)
	store.wantEnds(t, "committed", "committed")

	// A key of the caller's own takes the reservation up again, until it is settled.
	own := w.submission(w.vaa())
	own.Key = "relayer 7, started anew"
	admit(t, g, own, client.Admitted, client.EndingUnknown)
	if a := admit(t, w.remote(client.GuardOptions{}, s.address), own, client.Admitted, client.EndingConsumed); !a.Again {
		t.Errorf("%+v", a)
	}
	if a := admit(t, g, own, client.AlreadyReceived, 0); !a.Again {
		t.Errorf("%+v", a)
	}
}

// Several endpoints: one that decides is enough; a fault of the set-up is heard of where none does.
func TestRemoteGuardEndpoints(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	store := &watchedStore{Store: replayguard.NewMemory(roomy(100), nil)}
	share := func(_ *api.Config, d *api.Deps) { d.Guard = store }
	first, _ := w.serveGuard(roomy(1), share)
	second, _ := w.serveGuard(roomy(1), share)
	for _, s := range []*served{first, second} {
		w.waitReady(s.address)
	}
	off, nobody := w.services[0], "127.0.0.1:1"

	if a := admit(t, w.remote(client.GuardOptions{}, nobody, off, second.address), w.submission(w.vaa()), client.Admitted, client.EndingCommitted); a.Endpoint != second.address {
		t.Errorf("%+v", a)
	}
	if a := admit(t, w.remote(client.GuardOptions{}, nobody, off), w.submission(w.vaa()), client.Refused, 0); a.Reason != "SUBMISSIONS_OFF" {
		t.Errorf("%+v", a)
	}

	// The one that has decided is asked first; when it ends, the other goes on, and settles what the first had admitted.
	g := w.remote(client.GuardOptions{CallTimeout: time.Second}, first.address, second.address)
	s := w.submission(w.vaa())
	a, err := g.Admit(t.Context(), s, func(_ context.Context, a client.Admission) client.Ending {
		if a.Endpoint != first.address {
			t.Errorf("%+v", a)
		}
		first.stop()
		return client.EndingConsumed
	})
	if err != nil || a.Held != nil {
		t.Errorf("%+v, %v", a, err)
	}
	if a := admit(t, g, s, client.AlreadyReceived, 0); a.Endpoint != second.address {
		t.Errorf("%+v", a)
	}
	store.wantEnds(t, "committed", "consumed")
}

// A reservation that is gone is not extended for ever, and the submission goes on.
func TestRemoteGuardLosesReservation(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	s, _ := w.serveGuard(roomy(10), nil)
	w.waitReady(s.address)
	forgetful := w.through(s.address)
	var asked atomic.Int64
	forgetful.extend = func(context.Context, *disclosurev1.ExtendRequest) (*disclosurev1.ExtendResponse, error) {
		if asked.Add(1) == 1 {
			return nil, status.Error(codes.Unavailable, "down")
		}
		return nil, status.Error(codes.NotFound, "no such reservation")
	}
	failed := make(chan client.Event, 8)
	g := w.remote(client.GuardOptions{TTL: 2 * time.Second, Observe: func(e client.Event) {
		if e.Kind == client.EventExtended && e.Err != nil {
			failed <- e
		}
	}}, w.serveScripted(forgetful))
	a, err := g.Admit(t.Context(), w.submission(w.vaa()), func(ctx context.Context, _ client.Admission) client.Ending {
		<-failed
		<-failed
		if ctx.Err() != nil {
			t.Error("the submission was stopped")
		}
		return client.EndingUnknown
	})
	if err != nil || a.Decision != client.Admitted || codeOf(a.Held) != codes.NotFound {
		t.Errorf("%+v, %v", a, err)
	}
	if asked.Load() != 2 {
		t.Errorf("asked %d times, want twice", asked.Load())
	}
}

// authority issues certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var der []byte
	der, a.key = sign(t, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a key and its certificate, signed by the authority, or by itself where that is nil.
func sign(t *testing.T, template *x509.Certificate, by *authority) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, parentKey := template, key
	if by != nil {
		parent, parentKey = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// issue makes a certificate for 127.0.0.1 in a name.
func (a *authority) issue(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	der, key := sign(t, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a)
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// files are a server's TLS files; clients need certificates of the same authority.
func (a *authority) files(t *testing.T) api.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	files := api.TLSFiles{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ClientCAFile: filepath.Join(dir, "ca.pem")}
	certPEM, keyPEM := a.issue(t, "the service")
	for path, content := range map[string][]byte{
		files.CertFile: certPEM, files.KeyFile: keyPEM, files.ClientCAFile: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// as are the dial options of a client of that name, "" for one without a certificate, that trusts the authority's servers.
func (a *authority) as(t *testing.T, name string, trusts *authority) []grpc.DialOption {
	t.Helper()
	config := &tls.Config{RootCAs: trusts.pool}
	if name != "" {
		cert, err := tls.X509KeyPair(a.issue(t, name))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
}

// Whom a guard takes a relayer for follows from the certificate that its connection shows.
func TestRemoteGuardByCertificate(t *testing.T) {
	w := newWorld(t, worldOptions{threshold: 4})
	ca, foreign := newAuthority(t), newAuthority(t)
	s, store := w.serveGuard(replayguard.Limits{MaxEntries: 8}, func(c *api.Config, _ *api.Deps) { // two for each client
		c.TLS, c.Guard.AllowAnonymous = ca.files(t), false
	})
	as := func(by *authority, name string, trusts *authority) client.Guard {
		return w.remoteWith(client.RemoteGuardOptions{Dial: by.as(t, name, trusts)}, s.address)
	}
	alice, renewed, bob := as(ca, "alice", ca), as(ca, "alice", ca), as(ca, "bob", ca)
	first := w.submission(w.vaa())
	first.Key = "key"
	w.eventually("a ready service", func() error {
		a, err := alice.Admit(t.Context(), first, func(context.Context, client.Admission) client.Ending { return client.EndingUnknown })
		if err == nil {
			err = a.Unguarded
		}
		return err
	})
	if a := admit(t, renewed, first, client.Admitted, client.EndingUnknown); !a.Again {
		t.Errorf("over a renewed certificate: %+v", a)
	}
	admit(t, bob, first, client.AlreadyReceived, 0) // with the same key
	admit(t, alice, w.submission(w.vaa()), client.Admitted, client.EndingUnknown)
	if a := admit(t, renewed, w.submission(w.vaa()), client.Refused, 0); a.Reason != "QUOTA" {
		t.Errorf("%+v", a)
	}
	admit(t, bob, w.submission(w.vaa()), client.Admitted, client.EndingUnknown)
	store.wantLive(t, 3)

	// A handshake that fails is a guard that can't be had, and the error says what it is.
	for name, g := range map[string]client.Guard{
		"no certificate": as(ca, "", ca), "a foreign certificate": as(foreign, "alice", ca), "a server that is not trusted": as(ca, "alice", foreign),
	} {
		if a := admit(t, g, w.submission(w.vaa()), client.Unguarded, 0); !strings.Contains(a.Unguarded.Error(), "certificate") && !strings.Contains(a.Unguarded.Error(), "broken pipe") {
			t.Errorf("%s: unguarded because of %v", name, a.Unguarded)
		}
	}
}

func TestGuardOptions(t *testing.T) {
	store := replayguard.NewMemory(roomy(1), nil)
	for name, o := range map[string]client.LocalGuardOptions{
		"a time to live of less than 2 s":              {GuardOptions: client.GuardOptions{TTL: time.Second}},
		"a time to live beyond the greatest":           {GuardOptions: client.GuardOptions{TTL: time.Hour}},
		"a negative capacity":                          {MaxEntries: -1},
		"a capacity beside a store":                    {MaxEntries: 1, Store: store},
		"a greatest time to live of less than nothing": {MaxTTL: -1},
	} {
		if g, err := client.NewLocalGuard(o); err == nil || g != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	plain := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if _, err := client.NewRemoteGuard(nil, client.RemoteGuardOptions{Dial: plain}); err == nil {
		t.Error("a guard without address")
	}
	if _, err := client.NewRemoteGuard([]string{"127.0.0.1:1"}, client.RemoteGuardOptions{}); err == nil {
		t.Error("a guard without credentials")
	}
	if _, err := client.NewRemoteGuard([]string{"127.0.0.1:1"}, client.RemoteGuardOptions{Dial: plain, GuardOptions: client.GuardOptions{TTL: -1}}); err == nil {
		t.Error("a guard with a negative time to live")
	}
	if _, err := client.NewRelayer(nil, nil); err == nil {
		t.Error("a relayer of nothing")
	}
}
