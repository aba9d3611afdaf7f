package daml

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/damlmodel"
)

// onPurpose are the differences between the DARs and the sources that are meant, by package, and why. There are no others.
var onPurpose = map[string][]difference{
	WormholeCorePackage: {
		{
			"choice Wormhole.Core.Emitters:EmitterRegistry.RegisterEmitter: argument: field 1 is owner : Party in the DAR, requester : Party in the sources",
			"the package in production calls it requester; the service never exercises the choice",
		},
		{
			"record Wormhole.Core.VAA:VAA: field 11 is digest : Text in the DAR, body : Text in the sources",
			"the package in production ends the record with body and hash; it is a result of choices, never a contract, and the service reads no results",
		},
		{
			"record Wormhole.Core.VAA:VAA: field 12 is missing in the DAR, hash : Text in the sources",
			"as above",
		},
	},
	// What the example integrator takes from a VAA has one name in both.
	ExampleIntegratorPackage: nil,
}

type difference struct{ what, why string }

func TestDARsAreWhatTheTableSays(t *testing.T) {
	readme, err := os.ReadFile("lf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range DARs() {
		p, err := damlmodel.FromDAR(d.Bytes())
		if err != nil {
			t.Fatalf("%s for LF %s: %v", d.Name, d.LF, err)
		}
		if p.Name != d.Name || p.Version != d.Version || p.LF != d.LF || p.ID != d.PackageID {
			t.Errorf("%s %s for LF %s is %s; the archive says %s %s for LF %s, %s", d.Name, d.Version, d.LF, d.PackageID, p.Name, p.Version, p.LF, p.ID)
		}
		if !strings.Contains(string(readme), d.PackageID) {
			t.Errorf("lf/README.md does not name %s for LF %s: %s", d.Name, d.LF, d.PackageID)
		}
	}
}

func TestBothBuildsDeclareTheSame(t *testing.T) {
	for _, name := range []string{WormholeCorePackage, ExampleIntegratorPackage} {
		got := damlmodel.Compare("LF 2.3", declared(t, name, LF23), "LF 2.2", declared(t, name, LF22))
		if len(got) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(got, "\n"))
		}
	}
}

func TestDARsAgreeWithSources(t *testing.T) {
	for name, meant := range onPurpose {
		want := make([]string, 0, len(meant))
		for _, d := range meant {
			want = append(want, d.what)
		}
		slices.Sort(want)
		model, err := sourceModel(sources(t), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := againstDAR(t, name, model)
		if diff := cmp.Diff(want, append([]string{}, got...)); diff != "" {
			t.Errorf("%s: differences between DAR and sources (-meant +found):\n%s", name, diff)
		}
	}
}

// TestAChangedSourceIsSeen changes declarations in the sources, each in a copy of its own.
func TestAChangedSourceIsSeen(t *testing.T) {
	const (
		replay    = "wormhole-core/daml/Wormhole/Core/Replay.daml"
		state     = "wormhole-core/daml/Wormhole/Core/State.daml"
		set       = "wormhole-core/daml/Wormhole/Core/GuardianSet.daml"
		emitters  = "wormhole-core/daml/Wormhole/Core/Emitters.daml"
		integrate = "example-integrator/daml/Example/Integrator.daml"
		threshold = "    splitThreshold : Int -- ^ 1 to 4096; a node that holds so many digests splits at the next one\n"
		prefix    = "    prefix : Text -- ^ 0 to 63 lowercase hex digits; empty at a root\n"
	)
	for _, c := range []struct{ change, pkg, file, old, new, want string }{
		{"a field renamed", WormholeCorePackage, replay, "    prefix : Text", "    path : Text",
			"record Wormhole.Core.Replay:ReplayNode: field 3 is prefix : Text in the DAR, path : Text in the sources"},
		{"fields reordered", WormholeCorePackage, replay, prefix + threshold, threshold + prefix,
			"record Wormhole.Core.Replay:ReplayNode: field 3 is prefix : Text in the DAR, splitThreshold : Int in the sources"},
		{"a field retyped", WormholeCorePackage, state, "    messageFee : Int", "    messageFee : Text",
			"record Wormhole.Core.State:CoreState: field 9 is messageFee : Int in the DAR, messageFee : Text in the sources"},
		{"a field dropped", WormholeCorePackage, state, "    guardianObserver : Party -- ^ sees, and never signs\n", "",
			"record Wormhole.Core.State:CoreState: field 3 is guardianObserver : Party in the DAR, chainId : Int in the sources"},
		{"a field of a part retyped", WormholeCorePackage, set, "expirationTime : Optional Time", "expirationTime : Time",
			"record Wormhole.Core.GuardianSet:GuardianSet: field 2 is expirationTime : Optional Time in the DAR, expirationTime : Time in the sources"},
		{"a synonym changed", WormholeCorePackage, "wormhole-core/daml/Wormhole/Core/Bytes.daml", "type Bytes32 = Text", "type Bytes32 = Int",
			"record Wormhole.Core.Emitters:Emitter: field 4 is emitterAddress : Text in the DAR, emitterAddress : Int in the sources"},
		{"an argument renamed", WormholeCorePackage, replay, "      with\n        digest : Text", "      with\n        hash : Text",
			"choice Wormhole.Core.Replay:ReplayNode.ConsumeDigest: argument: field 1 is digest : Text in the DAR, hash : Text in the sources"},
		{"an argument dropped", WormholeCorePackage, state, "        verifier : Party\n", "",
			"choice Wormhole.Core.State:CoreState.ParseAndVerifyVAA: argument: field 3 is pubKeys : [(Int, Text)] in the DAR, missing in the sources"},
		{"a result retyped", WormholeCorePackage, replay, "choice ConsumeDigest : ContractId ReplayNode", "choice ConsumeDigest : Bool",
			"choice Wormhole.Core.Replay:ReplayNode.ConsumeDigest: the result is ContractId Wormhole.Core.Replay:ReplayNode in the DAR, Bool in the sources"},
		{"a choice made consuming", WormholeCorePackage, state, "nonconsuming choice VerifyAndConsumeVAA", "choice VerifyAndConsumeVAA",
			"choice Wormhole.Core.State:CoreState.VerifyAndConsumeVAA: consuming is false in the DAR, true in the sources"},
		{"a choice renamed", WormholeCorePackage, emitters, "choice PublishMessage", "choice Publish",
			"choice Wormhole.Core.Emitters:Emitter.PublishMessage: only in the DAR"},
		{"a template renamed", WormholeCorePackage, replay, "template ReplayRootRequest", "template RootRequest",
			"template Wormhole.Core.Replay:ReplayRootRequest: only in the DAR"},
		{"a module renamed", WormholeCorePackage, emitters, "module Wormhole.Core.Emitters where", "module Wormhole.Core.Emitter where",
			"template Wormhole.Core.Emitter:Emitter: only in the sources"},
		{"the integrator's field dropped", ExampleIntegratorPackage, integrate, "    users : [Party] -- ^ who sees this contract; others need it disclosed\n", "",
			"record Example.Integrator:ExampleIntegrator: field 3 is users : [Party] in the DAR, peerChain : Int in the sources"},
	} {
		texts := sources(t)
		if strings.Count(texts[c.file], c.old) != 1 {
			t.Errorf("%s: %q is %d times in %s", c.change, c.old, strings.Count(texts[c.file], c.old), c.file)
			continue
		}
		texts[c.file] = strings.Replace(texts[c.file], c.old, c.new, 1)
		model, err := sourceModel(texts, c.pkg)
		if err != nil {
			t.Errorf("%s: %v", c.change, err)
			continue
		}
		if got := againstDAR(t, c.pkg, model); !slices.Contains(got, c.want) {
			t.Errorf("%s: %q is not among what was found:\n%s", c.change, c.want, strings.Join(got, "\n"))
		}
	}
}

// againstDAR compares a model with what the package's DAR declares on the ledger.
func againstDAR(t *testing.T, name string, model damlmodel.Model) []string {
	t.Helper()
	return damlmodel.Compare("the DAR", declared(t, name, DefaultLF).Reachable(), "the sources", model.Reachable())
}

// declared is what a DAR declares.
func declared(t *testing.T, name, lf string) damlmodel.Model {
	t.Helper()
	d, err := Find(name, lf)
	if err != nil {
		t.Fatal(err)
	}
	p, err := damlmodel.FromDAR(d.Bytes())
	if err != nil {
		t.Fatalf("%s for LF %s: %v", name, lf, err)
	}
	return p.Model
}

// sources are the Daml files by their path from here.
func sources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, root := range []string{WormholeCorePackage, ExampleIntegratorPackage, "wormhole-core-test"} {
		err := filepath.WalkDir(filepath.Join(root, "daml"), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".daml" {
				return err
			}
			content, err := os.ReadFile(path)
			out[filepath.ToSlash(path)] = string(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// sourceModel is what a package's sources declare.
func sourceModel(texts map[string]string, pkg string) (damlmodel.Model, error) {
	own, core := map[string]string{}, map[string]string{}
	for path, text := range texts {
		switch {
		case strings.HasPrefix(path, pkg+"/"):
			own[path] = text
		case strings.HasPrefix(path, WormholeCorePackage+"/"):
			core[path] = text
		}
	}
	return damlmodel.FromSources(own, core)
}
