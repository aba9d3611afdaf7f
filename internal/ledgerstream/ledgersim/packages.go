package ledgersim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Package names a package that a simulated participant knows: its name and version as a DAR's manifest gives them, and its id.
type Package struct {
	ID, Name, Version string
}

// The packages that the simulated participant can run. Their ids are those of the recorded participant's packages, so that
// recorded requests can be replayed; versions 0.2.0 and 0.4.0 are the recorded ones too: 0.2.0 appends an Optional field to
// ReplayNode, 0.4.0 inserts namespace after operator.
var (
	WormholeCore010 = Package{"17149afb5a99ea8476da0bde5e308f1518b47ee1accfd54a8de2f0434938df7a", "wormhole-core", "0.1.0"}
	WormholeCore020 = Package{"cceb6c9f1a1dfba39ab70852891390b2af62e0174621ec2ef50520104ed9154c", "wormhole-core", "0.2.0"}
	WormholeCore040 = Package{"10913fe9cc293e7feab1f489d620044c195e4160f4665b75ea3d60b43d6f85db", "wormhole-core", "0.4.0"}
	Integrator010   = Package{"2cf0e72a9373a8adc83156112e5355f942e13c95c840a7aefc2b8c0463524bb0", "example-integrator", "0.1.0"}
)

// The same two packages compiled for Daml-LF 2.2.
var (
	wormholeCoreLF22 = Package{"f496b8edfc7c0619d1bd40f6f5fb3e194fe257405ab467171af52748d5966f59", "wormhole-core", "0.1.0"}
	integratorLF22   = Package{"4e669734a1d307fba736d6c17ef6703c79b515ee449b3757ec7e0f821e90b5a1", "example-integrator", "0.1.0"}
)

// Names of the two packages.
const (
	wormholeCore      = "wormhole-core"
	exampleIntegrator = "example-integrator"
)

// pkg is an uploaded package: what it defines and whether transactions may use it.
type pkg struct {
	Package
	vetted    bool
	templates map[string]*template // by qualified name
}

// template is one template of one package version.
type template struct {
	pkg  *pkg
	name damlvalue.TypeName
	typ  damlvalue.RecordType

	signatories  func(arg damlvalue.Record) []string
	observers    func(arg damlvalue.Record) []string
	precondition func(arg damlvalue.Record) bool
	choices      map[string]*choice
}

// choice is one choice of a template.
type choice struct {
	name string
	// arg is the argument's type.
	arg          damlvalue.RecordType
	nonConsuming bool
	controllers  func(t *template, this, arg damlvalue.Record) []string
	body         func(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error)
}

// packageStore is the participant's packages. Names resolve to the highest vetted version, as on a participant without
// any preference of the submitter.
type packageStore struct{ byID map[string]*pkg }

func newPackageStore() *packageStore { return &packageStore{byID: map[string]*pkg{}} }

func (s *packageStore) clone() *packageStore {
	out := newPackageStore()
	for id, p := range s.byID {
		q := *p
		out.byID[id] = &q
	}
	return out
}

// add uploads a package; one that is there already may become vetted. A package of an unknown name has no templates.
func (s *packageStore) add(p Package, vet bool) {
	if known, ok := s.byID[p.ID]; ok {
		known.vetted = known.vetted || vet
		return
	}
	s.byID[p.ID] = definePackage(p, vet)
}

// named is all packages of a name, ascending by version.
func (s *packageStore) named(name string) []*pkg {
	var out []*pkg
	for _, p := range s.byID {
		if p.Name == name {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *pkg) int { return compareVersions(a.Version, b.Version) })
	return out
}

// preferred is the package that a name stands for in a command: among the vetted ones the one that the submitter prefers,
// else the highest version.
func (s *packageStore) preferred(name string, preference []string) *pkg {
	var best *pkg
	for _, p := range s.named(name) {
		if !p.vetted {
			continue
		}
		if slices.Contains(preference, p.ID) {
			return p
		}
		best = p
	}
	return best
}

// template is the template with that qualified name in any of the packages of that name.
func (s *packageStore) hasTemplate(name, qualified string) bool {
	for _, p := range s.named(name) {
		if p.templates[qualified] != nil {
			return true
		}
	}
	return false
}

func (s *packageStore) list() []*pkg {
	return slices.SortedFunc(maps.Values(s.byID), func(a, b *pkg) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareVersions(a.Version, b.Version), cmp.Compare(a.ID, b.ID))
	})
}

// compareVersions compares dotted numbers.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		x, y := 0, 0
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return 0
}

// upgradeFault says why newer can't be vetted beside older, or "" where it can: every template of the older version must be
// there with its fields in their places, and fields beyond them must be Optional.
func upgradeFault(older, newer *pkg) string {
	for qualified, old := range older.templates {
		young := newer.templates[qualified]
		if young == nil {
			return fmt.Sprintf("Template %s appears in package that is being upgraded, but does not appear in the upgrading package.", old.name.Entity)
		}
		for i, f := range old.typ.Fields {
			if !slices.ContainsFunc(young.typ.Fields, func(y damlvalue.FieldType) bool { return y.Label == f.Label }) {
				return fmt.Sprintf("The upgraded template %s is missing some of its original fields.", old.name.Entity)
			}
			if i < len(young.typ.Fields) && young.typ.Fields[i].Label != f.Label {
				return fmt.Sprintf("The upgraded template %s has added new fields, but those fields are not Optional.", old.name.Entity)
			}
		}
		for _, f := range young.typ.Fields[len(old.typ.Fields):] {
			if _, ok := f.Type.(damlvalue.OptionalType); !ok {
				return fmt.Sprintf("The upgraded template %s has added new fields, but those fields are not Optional.", old.name.Entity)
			}
		}
	}
	return ""
}

// runs reports whether the templates of a package name are known here. Other packages are opaque: a filter may name any
// template of them, and nothing matches.
func (s *packageStore) runs(name string) bool {
	return name == wormholeCore || name == exampleIntegrator
}
