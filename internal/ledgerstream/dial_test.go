package ledgerstream

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
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

func certificatePEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	key, cert := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, authority{})
	return authority{cert: cert, key: key}
}

func sign(t *testing.T, template *x509.Certificate, by authority) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if by.cert == nil {
		by = authority{cert: template, key: key}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

// files writes a certificate for a name and its key, and returns their paths and the pair.
func (a authority) files(t *testing.T, name string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, cert := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a)
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeFile(t, certFile, certificatePEM(cert))
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})))
	return certFile, keyFile, tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// listen serves the participant on a loopback port.
func (p *participant) listen(t testing.TB, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	ledgerapi.RegisterStateServiceServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

func askEnd(t *testing.T, cfg ConnConfig) error {
	t.Helper()
	conn, err := Dial(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = ledgerapi.NewStateServiceClient(conn).GetLedgerEnd(ctx, &ledgerapi.GetLedgerEndRequest{})
	return err
}

// A30: the forms of a target, and what is wrong with the others.
func TestTargets(t *testing.T) {
	p := newParticipant()
	address := p.listen(t)
	for _, target := range []string{address, "dns:///" + address, "passthrough:///" + address} {
		if err := askEnd(t, ConnConfig{Target: target, Plaintext: true}); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for target, want := range map[string]string{
		"":                     "missing",
		"host":                 "host:port",
		":6865":                "host:port",
		"host:":                "host:port",
		"host:99999":           "not a port",
		"host:0":               "not a port",
		"dns:///host:no-port":  "not a port",
		"https://host:443":     "without https://",
		"http://host:80/":      "without http://",
		"dns://host:443":       "three slashes",
		"dns:///host":          "host:port",
		"passthrough:///":      "host:port",
		"unknown:///host:port": "", // gRPC's own resolvers decide
	} {
		_, err := Dial(ConnConfig{Target: target, Plaintext: true})
		var fault *ConfigError
		if want != "" && (!errors.As(err, &fault) || fault.Setting != "Target" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want words about %q", target, err, want)
		}
	}
}

// TLS and mutual TLS from files; nothing below TLS 1.2; plaintext only where asked for.
func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	_, _, serverPair := ca.files(t, "participant.example")
	certFile, keyFile, _ := ca.files(t, "client")
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, caFile, certificatePEM(ca.cert))
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	serve := func(change func(*tls.Config)) string {
		config := &tls.Config{Certificates: []tls.Certificate{serverPair}, ClientCAs: roots}
		change(config)
		return newParticipant().listen(t, grpc.Creds(credentials.NewTLS(config)))
	}
	plain := serve(func(*tls.Config) {})
	mutual := serve(func(c *tls.Config) { c.ClientAuth = tls.RequireAndVerifyClientCert })
	old := serve(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
	for name, c := range map[string]struct {
		cfg ConnConfig
		ok  bool
	}{
		"TLS":                   {ConnConfig{Target: plain, CAFile: caFile, ServerName: "participant.example"}, true},
		"wrong name":            {ConnConfig{Target: plain, CAFile: caFile, ServerName: "another.example"}, false},
		"unknown authority":     {ConnConfig{Target: plain, ServerName: "participant.example"}, false},
		"plaintext to TLS":      {ConnConfig{Target: plain, Plaintext: true}, false},
		"mutual TLS":            {ConnConfig{Target: mutual, CAFile: caFile, ServerName: "participant.example", CertFile: certFile, KeyFile: keyFile}, true},
		"no client certificate": {ConnConfig{Target: mutual, CAFile: caFile, ServerName: "participant.example"}, false},
		"TLS 1.1":               {ConnConfig{Target: old, CAFile: caFile, ServerName: "participant.example"}, false},
	} {
		if err := askEnd(t, c.cfg); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cfg := range map[string]ConnConfig{
		"no key":                 {Target: plain, CertFile: certFile},
		"no such certificate":    {Target: plain, CertFile: "/nowhere", KeyFile: keyFile},
		"no such authority":      {Target: plain, CAFile: "/nowhere"},
		"a key as authority":     {Target: plain, CAFile: keyFile},
		"plaintext and TLS":      {Target: plain, Plaintext: true, CAFile: caFile},
		"negative receive limit": {Target: plain, Plaintext: true, MaxReceiveBytes: -1},
	} {
		var fault *ConfigError
		if _, err := Dial(cfg); !errors.As(err, &fault) {
			t.Errorf("%s: %v, want a ConfigError", name, err)
		}
	}
}

// A30: a balancer that doesn't negotiate HTTP/2 by ALPN: refused, with words that say so.
func TestNoALPN(t *testing.T) {
	ca := newAuthority(t)
	_, _, pair := ca.files(t, "participant.example")
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, caFile, certificatePEM(ca.cert))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(context.Background())
			_ = conn.Close()
		}
	}()
	defer func() { _ = listener.Close(); <-done }()
	err = askEnd(t, ConnConfig{Target: listener.Addr().String(), CAFile: caFile, ServerName: "participant.example"})
	if err == nil || !strings.Contains(err.Error(), "ALPN") {
		t.Errorf("got %v, want words about ALPN", err)
	}
}

// Tokens travel over TLS unless plaintext was asked for, each call with its own.
func TestDialWithToken(t *testing.T) {
	p := newParticipant()
	var got []string
	p.onEnd = func(ctx context.Context, _ int) error {
		got = append(got, authorization(ctx))
		return nil
	}
	address := p.listen(t)
	n := 0
	tokens := tokenFunc(func() string {
		n++
		return strings.Repeat("T", n)
	})
	conn, err := Dial(ConnConfig{Target: address, Plaintext: true, Token: tokens})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	states := ledgerapi.NewStateServiceClient(conn)
	for range 2 {
		if _, err := states.GetLedgerEnd(t.Context(), &ledgerapi.GetLedgerEndRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || got[0] != "Bearer T" || got[1] != "Bearer TT" {
		t.Errorf("calls came with %q", got)
	}
	// A source that has none: the operator's to mend.
	err = askEnd(t, ConnConfig{Target: address, Plaintext: true, Token: FileToken("/nowhere")})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

// E03: a server that allows pings only every five minutes: the client slows down instead of being thrown out again and again.
func TestKeepaliveSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		r := startOn(t, p, keepalive.EnforcementPolicy{MinTime: 5 * time.Minute})
		r.await(t, "live", proven(12))
		<-time.After(time.Hour)
		settled := r.Status().Reconnects
		<-time.After(2 * time.Hour)
		if st := r.Status(); st.Reconnects > settled || settled > 10 || st.State != StateLive {
			t.Errorf("%d reconnects in an hour, %d in the next two; %s: %s", settled, st.Reconnects-settled, st.State, st.Detail)
		}
	})
}

// What a participant permits (a ping every 10 s, with an open call only) is not overstepped.
func TestKeepaliveWithinWhatAParticipantPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		r := startOn(t, p, keepalive.EnforcementPolicy{MinTime: 10 * time.Second})
		r.await(t, "live", proven(12))
		<-time.After(2 * time.Hour)
		if st := r.Status(); st.Reconnects > 0 {
			t.Errorf("%d reconnects in two hours: %s", st.Reconnects, st.Detail)
		}
	})
}

// E04: however long a participant was away, its return is noticed soon.
func TestReturnIsNoticedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		r := startOn(t, p, keepalive.EnforcementPolicy{MinTime: 10 * time.Second})
		r.await(t, "live", proven(12))
		for _, away := range []time.Duration{20 * time.Second, time.Hour, 24 * time.Hour} {
			p.vanish()
			r.await(t, "gone", func(st Status) bool { return st.State == StateReconnecting })
			<-time.After(away)
			p.change(func() { p.unreachable = false; p.end++ })
			back := time.Now()
			r.await(t, "back", proven(p.end))
			if took := time.Since(back); took > 4*time.Second {
				t.Errorf("away for %s, and noticed after %s", away, took)
			}
		}
	})
}

// Connections that break as soon as they are made are not followed at their pace, whether attempts between them fail or not.
func TestFlappingConnection(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newParticipant()
			p.add(tx(10, create(cid(1))))
			r := startOn(t, p, keepalive.EnforcementPolicy{MinTime: 10 * time.Second})
			r.await(t, "live", proven(12))
			before := r.Status().Reconnects
			for range 600 { // a minute
				p.vanish()
				if refused {
					<-time.After(50 * time.Millisecond)
				}
				p.change(func() { p.unreachable = false })
				<-time.After(50 * time.Millisecond)
			}
			if tries := r.Status().Reconnects - before; tries < 5 || tries > 60 {
				t.Errorf("attempts refused: %t: %d tries in a minute, want at most about one a second", refused, tries)
			}
			p.change(func() { p.end++ })
			r.await(t, "back", proven(p.end))
		})
	}
}

// startOn follows a participant with a keepalive policy, over a connection made by Dial.
func startOn(t *testing.T, p *participant, policy keepalive.EnforcementPolicy) *running {
	t.Helper()
	conn, err := dial(ConnConfig{Target: "passthrough:///participant:6865", Plaintext: true}, p.inMemory(t, grpc.KeepaliveEnforcementPolicy(policy)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	sink := &memorySink{}
	f := New(testConfig(), conn, sink)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &running{Follower: f, p: p, sink: sink}
}
