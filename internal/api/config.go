package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/disclosured/disclosured/internal/secretfile"
	"github.com/disclosured/disclosured/replayguard"
)

// Config is how the server serves. Start from DefaultConfig: zero values are not defaults.
type Config struct {
	// Listen is the gRPC address, "host:port". Other addresses than loopback need InsecureListen.
	Listen string
	// OpsListen is the address of the operator's HTTP endpoints (/metrics, /livez, /readyz, /healthz); "" is none. They show no
	// party, contract or digest, so the address is free; a participant's and a synchronizer's id they do show.
	OpsListen string
	// InsecureListen allows Listen to be reached from other hosts although callers are not authorized yet: whoever reaches the
	// address can read every replay node.
	InsecureListen bool
	// TLS, where its files are set, makes gRPC speak TLS.
	TLS TLSFiles

	// FreshnessBound is the age of the last proof of completeness beyond which calls are refused unless they allow stale answers.
	FreshnessBound time.Duration
	// ConnectionGrace is how old the last proof may be while the ledger is not followed before the service is not ready. Calls go by
	// FreshnessBound alone.
	ConnectionGrace time.Duration
	// ExpiryMargin is how long before its guardian set expires a VAA that verifies is called EXPIRES_SOON instead of REDEEMABLE.
	ExpiryMargin time.Duration
	// VerdictCacheEntries and VerdictCacheBytes (estimated) bound what is remembered of VAAs' signatures.
	VerdictCacheEntries, VerdictCacheBytes int
	// DefaultWait is how long a call waits for what its ReadOptions ask where it does not say; MaxWait bounds what it says.
	DefaultWait, MaxWait time.Duration
	// DefaultDeadline is a call's deadline where the caller set none, MaxDeadline the greatest that it may set.
	DefaultDeadline, MaxDeadline time.Duration
	// MaxRequestBytes and MaxAnswerBytes bound one message.
	MaxRequestBytes, MaxAnswerBytes int
	Limits                          Limits
	// SendTimeout is how long a client may take to receive an answer. Its connection is closed then.
	SendTimeout time.Duration
	// KeepaliveMinTime is the least time between a client's pings. Clients that ping oftener are cut off (too_many_pings).
	KeepaliveMinTime time.Duration
	// MaxConnectionAge closes connections, with the grace time for calls in progress, so that clients find new replicas; with jitter
	// of ±10 %. 0 is for ever.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
	// DrainTime is how long running calls may take when the server stops, before connections are cut.
	DrainTime time.Duration
	// Reflection serves gRPC reflection (v1 and v1alpha).
	Reflection bool
	Guard      GuardConfig

	// What GetServerInfo tells besides.
	Info Info
}

// GuardConfig is what the submission service allows. The limits of what is reserved are its store's.
type GuardConfig struct {
	// AllowAnonymous takes all connections without a client certificate for one client. Without it they can't reserve.
	AllowAnonymous bool
	// AllowDigest lets bare digests be reserved, which nothing shows to be those of genuine VAAs.
	AllowDigest bool
	// MaxTTL is how far ahead an expiry may lie by this server's clock, at least a second. The store's own bound, by the store's clock,
	// should be greater by what the two clocks may differ.
	MaxTTL time.Duration
}

// Limits bound callers. A caller is an address (of IPv6 a /64).
type Limits struct {
	// RatePerSecond is how many calls a caller may make per second in the long run, Burst how many at once; an item of a batch is
	// a call, of a batch greater than Burst as many as Burst. A batch waits for what it lacks, up to five seconds. RatePerSecond 0 is no limit.
	RatePerSecond float64
	Burst         int
	// Calls and streams at once, in all and per caller.
	MaxCalls, MaxCallsPerCaller     int
	MaxStreams, MaxStreamsPerCaller int
	// MaxStreamsPerConnection is what HTTP/2 tells clients; they wait beyond it.
	MaxStreamsPerConnection uint32
	// MaxCallers bounds the table of callers.
	MaxCallers int
	// Connections at once. Beyond it one without calls makes room (conns.go); where all have calls, more are closed as they come: MaxConnections should
	// exceed MaxCalls and MaxStreams together, so that there always are some without.
	MaxConnections, MaxConnectionsPerCaller int
	// MaxOpsConnections and MaxOpsConnectionsPerCaller bound those to the operator's endpoints, which probes and scrapers ask: a handful of addresses
	// with one or two connections each. Their requests can be asked again, so they may be cut where a caller holds more than others.
	MaxOpsConnections, MaxOpsConnectionsPerCaller int
	// AnswerBytes bounds the encoded answers that their callers have not taken yet. No less than MaxAnswerBytes.
	AnswerBytes, AnswerBytesPerCaller int
}

// TLSFiles are PEM files. All empty is plaintext.
type TLSFiles struct {
	// CertFile and KeyFile are the server's chain and key.
	CertFile, KeyFile string
	// ClientCAFile, where set, makes client certificates of its authorities required.
	ClientCAFile string
}

// Info is what the service says about itself.
type Info struct {
	Version string
	// Operators and GuardianGovernance are the configured anchors, PinnedPackages the configured package ids by name.
	Operators          []string
	GuardianGovernance string
	PinnedPackages     map[string][]string
	// Store is "postgres" or "none".
	Store string
	// ReadAs are the parties that the service reads as, empty for any party.
	ReadAs    []string
	StartedAt time.Time
}

// DefaultConfig is a server on loopback for one host's callers and a replica's load.
func DefaultConfig() Config {
	return Config{
		Listen:          "127.0.0.1:7420",
		OpsListen:       "127.0.0.1:7421",
		FreshnessBound:  15 * time.Second,
		ConnectionGrace: 3 * time.Second,
		ExpiryMargin:    time.Hour,

		VerdictCacheEntries: 8192, VerdictCacheBytes: 32 << 20,

		DefaultWait:     5 * time.Second,
		MaxWait:         30 * time.Second,
		DefaultDeadline: 10 * time.Second,
		MaxDeadline:     60 * time.Second,
		MaxRequestBytes: 8 << 20,
		MaxAnswerBytes:  64 << 20,
		SendTimeout:     time.Minute,
		Limits: Limits{
			RatePerSecond: 500, Burst: 2000,
			MaxCalls: 2048, MaxCallsPerCaller: 512,
			MaxStreams: 512, MaxStreamsPerCaller: 64,
			MaxStreamsPerConnection: 256, MaxCallers: 10_000,
			MaxConnections: 4096, MaxConnectionsPerCaller: 1024,
			MaxOpsConnections: 256, MaxOpsConnectionsPerCaller: 64,
			AnswerBytes: 512 << 20, AnswerBytesPerCaller: 128 << 20,
		},
		KeepaliveMinTime:      10 * time.Second,
		MaxConnectionAge:      30 * time.Minute,
		MaxConnectionAgeGrace: 30 * time.Second,
		DrainTime:             5 * time.Second,
		Reflection:            true,
		Guard:                 GuardConfig{MaxTTL: replayguard.DefaultMaxTTL},
	}
}

// Validate says everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var faults []error
	positive := func(name string, ok bool) {
		if !ok {
			faults = append(faults, fmt.Errorf("api: %s must be greater than 0", name))
		}
	}
	positive("freshness bound", c.FreshnessBound > 0)
	positive("connection grace", c.ConnectionGrace > 0)
	positive("verdict cache entries", c.VerdictCacheEntries > 0)
	positive("verdict cache bytes", c.VerdictCacheBytes > 0)
	if c.ExpiryMargin < 0 {
		faults = append(faults, fmt.Errorf("api: expiry margin %s is negative", c.ExpiryMargin))
	}
	if c.MaxWait < 0 || c.DefaultWait < 0 {
		faults = append(faults, errors.New("api: a wait must not be negative; 0 is no wait"))
	}
	positive("default deadline", c.DefaultDeadline > 0)
	positive("max deadline", c.MaxDeadline > 0)
	positive("max request bytes", c.MaxRequestBytes > 0)
	positive("max answer bytes", c.MaxAnswerBytes > 0)
	positive("max calls", c.Limits.MaxCalls > 0 && c.Limits.MaxCallsPerCaller > 0)
	positive("max streams", c.Limits.MaxStreams > 0 && c.Limits.MaxStreamsPerCaller > 0 && c.Limits.MaxStreamsPerConnection > 0)
	positive("max callers", c.Limits.MaxCallers > 0)
	positive("max connections", c.Limits.MaxConnections > 0 && c.Limits.MaxConnectionsPerCaller > 0)
	positive("max ops connections", c.Limits.MaxOpsConnections > 0 && c.Limits.MaxOpsConnectionsPerCaller > 0)
	positive("send timeout", c.SendTimeout > 0)
	if c.MaxAnswerBytes > c.Limits.AnswerBytesPerCaller || c.MaxAnswerBytes > c.Limits.AnswerBytes {
		faults = append(faults, fmt.Errorf("api: an answer may have %d bytes, which is more than all that are held at once may", c.MaxAnswerBytes))
	}
	positive("keepalive minimum time", c.KeepaliveMinTime > 0)
	positive("drain time", c.DrainTime > 0)
	if c.Guard.MaxTTL < time.Second {
		faults = append(faults, fmt.Errorf("api: the guard's greatest time to live is %s; want at least 1s", c.Guard.MaxTTL))
	}
	if c.Limits.RatePerSecond < 0 || c.Limits.RatePerSecond > 0 && c.Limits.Burst < 1 {
		faults = append(faults, errors.New("api: a rate needs a burst of at least 1, and neither may be negative"))
	}
	if c.DefaultWait > c.MaxWait {
		faults = append(faults, fmt.Errorf("api: default wait %s is greater than max wait %s", c.DefaultWait, c.MaxWait))
	}
	if c.DefaultDeadline > c.MaxDeadline {
		faults = append(faults, fmt.Errorf("api: default deadline %s is greater than max deadline %s", c.DefaultDeadline, c.MaxDeadline))
	}
	if err := c.checkListen(); err != nil {
		faults = append(faults, err)
	}
	if c.OpsListen != "" {
		if _, _, err := net.SplitHostPort(c.OpsListen); err != nil {
			faults = append(faults, fmt.Errorf("api: ops listen address %q: want host:port: %w", c.OpsListen, err))
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		faults = append(faults, errors.New("api: TLS needs both a certificate file and a key file"))
	}
	if c.TLS.ClientCAFile != "" && c.TLS.CertFile == "" {
		faults = append(faults, errors.New("api: a client CA file needs a certificate file and a key file"))
	}
	return errors.Join(faults...)
}

// checkListen holds the rule that nobody serves replay nodes to the world by accident. A name counts as loopback only if it is
// "localhost": what else a name resolves to is not ours to promise.
func (c *Config) checkListen() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("api: listen address %q: want host:port: %w", c.Listen, err)
	}
	if c.InsecureListen || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("api: listen address %q can be reached from other hosts, and callers are not authorized: "+
		"whoever reaches it can read every replay node. Listen on loopback, or allow it with insecure-listen (TLS and client certificates alone do not, they say who calls and not what for)", c.Listen)
}

// load reads the files. The result is nil for plaintext.
func (f TLSFiles) load() (*tls.Config, error) {
	if f.CertFile == "" {
		return nil, nil
	}
	cert, err := secretfile.KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("api: load the TLS certificate %s and key %s: %w", f.CertFile, f.KeyFile, err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	if f.ClientCAFile != "" {
		if cfg.ClientCAs, err = secretfile.CertPool(f.ClientCAFile); err != nil {
			return nil, fmt.Errorf("api: read the client CA file: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}
