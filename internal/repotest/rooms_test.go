package repotest

import (
	"strings"
	"testing"
)

// room is a package, or with "/..." after the path all packages below it as well, and what its code may import beside the
// standard library. Tests may import more: see testOnly.
type room struct {
	path string
	// ours are paths in this module, others are paths of other modules. "/..." after one means all below it too.
	ours, others []string
}

var (
	grpc     = []string{"google.golang.org/grpc/...", "google.golang.org/protobuf/...", "google.golang.org/genproto/googleapis/rpc/..."}
	postgres = []string{"github.com/jackc/pgx/v5/..."}
	stubs    = []string{"github.com/digital-asset/dazl-client/v8/..."}
)

// rooms is the architecture, from the leaves up. The first line that matches a package is its rule.
var rooms = []room{
	// The domain: no I/O.
	{path: "internal/damlvalue"},
	{
		path:   "internal/wormhole/...",
		ours:   []string{"internal/damlvalue", "internal/wormhole/..."},
		others: []string{"golang.org/x/crypto/sha3", "github.com/decred/dcrd/dcrec/secp256k1/v4/..."},
	},
	{path: "internal/ledger", ours: []string{"internal/wormhole", "internal/damlvalue"}},
	{
		path:   "internal/contractblob",
		ours:   []string{"internal/damlvalue"},
		others: []string{"google.golang.org/protobuf/encoding/protowire"},
	},

	{path: "internal/secretfile"},

	// The ledger: the only rooms that know its stubs.
	{
		path: "internal/ledgerstream/...",
		ours: []string{
			"internal/ledgerstream/...", "internal/wormhole", "internal/contractblob", "internal/damlvalue", "internal/ledger",
			"internal/secretfile",
		},
		others: concat(stubs, grpc, []string{"golang.org/x/oauth2/...", "github.com/cenkalti/backoff/v5", "golang.org/x/sync/..."}),
	},
	{
		path: "internal/devnet", ours: []string{"internal/ledgerstream/submit", "internal/wormhole", "internal/damlvalue"},
		others: []string{"github.com/cenkalti/backoff/v5"},
	},

	// The index. Its only SQL is in postgres.
	{
		path:   "internal/index/postgres/...",
		ours:   []string{"internal/index/...", "internal/ledger", "internal/wormhole", "internal/secretfile", "migrations"},
		others: concat(postgres, []string{"github.com/pressly/goose/v3/..."}),
	},
	{
		path: "internal/index/indextest",
		ours: []string{"internal/index", "internal/wormhole", "internal/ledger", "internal/damlvalue"},
	},
	{
		path:   "internal/index/...",
		ours:   []string{"internal/index/...", "internal/wormhole", "internal/ledger"},
		others: []string{"github.com/hashicorp/go-immutable-radix/v2"},
	},
	{path: "migrations"},
	{path: "daml"},
	{path: "internal/damlmodel", ours: []string{"internal/damlvalue"}, others: []string{"google.golang.org/protobuf/encoding/protowire"}},

	// What is served. damlvalue comes with contractblob, whose answers are made of it.
	{
		path: "internal/api/...",
		ours: []string{
			"internal/index", "internal/wormhole", "internal/contractblob", "internal/ledger", "internal/damlvalue", "proto/...",
			"replayguard", "internal/secretfile",
		},
		others: concat(grpc, []string{
			"github.com/grpc-ecosystem/...", "golang.org/x/time/rate", "golang.org/x/sync/...", "golang.org/x/net/...",
			"google.golang.org/genproto/googleapis/api/...",
		}),
	},
	{path: "proto/...", others: concat(grpc, []string{"google.golang.org/genproto/googleapis/api/..."})},
	{
		path:   "internal/telemetry",
		others: []string{"github.com/prometheus/client_golang/...", "go.opentelemetry.io/..."},
	},

	// What others may import.
	{
		path:   "replayguard/postgres",
		ours:   []string{"replayguard"},
		others: concat(postgres, []string{"github.com/pressly/goose/v3/..."}),
	},
	{path: "replayguard/guardtest", ours: []string{"replayguard"}},
	{path: "replayguard"},
	{path: "client/...", ours: []string{"client/...", "proto/...", "replayguard", "internal/wormhole", "internal/contractblob", "internal/damlvalue"}, others: grpc},

	// The program, and what serves the tests.
	{path: "cmd/...", ours: []string{"..."}, others: []string{"..."}},
	{path: "internal/e2e"},         // tests only
	{path: "deploy"},               // tests only
	{path: "internal/integration"}, // tests only
	{path: "internal/pgserver/...", ours: []string{"internal/pgserver"}, others: concat(postgres, []string{"github.com/fergusstrange/embedded-postgres"})},
	{path: "internal/proctest"},
	{path: "internal/repotest"},
}

// only names packages of others that are kept in few rooms, from tests too.
var only = []struct {
	imported string
	rooms    []string
	why      string
}{
	{
		imported: "github.com/digital-asset/dazl-client/v8/...",
		rooms:    []string{"internal/ledgerstream/..."},
		why:      "only ledgerstream and its folders know the Ledger API's stubs",
	},
	{
		imported: "github.com/jackc/pgx/v5/...",
		rooms:    []string{"internal/index/postgres/...", "internal/pgserver/...", "replayguard/postgres", "cmd/...", "internal/e2e", "internal/api"},
		why:      "SQL is spoken in the stores alone; the end-to-end tests spoil rows with it, and the API's tests stop a database's clock",
	},
	{
		imported: "database/sql",
		rooms:    []string{"internal/index/postgres/...", "internal/pgserver/...", "replayguard/postgres", "cmd/..."},
		why:      "SQL is spoken in the stores alone",
	},
}

// testOnly may be imported by tests and by the rooms that serve tests, and by no other.
var testOnly = []string{
	"testing", "testing/synctest", "github.com/google/go-cmp/...", "go.uber.org/goleak", "pgregory.net/rapid",
	"internal/pgserver/pgtest", "internal/proctest", "internal/index/indextest", "replayguard/guardtest",
}

// servingTests are the rooms whose code is there for tests.
var servingTests = []string{"internal/pgserver/pgtest", "internal/proctest", "internal/index/indextest", "internal/repotest", "replayguard/guardtest"}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		rule, ok := ruleFor(p.path)
		if !ok {
			t.Errorf("%s has no rule: add the room and what it may import to rooms", p.path)
			continue
		}
		serves := matchesAny(p.path, servingTests)
		for _, imported := range p.imports {
			switch {
			case matchesAny(imported, testOnly):
				if !serves {
					t.Errorf("%s imports %s, which is for tests", p.path, imported)
				}
			case !mayImport(rule, imported):
				t.Errorf("%s imports %s, which its room (%s) may not", p.path, imported, rule.path)
			}
		}
		for _, imported := range append(p.imports, p.testImports...) {
			for _, o := range only {
				if matches(imported, o.imported) && !matchesAny(p.path, o.rooms) {
					t.Errorf("%s imports %s: %s", p.path, imported, o.why)
				}
			}
		}
	}
}

// TestRulesBite proves that the table's matching refuses what it should.
func TestRulesBite(t *testing.T) {
	for _, test := range []struct {
		room, imported string
		want           bool
	}{
		{"internal/wormhole", "net/http", true}, // the standard library is free; what I/O is, the table can't know
		{"internal/wormhole", "internal/ledger", false},
		{"internal/wormhole", "golang.org/x/crypto/sha3", true},
		{"internal/wormhole", "golang.org/x/crypto/ssh", false},
		{"internal/index", "github.com/jackc/pgx/v5", false},
		{"internal/index/postgres", "github.com/jackc/pgx/v5/pgxpool", true},
		{"internal/index/indextest", "internal/index", true},
		{"internal/index", "internal/api", false},
		{"internal/api", "internal/ledgerstream", false},
		{"internal/ledgerstream/ledgersim", "internal/ledgerstream/submit", true},
		{"replayguard", "github.com/jackc/pgx/v5", false},
		{"cmd/disclosured", "internal/ledgerstream", true},
		{"cmd/disclosured", "github.com/spf13/cobra", true},
	} {
		rule, ok := ruleFor(test.room)
		if got := ok && mayImport(rule, test.imported); got != test.want {
			t.Errorf("%s may import %s: %v, want %v", test.room, test.imported, got, test.want)
		}
	}
	if rule, ok := ruleFor("internal/unheard-of"); ok {
		t.Errorf("an unknown room has the rule of %s", rule.path)
	}
}

func ruleFor(path string) (room, bool) {
	for _, r := range rooms {
		if matches(path, r.path) {
			return r, true
		}
	}
	return room{}, false
}

func mayImport(rule room, imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	switch {
	case isOurs(imported):
		return matchesAny(imported, rule.ours)
	case strings.Contains(first, "."):
		return matchesAny(imported, rule.others)
	default:
		return true // the standard library
	}
}

// ourTops are the top-level folders of this module that hold packages.
var ourTops = []string{"cmd", "internal", "proto", "migrations", "client", "replayguard", "daml"}

// isOurs tells whether an import, written without the module's path, is of this module. The standard library has an
// internal folder too, which none but itself can import.
func isOurs(path string) bool {
	for _, top := range ourTops {
		if path == top || strings.HasPrefix(path, top+"/") {
			return true
		}
	}
	return false
}

func matchesAny(path string, patterns []string) bool {
	for _, pattern := range patterns {
		if matches(path, pattern) {
			return true
		}
	}
	return false
}

// matches tells whether a path is the pattern or, where that ends in "...", below it.
func matches(path, pattern string) bool {
	if pattern == "..." {
		return true
	}
	if above, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == above || strings.HasPrefix(path, above+"/")
	}
	return path == pattern
}

func concat(lists ...[]string) []string {
	var all []string
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// TestEachRuleIsReachable finds lines of the table that an earlier line hides.
func TestEachRuleIsReachable(t *testing.T) {
	for _, r := range rooms {
		path := strings.TrimSuffix(r.path, "/...")
		if got, _ := ruleFor(path); got.path != r.path {
			t.Errorf("the rule of %s is hidden by that of %s", r.path, got.path)
		}
	}
}
