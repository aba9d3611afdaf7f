package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/secretfile"
	"github.com/disclosured/disclosured/replayguard"
)

// Config is everything that can be set, and its comments are the manual: `disclosured serve --help`, docs/configuration.md and
// `disclosured config` are made from this type.
//
// A setting is called by its path, as participant.address. It can be given, from the strongest to the weakest, as a flag
// (--participant-address), as an environment variable (DISCLOSURED_PARTICIPANT_ADDRESS), or in the YAML file that --config names.
// Lists are comma-separated in flags and variables. A key that does not exist is refused, in the file and in the environment.
// Secrets are never settings: settings name the files that hold them.
type Config struct {
	Participant ParticipantConfig `koanf:"participant"`
	Packages    PackagesConfig    `koanf:"packages"`
	Anchors     AnchorsConfig     `koanf:"anchors"`
	Database    DatabaseConfig    `koanf:"database"`
	API         APIConfig         `koanf:"api"`
	Guard       GuardConfig       `koanf:"guard"`
	Ops         OpsConfig         `koanf:"ops"`
	Log         LogConfig         `koanf:"log"`
}

// ParticipantConfig says which participant to follow, and as whom.
type ParticipantConfig struct {
	// Where the participant's gRPC Ledger API listens: host:port, dns:///host:port or passthrough:///host:port. Required.
	Address string `koanf:"address"`
	// The participant's id, name::fingerprint. Set: another participant at the address is refused, at any time. Unset: whoever
	// answers is followed, but a database that holds another participant's index is refused at the start.
	ID string `koanf:"id"`
	// How long the participant may take to answer at the start before the service gives up. Later outages are waited out for ever.
	StartTimeout time.Duration `koanf:"start_timeout"`
	// Talk without TLS. For a participant on this host only: a token would travel in the clear.
	Plaintext bool `koanf:"plaintext"`
	// The PEM file of the authorities that the participant's certificate must come from. Unset: those of the system.
	CAFile string `koanf:"ca_file"`
	// Our client certificate (PEM), where the participant asks for one. Goes with key_file.
	CertFile string `koanf:"cert_file"`
	// The private key of cert_file (PEM).
	KeyFile string `koanf:"key_file"`
	// The name to expect in the participant's certificate, where it is not the address's.
	ServerName string `koanf:"server_name"`
	// A file that holds the bearer token (a JWT). It is read again whenever it changes. Not together with the oauth settings.
	TokenFile string `koanf:"token_file"`
	// The OAuth2 token endpoint, to get tokens by client credentials. Needs oauth_client_id and oauth_client_secret_file.
	OAuthTokenURL string `koanf:"oauth_token_url"`
	// The OAuth2 client id.
	OAuthClientID string `koanf:"oauth_client_id"`
	// A file that holds the OAuth2 client secret.
	OAuthClientSecretFile string `koanf:"oauth_client_secret_file"`
	// The audience to ask a token for. Canton deprecates tokens without one.
	OAuthAudience string `koanf:"oauth_audience"`
	// The scopes to ask a token for, as daml_ledger_api.
	OAuthScopes []string `koanf:"oauth_scopes"`
	// The parties to read as; the user of the token needs CanReadAs for each. One reader as the bridge's operator sees all that
	// is served. Either this or read_as_any_party.
	ReadAs []string `koanf:"read_as"`
	// Read as any party; the user needs CanReadAsAnyParty.
	ReadAsAnyParty bool `koanf:"read_as_any_party"`
	// The largest message to take from the participant, in bytes. One update with a split of full nodes is about 43 KB; an update
	// beyond the limit halts the service at its offset.
	MaxMessageBytes int `koanf:"max_message_bytes"`
	// How often to ask for the ledger end and prove the index complete up to it.
	PollInterval time.Duration `koanf:"poll_interval"`
	// How long a single question to the participant may take before the connection counts as dead.
	CallTimeout time.Duration `koanf:"call_timeout"`
}

// PackagesConfig says which Daml packages are served.
type PackagesConfig struct {
	// The package names to follow.
	Names []string `koanf:"names"`
	// The package ids that count, as name=id; a name without an entry is not pinned by id.
	PinnedIDs []string `koanf:"pinned_ids"`
}

// AnchorsConfig names the parties that make contracts authentic. Contracts of others are counted and never served.
type AnchorsConfig struct {
	// The core bridge's operators. Unset: any operator's replay tries count, and a request may have to name one.
	Operators []string `koanf:"operators"`
	// The party that signs the authentic CoreState beside its operator. Required: anyone can make a CoreState of their own.
	GuardianGovernance string `koanf:"guardian_governance"`
}

// DatabaseConfig says where the index is kept.
type DatabaseConfig struct {
	// A file that holds the Postgres URL (postgres://…). Unset: the index lives in memory, is seeded from the ledger at each start,
	// and history begins there.
	URLFile string `koanf:"url_file"`
	// The most connections to hold.
	MaxConnections int `koanf:"max_connections"`
	// Bring the schema up to date at start. Else a schema that is behind is an error that names the command.
	Migrate bool `koanf:"migrate"`
	// How long the writer's lease lasts without renewal; it is renewed at a third of it. A standby takes over after it; a process
	// that was killed gets its own back at once if it comes back in the same system and network (of a container: the same one, not one made anew).
	LeaseTTL time.Duration `koanf:"lease_ttl"`
	// How long history (who consumed what, what became of a contract) is kept, at least 1m; 0 is for ever. Without a database it is
	// bounded by number too, 0 or not: the last million each of updates, consumes and ended contracts.
	HistoryRetention time.Duration `koanf:"history_retention"`
}

// APIConfig is the service's own gRPC side.
type APIConfig struct {
	// Where to serve gRPC. Only a loopback address unless insecure_listen is set: the API has no authorization yet.
	Listen string `koanf:"listen"`
	// Serve on an address that is not loopback, to whoever can reach it.
	InsecureListen bool `koanf:"insecure_listen"`
	// Our certificate (PEM), to serve TLS. Goes with key_file. Unset: without TLS.
	CertFile string `koanf:"cert_file"`
	// The private key of cert_file (PEM).
	KeyFile string `koanf:"key_file"`
	// Ask callers for a certificate from these authorities (PEM).
	ClientCAFile string `koanf:"client_ca_file"`
	// The age of the last proof of completeness beyond which requests are refused as stale and readiness drops.
	FreshnessBound time.Duration `koanf:"freshness_bound"`
	// The longest time that a request may wait for an update or a successor.
	MaxWait time.Duration `koanf:"max_wait"`
	// How long before its guardian set expires a VAA is called EXPIRES_SOON instead of REDEEMABLE; 0 is never.
	ExpiryMargin time.Duration `koanf:"expiry_margin"`
	// Requests a second that one caller's address may make on average; 0 is without limit.
	RatePerCaller float64 `koanf:"rate_per_caller"`
	// Requests that one caller's address may make at once above its rate.
	BurstPerCaller int `koanf:"burst_per_caller"`
	// Calls at once, in all; more are refused.
	MaxCalls int `koanf:"max_calls"`
	// Calls at once of one caller's address. Unless it may have all, it gets no more than it leaves free: a few addresses can't take all.
	MaxCallsPerCaller int `koanf:"max_calls_per_caller"`
	// Connections at once, in all. Beyond it the address with the most gives up the one that is longest without calls; where all have calls, more
	// are closed as they come. More than max_calls, so that there always are some without. Lowered at the start to what RLIMIT_NOFILE leaves room for.
	MaxConnections int `koanf:"max_connections"`
	// Connections at once of one caller's address. Beyond it the one that is longest without calls makes room. A proxy's clients are one address:
	// set it to what it opens.
	MaxConnectionsPerCaller int `koanf:"max_connections_per_caller"`
	// How long a client may take to receive an answer; its connection is closed then.
	SendTimeout time.Duration `koanf:"send_timeout"`
	// The bytes of answers that wait for their clients to take them, in all: at least 67108864, the largest answer. Where memory is
	// limited, this is the largest part of it beside the index.
	AnswerBytes int `koanf:"answer_bytes"`
	// The bytes of answers that wait for one caller's address to take them: at least 67108864.
	AnswerBytesPerCaller int `koanf:"answer_bytes_per_caller"`
}

// GuardConfig is the replay guard: relayers reserve a VAA's digest before they pay for its submission. It is kept in the database where
// there is one, and is then common to all processes that use it, else in this process.
type GuardConfig struct {
	// Serve reservations. Only to connections that name a client, by a certificate (api.client_ca_file), unless allow_anonymous is set.
	Enabled bool `koanf:"enabled"`
	// Take all connections without a certificate for one client, with the quota of one.
	AllowAnonymous bool `koanf:"allow_anonymous"`
	// Let bare digests be reserved. Nothing shows that a genuine VAA has such a digest, so any client can reserve those of others.
	AllowDigest bool `koanf:"allow_digest"`
	// Let a holder give a reservation up before its expiry, on its word that the submission never left.
	AllowRelease bool `koanf:"allow_release"`
	// How many digests may be reserved at once. Live ones are never evicted; new ones are refused then.
	MaxEntries int `koanf:"max_entries"`
	// How far ahead an expiry may lie. A reservation can be extended to four times that in all.
	MaxTTL time.Duration `koanf:"max_ttl"`
	// How many live reservations one client may have; 0 is a quarter of max_entries.
	MaxLivePerClient int `koanf:"max_live_per_client"`
	// How many reservations one client may make a minute on average.
	RatePerClient int `koanf:"rate_per_client"`
	// How many it may make at once after a pause; 0 is a minute's worth.
	BurstPerClient int `koanf:"burst_per_client"`
	// As how many reservations one counts, beside itself, that lapsed without having been settled.
	LapseCost int `koanf:"lapse_cost"`
}

// OpsConfig is the operators' side: metrics and health over HTTP.
type OpsConfig struct {
	// Where to serve /metrics, /livez, /readyz and /healthz. Empty: nowhere.
	Listen string `koanf:"listen"`
}

// LogConfig is what is logged, to standard error.
type LogConfig struct {
	// debug, info, warn or error.
	Level string `koanf:"level"`
	// text or json.
	Format string `koanf:"format"`
}

// defaultConfig holds every setting's default.
func defaultConfig() Config {
	served := api.DefaultConfig()
	return Config{
		Participant: ParticipantConfig{MaxMessageBytes: 64 << 20, PollInterval: time.Second, CallTimeout: 10 * time.Second,
			StartTimeout: 30 * time.Second},
		Packages: PackagesConfig{Names: []string{"wormhole-core"}},
		Database: DatabaseConfig{MaxConnections: 10, Migrate: true, LeaseTTL: 15 * time.Second, HistoryRetention: 30 * 24 * time.Hour},
		API: APIConfig{Listen: "127.0.0.1:7420", FreshnessBound: 15 * time.Second, MaxWait: 20 * time.Second,
			ExpiryMargin: time.Hour, RatePerCaller: 200, BurstPerCaller: 400,
			MaxCalls: served.Limits.MaxCalls, MaxCallsPerCaller: served.Limits.MaxCallsPerCaller,
			MaxConnections: served.Limits.MaxConnections, MaxConnectionsPerCaller: served.Limits.MaxConnectionsPerCaller,
			SendTimeout: served.SendTimeout, AnswerBytes: served.Limits.AnswerBytes, AnswerBytesPerCaller: served.Limits.AnswerBytesPerCaller},
		Guard: GuardConfig{Enabled: true, MaxEntries: replayguard.DefaultMaxEntries, MaxTTL: replayguard.DefaultMaxTTL, RatePerClient: 600, LapseCost: 2},
		Ops:   OpsConfig{Listen: "127.0.0.1:7421"},
		Log:   LogConfig{Level: "info", Format: "text"},
	}
}

// validate returns every fault of the configuration, joined, each naming its setting and what to do.
func (c Config) validate() error {
	var faults []error
	fault := func(setting, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", setting, fmt.Sprintf(format, args...)))
	}
	p := c.Participant
	p.validateConnection(fault)
	if len(p.ReadAs) == 0 && !p.ReadAsAnyParty {
		fault("participant.read_as", "name the parties to read as (the bridge's operator sees all that is served), or set read_as_any_party")
	}
	if len(p.ReadAs) > 0 && p.ReadAsAnyParty {
		fault("participant.read_as", "can't be combined with read_as_any_party")
	}
	parties(fault, "participant.read_as", p.ReadAs)
	if len(c.Packages.Names) == 0 {
		fault("packages.names", "name at least one package, as wormhole-core")
	}
	for _, name := range c.Packages.Names {
		if name == "" || strings.ContainsAny(name, "#:/ ") || isPackageID(name) {
			fault("packages.names", "%q is not a package name: give the name alone, as wormhole-core, not an id and without #", name)
		}
	}
	if _, err := c.Packages.pinned(); err != nil {
		fault("packages.pinned_ids", "%v", err)
	}
	parties(fault, "anchors.operators", c.Anchors.Operators)
	if c.Anchors.GuardianGovernance == "" {
		fault("anchors.guardian_governance", "is required: the party that signs the authentic CoreState beside its operator")
	} else {
		parties(fault, "anchors.guardian_governance", []string{c.Anchors.GuardianGovernance})
	}
	if c.Database.URLFile != "" {
		if err := checkDatabaseURL(c.Database.URLFile); err != nil {
			fault("database.url_file", "%v", err)
		}
	}
	if c.Database.MaxConnections < 2 || c.Database.MaxConnections > 1000 {
		fault("database.max_connections", "must be in 2..1000, is %d", c.Database.MaxConnections)
	}
	atLeast(fault, "database.lease_ttl", c.Database.LeaseTTL, time.Second)
	if d := c.Database.HistoryRetention; d != 0 && d < time.Minute {
		fault("database.history_retention", "must be 0, which keeps history for ever, or at least 1m, is %s", d)
	}
	c.API.validate(fault)
	if c.API.FreshnessBound < 2*p.PollInterval {
		fault("api.freshness_bound", "must be at least twice participant.poll_interval (%s), is %s", p.PollInterval, c.API.FreshnessBound)
	}
	c.Guard.validate(fault)
	if c.Ops.Listen != "" {
		if err := checkListen(c.Ops.Listen, true); err != nil {
			fault("ops.listen", "%v", err)
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		fault("log.level", "must be debug, info, warn or error, is %q", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		fault("log.format", "must be text or json, is %q", c.Log.Format)
	}
	return errors.Join(faults...)
}

// validateConnection checks all but as whom to read.
func (p ParticipantConfig) validateConnection(fault faultFunc) {
	if p.Address == "" {
		fault("participant.address", "is required, as localhost:6865")
	} else if conn, err := ledgerstream.Dial(ledgerstream.ConnConfig{Target: p.Address, Plaintext: true}); err != nil { // which dials nothing yet
		setting, err := participantSetting(err)
		fault(setting, "%v", err)
	} else {
		_ = conn.Close() // nothing was sent
	}
	if p.Plaintext && (p.CAFile != "" || p.CertFile != "" || p.ServerName != "") {
		fault("participant.plaintext", "can't be combined with ca_file, cert_file or server_name")
	}
	bothOrNone(fault, "participant.cert_file", p.CertFile, "participant.key_file", p.KeyFile)
	readable(fault, "participant.ca_file", p.CAFile)
	readable(fault, "participant.cert_file", p.CertFile)
	readable(fault, "participant.key_file", p.KeyFile)
	if p.TokenFile != "" {
		if _, err := ledgerstream.FileToken(p.TokenFile).Token(context.Background()); err != nil {
			fault("participant.token_file", "%v", err)
		}
	}
	if p.OAuthClientSecretFile != "" {
		if secret, err := secretfile.ReadText(p.OAuthClientSecretFile); err != nil {
			fault("participant.oauth_client_secret_file", "%v", err)
		} else if secret == "" {
			fault("participant.oauth_client_secret_file", "%s is empty", p.OAuthClientSecretFile)
		}
	}
	oauth := p.OAuthTokenURL != "" || p.OAuthClientID != "" || p.OAuthClientSecretFile != ""
	if oauth && (p.OAuthTokenURL == "" || p.OAuthClientID == "" || p.OAuthClientSecretFile == "") {
		fault("participant.oauth_token_url", "needs oauth_client_id and oauth_client_secret_file beside it, and they need it")
	}
	if holdsUser(p.OAuthTokenURL) {
		fault("participant.oauth_token_url", "holds a user or a password: they belong into oauth_client_id and oauth_client_secret_file")
	}
	if oauth && p.TokenFile != "" {
		fault("participant.token_file", "can't be combined with the oauth settings: choose one source of tokens")
	}
	if p.MaxMessageBytes < 1<<20 {
		fault("participant.max_message_bytes", "must be at least 1048576, is %d", p.MaxMessageBytes)
	}
	if p.StartTimeout < 0 {
		fault("participant.start_timeout", "can't be negative")
	}
	atLeast(fault, "participant.poll_interval", p.PollInterval, 10*time.Millisecond)
	atLeast(fault, "participant.call_timeout", p.CallTimeout, 100*time.Millisecond)
}

func (a APIConfig) validate(fault faultFunc) {
	if err := checkListen(a.Listen, a.InsecureListen); err != nil {
		fault("api.listen", "%v", err)
	}
	bothOrNone(fault, "api.cert_file", a.CertFile, "api.key_file", a.KeyFile)
	readable(fault, "api.cert_file", a.CertFile)
	readable(fault, "api.key_file", a.KeyFile)
	readable(fault, "api.client_ca_file", a.ClientCAFile)
	if a.ClientCAFile != "" && a.CertFile == "" {
		fault("api.client_ca_file", "needs cert_file and key_file: callers show certificates only over TLS")
	}
	atLeast(fault, "api.freshness_bound", a.FreshnessBound, 100*time.Millisecond)
	if a.MaxWait < 0 || a.MaxWait > 5*time.Minute {
		fault("api.max_wait", "must be in 0s..5m, is %s", a.MaxWait)
	}
	if d := a.ExpiryMargin; d != 0 && (d < time.Second || d > 365*24*time.Hour) {
		fault("api.expiry_margin", "must be 0, which turns it off, or in 1s..8760h, is %s", d)
	}
	if !(a.RatePerCaller >= 0 && a.RatePerCaller <= 1e6) {
		fault("api.rate_per_caller", "must be in 0..1000000, is %v", a.RatePerCaller)
	}
	if a.RatePerCaller > 0 && a.BurstPerCaller < 1 {
		fault("api.burst_per_caller", "must be at least 1, is %d", a.BurstPerCaller)
	}
	for _, n := range []struct {
		setting string
		value   int
	}{
		{"max_calls", a.MaxCalls}, {"max_calls_per_caller", a.MaxCallsPerCaller},
		{"max_connections", a.MaxConnections}, {"max_connections_per_caller", a.MaxConnectionsPerCaller},
	} {
		if n.value < 1 {
			fault("api."+n.setting, "must be at least 1, is %d", n.value)
		}
	}
	atLeast(fault, "api.send_timeout", a.SendTimeout, 100*time.Millisecond)
	least := api.DefaultConfig().MaxAnswerBytes
	if a.AnswerBytes < least {
		fault("api.answer_bytes", "must be at least %d, the largest answer, is %d", least, a.AnswerBytes)
	}
	if a.AnswerBytesPerCaller < least {
		fault("api.answer_bytes_per_caller", "must be at least %d, the largest answer, is %d", least, a.AnswerBytesPerCaller)
	}
}

func (g GuardConfig) validate(fault faultFunc) {
	for _, n := range []struct {
		setting            string
		value, least, most int
	}{
		{"max_entries", g.MaxEntries, 1, 10_000_000},
		{"max_live_per_client", g.MaxLivePerClient, 0, replayguard.NoLimit},
		{"rate_per_client", g.RatePerClient, 1, replayguard.NoLimit},
		{"burst_per_client", g.BurstPerClient, 0, replayguard.NoLimit},
		{"lapse_cost", g.LapseCost, 1, replayguard.NoLimit},
	} {
		if n.value < n.least || n.value > n.most {
			fault("guard."+n.setting, "must be in %d..%d, is %d", n.least, n.most, n.value)
		}
	}
	if g.MaxTTL < time.Second || g.MaxTTL > 24*time.Hour {
		fault("guard.max_ttl", "must be in 1s..24h, is %s", g.MaxTTL)
	}
}

// pinned reads pinned_ids into ids by name.
func (p PackagesConfig) pinned() (map[string][]string, error) {
	ids := map[string][]string{}
	for _, pin := range p.PinnedIDs {
		name, id, ok := strings.Cut(pin, "=")
		if !ok || !isPackageID(id) {
			return nil, fmt.Errorf("%q is not name=id with an id of 64 hex digits", pin)
		}
		if !slices.Contains(p.Names, name) {
			return nil, fmt.Errorf("%q pins a package that packages.names does not have", pin)
		}
		ids[name] = append(ids[name], id)
	}
	return ids, nil
}

// holdsUser tells whether a URL has a user or a password before its host, or may have.
func holdsUser(text string) bool {
	u, err := url.Parse(text)
	return err != nil && strings.Contains(text, "@") || err == nil && (u.User != nil || strings.Contains(u.Opaque, "@"))
}

// checkListen refuses what is no host:port, and an address beyond this host where that was not asked for.
func checkListen(address string, beyondLoopback bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port: %w", address, err)
	}
	if beyondLoopback || isLoopback(host) {
		return nil
	}
	return fmt.Errorf("%q is not a loopback address, and the API has no authorization yet: set api.insecure_listen to serve there all the same", address)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

type faultFunc func(setting, format string, args ...any)

func bothOrNone(fault faultFunc, settingA, a, settingB, b string) {
	if (a == "") != (b == "") {
		fault(settingA, "goes with %s: set both or neither", settingB)
	}
}

func readable(fault faultFunc, setting, path string) {
	if path == "" {
		return
	}
	if err := secretfile.Check(path); err != nil {
		fault(setting, "%v", err)
	}
}

func atLeast(fault faultFunc, setting string, d, least time.Duration) {
	if d < least {
		fault(setting, "must be at least %s, is %s", least, d)
	}
}

// parties refuses what can't be a party by the Ledger API's grammar.
func parties(fault faultFunc, setting string, names []string) {
	for _, name := range names {
		bad := strings.IndexFunc(name, func(r rune) bool {
			return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune(":-_ ", r))
		})
		if name == "" || len(name) > 255 || bad >= 0 {
			why := ""
			if bad >= 0 {
				r, _ := utf8.DecodeRuneInString(name[bad:])
				why = fmt.Sprintf(", and not %q", r)
				if r == '…' {
					why += ", which stands in examples for the rest: put your own party in whole"
				}
			}
			fault(setting, "%.80q is not a party: 1 to 255 of A-Z a-z 0-9 : - _ and space%s", name, why)
		}
	}
}

func isPackageID(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
