package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

var update = flag.Bool("update", false, "write golden files and docs/errors.md anew")

// golden compares an answer with its file, as JSON.
func golden(t *testing.T, name string, answer proto.Message) {
	t.Helper()
	raw, err := protojson.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer // protojson's own spacing is random on purpose
	if err := json.Indent(&indented, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		t.Fatal(err)
	}
	indented.Reset()
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	goldenText(t, filepath.Join("testdata", "golden", name+".json"), indented.String()+"\n")
}

func goldenText(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got; go test -update writes it anew):\n%s", path, diff)
	}
}

// populated is a world with one of everything.
func populated(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	before := digest("aa")
	w.seed(
		contract("core", core(guardianSets())),
		contract("root", node(t, "", before)),
		contract("roots", &wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{"another::1220ee", consumer}}),
		contract("emitters", &wormhole.EmitterRegistry{Operator: operator, GuardianObserver: observer, NextID: 2}),
		contract("emitter", &wormhole.Emitter{Operator: operator, Owner: consumer, EmitterID: 1, EmitterAddress: strings.Repeat("0", 63) + "1", Sequence: 9}),
	)
	w.apply(archived("root"), created(contract("root2", node(t, "", before, vaa(1).Digest()))))
	return w
}

func TestGoldenAnswers(t *testing.T) {
	w := populated(t)
	fresh, used := hex.EncodeToString(vaa(2).Encode()), hex.EncodeToString(vaa(1).Encode())
	prepare := func(name string, req *disclosurev1.PrepareRedeemRequest) {
		answer, err := w.client.PrepareRedeem(t.Context(), req)
		if err != nil {
			t.Fatal(name, err)
		}
		golden(t, name, answer)
	}
	prepare("prepare-vaa", &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: fresh}})
	prepare("prepare-digest", &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: vaa(2).Digest().String()}})
	prepare("prepare-consumed", &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: used}})
	prepare("prepare-consumed-before-history", &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: digest("aa").String()}})
	prepare("prepare-known", &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: fresh},
		Read: &disclosurev1.ReadOptions{KnownContractIds: []string{strings.ToUpper(cid("core"))}}})

	batch, err := w.client.BatchPrepareRedeem(t.Context(), &disclosurev1.BatchPrepareRedeemRequest{Items: []*disclosurev1.PrepareRedeemRequest{
		{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: fresh}},
		{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: "12"}},
		{Scope: &disclosurev1.ScopeSelector{Consumer: "nobody::1220"}, Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: digest("0").String()}},
		{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: used}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "batch", batch)

	covering, err := w.client.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: selector(), Digest: vaa(1).Digest().String()})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "covering-node", covering)
	coreState, err := w.client.GetCoreState(t.Context(), &disclosurev1.GetCoreStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "core-state", coreState)
	roots, err := w.client.GetRegistry(t.Context(), &disclosurev1.GetRegistryRequest{Kind: disclosurev1.RegistryKind_REGISTRY_KIND_REPLAY_ROOT})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "registry-replay-root", roots)
	emitters, err := w.client.GetRegistry(t.Context(), &disclosurev1.GetRegistryRequest{Kind: disclosurev1.RegistryKind_REGISTRY_KIND_EMITTER, Operator: operator})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "registry-emitter", emitters)
	emitter, err := w.client.GetEmitter(t.Context(), &disclosurev1.GetEmitterRequest{Owner: consumer, EmitterId: 1})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "emitter", emitter)
	for name, req := range map[string]*disclosurev1.GetContractFateRequest{
		"fate-active":     {ContractId: cid("root2")},
		"fate-superseded": {ContractId: cid("root"), Digest: vaa(2).Digest().String()},
		"fate-unknown":    {ContractId: cid("never")},
	} {
		fate, err := w.client.GetContractFate(t.Context(), req)
		if err != nil {
			t.Fatal(name, err)
		}
		golden(t, name, fate)
	}
	scopes, err := w.client.ListScopes(t.Context(), &disclosurev1.ListScopesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "scopes", scopes)
	audit, err := w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(audit.GetStateHash()) != 64 {
		t.Errorf("state hash %q, want 64 hex digits", audit.GetStateHash())
	}
	audit.StateHash = "" // the index's own to test
	golden(t, "audit", audit)
	info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "server-info", info)
}

// Every spelling of a VAA gives the same answer.
func TestVAASpellings(t *testing.T) {
	w := populated(t)
	encoded := vaa(2).Encode()
	ask := func(req *disclosurev1.PrepareRedeemRequest) *disclosurev1.PrepareRedeemResponse {
		t.Helper()
		req.Scope = selector()
		answer, err := w.client.PrepareRedeem(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	want := ask(&disclosurev1.PrepareRedeemRequest{Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: encoded}})
	for _, text := range []string{
		hex.EncodeToString(encoded), "0x" + hex.EncodeToString(encoded), strings.ToUpper(hex.EncodeToString(encoded)),
		base64.StdEncoding.EncodeToString(encoded), base64.RawURLEncoding.EncodeToString(encoded),
	} {
		got := ask(&disclosurev1.PrepareRedeemRequest{Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: text}})
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("VAA as %.12s…: %s", text, diff)
		}
	}
	if len(want.GetArguments().GetPubKeys()) != 2 {
		t.Errorf("%d keys recovered, want 2", len(want.GetArguments().GetPubKeys()))
	}
}

// The fate of a node that was split, in flight, archived, gone; and of the unknown.
func TestFates(t *testing.T) {
	w := newWorld(t)
	w.seed(contract("core", core(guardianSets())), contract("root", node(t, "")))
	events := []ledger.Event{archived("root")}
	for _, nibble := range "0123456789abcdef" {
		events = append(events, created(contract("n"+string(nibble), node(t, string(nibble)))))
	}
	splitBy := w.apply(events...)
	fate := func(name, digest string) *disclosurev1.GetContractFateResponse {
		t.Helper()
		answer, err := w.client.GetContractFate(t.Context(), &disclosurev1.GetContractFateRequest{ContractId: cid(name), Digest: digest})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	split := fate("root", digest("b").String())
	if split.GetFate() != disclosurev1.Fate_FATE_SPLIT || len(split.GetSuccessorContractIds()) != 16 || split.GetCoveringContractId() != cid("nb") || split.GetUpdateId() != splitBy {
		t.Errorf("fate of the split root: %v", split)
	}
	// The chain is followed to the present.
	w.apply(archived("nb"), created(contract("nb2", node(t, "b", digest("bb")))))
	if now := fate("root", digest("b").String()); now.GetCoveringContractId() != cid("nb2") {
		t.Errorf("covering node after a consume: %v", now.GetCoveringContractId())
	}
	w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid("nb2"), Source: sync1, Target: sync2, ReassignmentCounter: 1})
	if f := fate("nb2", ""); f.GetFate() != disclosurev1.Fate_FATE_IN_FLIGHT || f.GetSourceSynchronizerId() != sync1 || f.GetTargetSynchronizerId() != sync2 {
		t.Errorf("fate in flight: %v", f)
	}
	w.apply(archived("n0"))
	if f := fate("n0", ""); f.GetFate() != disclosurev1.Fate_FATE_ARCHIVED {
		t.Errorf("fate of an archived node: %v", f)
	}
	w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid("n1"), Source: sync1, Target: sync1, ReassignmentCounter: 1})
	if f := fate("n1", ""); f.GetFate() != disclosurev1.Fate_FATE_PURGED {
		t.Errorf("fate of a purged node: %v", f)
	}
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 200, Reason: ledger.SeedPruned}, contract("core", core(guardianSets())))
	if f := fate("n2", ""); f.GetFate() != disclosurev1.Fate_FATE_GONE || f.GetOffset() != 200 || f.GetUpdateId() != "" {
		t.Errorf("fate after a reseed without it: %v", f)
	}
	_, err := w.client.GetContractFate(t.Context(), &disclosurev1.GetContractFateRequest{ContractId: cid("nb"), Digest: digest("c").String()})
	wantReason(t, err, "INVALID_FIELD")
}
