package ledgerstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/disclosured/disclosured/internal/secretfile"
)

// DefaultMaxReceiveBytes is the largest message that is received unless configured. A created event carries its payload twice
// (as value and as blob), a participant doesn't bound what it sends, and gRPC's own default of 4 MiB is less than one
// transaction can have.
const DefaultMaxReceiveBytes = 64 << 20

// Keepalive. A participant refuses clients that ping more often than every 10 s, or without an open call; a connection whose
// other end is silently gone is noticed after keepaliveTime + keepaliveTimeout. A server that wants it slower still says so, and
// gRPC then doubles the time by itself.
const (
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// ConnConfig says how to reach a participant.
type ConnConfig struct {
	// Target is the participant's address: "host:port", or a gRPC name as "dns:///host:port", "passthrough:///host:port",
	// "unix:///path".
	Target string
	// Plaintext turns TLS off. Tokens, if any, then travel in clear.
	Plaintext bool
	// CAFile is a PEM file of authorities to trust; the system's where empty.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key in PEM, for mutual TLS; both or none. They are read again for each
	// connection.
	CertFile, KeyFile string
	// ServerName is the name that the participant's certificate must have, where it is not that of Target.
	ServerName string
	// MaxReceiveBytes bounds a received message. Default DefaultMaxReceiveBytes.
	MaxReceiveBytes int
	// Token gives the access token of each call; nil for none.
	Token TokenSource
	// Log is told of what is allowed but unwise; may be nil.
	Log *slog.Logger
}

// Dial makes a connection to a participant. It doesn't wait for it to come up: the first call does, or says why not. The error is
// a *ConfigError.
func Dial(cfg ConnConfig) (*grpc.ClientConn, error) { return dial(cfg) }

// DialWith is Dial with more options, which go after its own: interceptors that listen, say.
func DialWith(cfg ConnConfig, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return dial(cfg, more...)
}

func dial(cfg ConnConfig, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := checkTarget(cfg.Target); err != nil {
		return nil, &ConfigError{Setting: "Target", Err: err}
	}
	if cfg.MaxReceiveBytes < 0 {
		return nil, &ConfigError{Setting: "MaxReceiveBytes", Err: fmt.Errorf("is negative: %d", cfg.MaxReceiveBytes)}
	}
	if cfg.MaxReceiveBytes == 0 {
		cfg.MaxReceiveBytes = DefaultMaxReceiveBytes
	}
	transport, err := cfg.transport()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxReceiveBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// gRPC's own waits between attempts grow to two minutes. The follower has its own above, and goes on as soon as there is a connection:
		// these are what a participant's return is noticed by. An attempt costs little where nobody is.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("disclosured"),
	}
	if cfg.Token != nil {
		if cfg.Plaintext && cfg.Log != nil {
			cfg.Log.Warn("access tokens are sent to the participant without TLS", "target", cfg.Target)
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer{source: cfg.Token, secure: !cfg.Plaintext}))
		if source, ok := cfg.Token.(rejectable); ok {
			options = append(options, grpc.WithUnaryInterceptor(tellRejected(source)))
		}
	}
	conn, err := grpc.NewClient(cfg.Target, append(options, more...)...)
	if err != nil {
		return nil, &ConfigError{Setting: "Target", Err: err}
	}
	return conn, nil
}

// checkTarget explains the mistakes that gRPC would report as a name that doesn't resolve, later.
func checkTarget(target string) error {
	scheme, rest, isURL := strings.Cut(target, "://")
	switch {
	case target == "":
		return errMissing
	case isURL && (scheme == "http" || scheme == "https"):
		return fmt.Errorf("%q: give host:port without %s://", target, scheme)
	case isURL && (scheme == "dns" || scheme == "passthrough"):
		_, endpoint, ok := strings.Cut(rest, "/") // before it a name server may stand
		if !ok {
			return fmt.Errorf("%q: the form is %s:///host:port, with three slashes", target, scheme)
		}
		return checkHostPort(target, endpoint)
	case isURL, strings.HasPrefix(target, "unix:"), strings.HasPrefix(target, "dns:"), strings.HasPrefix(target, "passthrough:"):
		return nil // another of gRPC's schemes; it knows best
	default:
		return checkHostPort(target, target)
	}
}

func checkHostPort(target, endpoint string) error {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q: the form is host:port (a participant's usual port is 6865)", target)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return fmt.Errorf("%q: %q is not a port (a participant's usual port is 6865)", target, port)
	}
	return nil
}

// transport makes the connection's security. The names of application protocols are gRPC's to set: a list of our own would keep
// a balancer from choosing HTTP/2.
func (cfg ConnConfig) transport() (credentials.TransportCredentials, error) {
	if cfg.Plaintext {
		if cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" || cfg.ServerName != "" {
			return nil, &ConfigError{Setting: "Plaintext", Err: errors.New("excludes the settings of TLS")}
		}
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CAFile != "" {
		roots, err := secretfile.CertPool(cfg.CAFile)
		if err != nil {
			return nil, &ConfigError{Setting: "CAFile", Err: err}
		}
		config.RootCAs = roots
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, &ConfigError{Setting: "CertFile and KeyFile", Err: errors.New("only one of them is given")}
	}
	if cfg.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := secretfile.KeyPair(cfg.CertFile, cfg.KeyFile)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, &ConfigError{Setting: "CertFile and KeyFile", Err: err}
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return credentials.NewTLS(config), nil
}
