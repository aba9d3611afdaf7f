package ledgerstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// DefaultPackageName is the package that the follower reads unless told otherwise.
const DefaultPackageName = "wormhole-core"

// Config says what to read and how patiently. The zero value of every duration and bound takes the default that its comment
// names; negative ones are refused by Validate.
type Config struct {
	// Parties are those whose contracts are read; the token's user needs CanReadAs (or CanActAs) for each. Exactly one of
	// Parties and AnyParty is set.
	Parties []string
	// AnyParty reads the contracts of all parties of the participant; the user needs CanReadAsAnyParty.
	AnyParty bool
	// Packages are package names without '#'; every version of each is read. Default: DefaultPackageName alone.
	Packages []string

	// PollInterval is how often the ledger end is asked for; a proof of completeness is at best this old. Default 1 s.
	PollInterval time.Duration
	// CallTimeout bounds each unary call. Default 10 s.
	CallTimeout time.Duration
	// PollFailures is how many ledger end calls in a row may fail before the connection counts as broken. Default 3.
	PollFailures int
	// StallTimeout is the longest wait for the next message of a stream that must end by itself (a snapshot, a proof).
	// Default 60 s.
	StallTimeout time.Duration
	// TailLag is how long the live stream may owe an update that a proof has already delivered before it counts as dead.
	// Default 30 s.
	TailLag time.Duration

	// BatchUpdates and BatchBytes bound what is read ahead of the sink from one stream, and what goes into one Apply or one
	// Seed.Add; a single larger update passes alone. Defaults 500 and 8 MiB.
	BatchUpdates int
	BatchBytes   int

	// BackoffInitial and BackoffMax bound the jittered, growing wait before a reconnect. Defaults 250 ms and 30 s. While
	// no participant answers at all, the wait is bounded by 5 s.
	BackoffInitial, BackoffMax time.Duration
	// WaitRetry is the wait, jittered, before something that only an operator can mend is tried again. Default 15 s.
	WaitRetry time.Duration
	// HaltRetry is the wait, jittered, before an update that could not be decoded is read again. Default 30 s.
	HaltRetry time.Duration
	// TemplateRetry is how often, while the participant lacks some of the templates, they are asked for again. Default 5 min.
	TemplateRetry time.Duration
}

// ConfigError is a setting that can't work. Run returns one only where the participant refused the request for it.
type ConfigError struct {
	// Setting is the setting's name in Config.
	Setting string
	Err     error
}

func (e *ConfigError) Error() string { return e.Setting + ": " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Validate returns every fault of the configuration, joined, each a *ConfigError.
func (c Config) Validate() error {
	var faults []error
	fault := func(setting, format string, args ...any) {
		faults = append(faults, &ConfigError{Setting: setting, Err: fmt.Errorf(format, args...)})
	}
	switch {
	case len(c.Parties) == 0 && !c.AnyParty:
		fault("Parties", "no party to read as: name at least one, or set AnyParty")
	case len(c.Parties) > 0 && c.AnyParty:
		fault("Parties", "parties and AnyParty exclude each other")
	}
	for _, p := range c.Parties {
		if hint, fingerprint, ok := strings.Cut(p, "::"); !ok || hint == "" || fingerprint == "" || len(p) > 255 {
			fault("Parties", "%q is not a party id of the form hint::fingerprint", p)
		}
	}
	for _, p := range c.Packages {
		switch {
		case p == "":
			fault("Packages", "a package name is empty")
		case strings.HasPrefix(p, "#"):
			fault("Packages", "%q: give the package's name without '#'", p)
		case isPackageID(p):
			fault("Packages", "%q is a package id: the participant takes only package names in a filter, and a name reads all its versions", p)
		case strings.ContainsAny(p, ": \t\n"):
			fault("Packages", "%q is not a package name", p)
		}
	}
	for name, d := range map[string]time.Duration{
		"PollInterval": c.PollInterval, "CallTimeout": c.CallTimeout, "StallTimeout": c.StallTimeout, "TailLag": c.TailLag,
		"BackoffInitial": c.BackoffInitial, "BackoffMax": c.BackoffMax, "WaitRetry": c.WaitRetry, "HaltRetry": c.HaltRetry,
		"TemplateRetry": c.TemplateRetry,
	} {
		if d < 0 {
			fault(name, "is negative: %s", d)
		}
	}
	for name, n := range map[string]int{"PollFailures": c.PollFailures, "BatchUpdates": c.BatchUpdates, "BatchBytes": c.BatchBytes} {
		if n < 0 {
			fault(name, "is negative: %d", n)
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// isPackageID tells a package id (64 hex digits) from a package name.
func isPackageID(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 64
}

func (c Config) withDefaults() Config {
	c.Parties = sortedSet(c.Parties)
	if len(c.Packages) == 0 {
		c.Packages = []string{DefaultPackageName}
	}
	c.Packages = sortedSet(c.Packages)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.CallTimeout = cmp.Or(c.CallTimeout, 10*time.Second)
	c.PollFailures = cmp.Or(c.PollFailures, 3)
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.TailLag = cmp.Or(c.TailLag, 30*time.Second)
	c.BatchUpdates = cmp.Or(c.BatchUpdates, 500)
	c.BatchBytes = cmp.Or(c.BatchBytes, 8<<20)
	c.BackoffInitial = cmp.Or(c.BackoffInitial, 250*time.Millisecond)
	c.BackoffMax = cmp.Or(c.BackoffMax, 30*time.Second)
	c.WaitRetry = cmp.Or(c.WaitRetry, 15*time.Second)
	c.HaltRetry = cmp.Or(c.HaltRetry, 30*time.Second)
	c.TemplateRetry = cmp.Or(c.TemplateRetry, 5*time.Minute)
	return c
}

func sortedSet(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

// filter is what is asked of the participant: which parties' contracts of which templates.
type filter struct {
	parties   []string // sorted; empty for any party
	templates []packageTemplate
	// everything is every template, in place of templates.
	everything bool
}

// packageTemplate names a template by its package's name, over all versions of the package.
type packageTemplate struct {
	packageName string
	template    damlvalue.TypeName // without PackageID
}

func (t packageTemplate) String() string {
	return "#" + t.packageName + ":" + t.template.QualifiedName()
}

// fullFilter asks for every served template of every configured package.
func (c Config) fullFilter() filter {
	f := filter{parties: c.Parties}
	for _, name := range c.Packages {
		for _, t := range wormhole.Templates() {
			f.templates = append(f.templates, packageTemplate{packageName: name, template: t})
		}
	}
	return f
}

// identity names the filter: two filters with the same identity select the same contracts.
func (f filter) identity() string {
	var b strings.Builder
	for _, p := range f.parties {
		fmt.Fprintf(&b, "party %s\n", p)
	}
	names := make([]string, len(f.templates))
	for i, t := range f.templates {
		names[i] = t.String()
	}
	for _, n := range sortedSet(names) {
		fmt.Fprintf(&b, "template %s\n", n)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "v1:" + hex.EncodeToString(sum[:16])
}

// eventFormat asks for the filter's events. Payloads are labelled where verbose; blobs ask for created event blobs. Neither
// changes which events are seen.
func (f filter) eventFormat(verbose, blobs bool) *ledgerapi.EventFormat {
	filters := &ledgerapi.Filters{}
	if f.everything {
		filters.Cumulative = []*ledgerapi.CumulativeFilter{{
			IdentifierFilter: &ledgerapi.CumulativeFilter_WildcardFilter{WildcardFilter: &ledgerapi.WildcardFilter{IncludeCreatedEventBlob: blobs}},
		}}
	}
	for _, t := range f.templates {
		filters.Cumulative = append(filters.Cumulative, &ledgerapi.CumulativeFilter{
			IdentifierFilter: &ledgerapi.CumulativeFilter_TemplateFilter{TemplateFilter: &ledgerapi.TemplateFilter{
				TemplateId: &ledgerapi.Identifier{
					PackageId:  "#" + t.packageName,
					ModuleName: t.template.Module,
					EntityName: t.template.Entity,
				},
				IncludeCreatedEventBlob: blobs,
			}},
		})
	}
	format := &ledgerapi.EventFormat{Verbose: verbose}
	if len(f.parties) == 0 {
		format.FiltersForAnyParty = filters
		return format
	}
	format.FiltersByParty = make(map[string]*ledgerapi.Filters, len(f.parties))
	for _, p := range f.parties {
		format.FiltersByParty[p] = filters
	}
	return format
}

// updateFormat asks for the filter's transactions and reassignments, and for the hosting of its parties.
func (f filter) updateFormat(verbose, blobs bool) *ledgerapi.UpdateFormat {
	return &ledgerapi.UpdateFormat{
		IncludeTransactions: &ledgerapi.TransactionFormat{
			EventFormat:      f.eventFormat(verbose, blobs),
			TransactionShape: ledgerapi.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA,
		},
		IncludeReassignments: f.eventFormat(verbose, blobs),
		IncludeTopologyEvents: &ledgerapi.TopologyFormat{
			IncludeParticipantAuthorizationEvents: &ledgerapi.ParticipantAuthorizationTopologyFormat{Parties: f.parties},
		},
	}
}
