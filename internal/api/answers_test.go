package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
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

// A digest that no one active node covers now does not withhold the fate: it leaves the covering node empty.
func TestFateWhereNothingCovers(t *testing.T) {
	at := digest("b").String()
	for name, test := range map[string]struct {
		happens func(*world)
		asked   string
		want    disclosurev1.Fate
		why     api.Reason
	}{
		"gap":                 {func(w *world) { w.apply(archived("root2")) }, "root", disclosurev1.Fate_FATE_SUPERSEDED, api.Gap},
		"gap that it left":    {func(w *world) { w.apply(archived("root2")) }, "root2", disclosurev1.Fate_FATE_ARCHIVED, api.Gap},
		"fork":                {func(w *world) { w.apply(created(contract("twin", node(t, "")))) }, "root", disclosurev1.Fate_FATE_SUPERSEDED, api.Fork},
		"fork that it is in":  {func(w *world) { w.apply(created(contract("twin", node(t, "")))) }, "root2", disclosurev1.Fate_FATE_ACTIVE, api.Fork},
		"successor in flight": {leaves("root2"), "root", disclosurev1.Fate_FATE_SUPERSEDED, api.InFlight},
		"in flight":           {leaves("root2"), "root2", disclosurev1.Fate_FATE_IN_FLIGHT, api.InFlight},
		"scope without nodes": {func(w *world) {
			w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 200, Reason: ledger.SeedPruned}, contract("core", core(guardianSets())))
		}, "root2", disclosurev1.Fate_FATE_GONE, api.Gap},
	} {
		w := basic(t)
		w.apply(archived("root"), created(contract("root2", node(t, "", digest("aa")))))
		test.happens(w)
		fate, err := w.client.GetContractFate(t.Context(), &disclosurev1.GetContractFateRequest{ContractId: cid(test.asked), Digest: at})
		if err != nil || fate.GetFate() != test.want || fate.GetCoveringContractId() != "" {
			t.Errorf("%s: %v, %v; want %s without a covering node", name, fate, err, test.want)
		}
		_, err = w.client.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: selector(), Digest: at})
		if reason, _, _ := reasonOf(err); reason != string(test.why) {
			t.Errorf("%s: the covering node's error is %v, want %s", name, err, test.why)
		}
	}
}

func leaves(name string) func(*world) {
	return func(w *world) {
		w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid(name), Source: sync1, Target: sync2, ReassignmentCounter: 1})
	}
}

// hungHistory is an index whose database takes what it is asked and never answers.
type hungHistory struct{ *index.Index }

type hung struct{ index.History }

func (h hungHistory) History() index.History { return hung{h.Index.History()} }

func (hung) Consumed(ctx context.Context, _ index.Scope, _ wormhole.Digest, _ int64) (index.Consume, bool, error) {
	<-ctx.Done()
	return index.Consume{}, false, ctx.Err()
}

func (hung) ConsumedAmong(ctx context.Context, _ []index.ScopedDigest, _ int64) (map[index.ScopedDigest]index.Consume, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hung) HistorySince(ctx context.Context) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// What the view knows does not wait for a database that hangs, nor fail for one that is gone.
func TestAnswersWithoutHistory(t *testing.T) {
	for name, of := range map[string]func(*index.Index) api.Index{
		"hung": func(x *index.Index) api.Index { return hungHistory{x} },
		"gone": func(x *index.Index) api.Index { return brokenHistory{x} },
	} {
		w := newWorld(t, func(_ *api.Config, d *api.Deps) { d.Index = of(d.Index.(*index.Index)) })
		w.seed(contract("core", core(guardianSets())), contract("root", node(t, "", digest("ab"))))
		began := time.Now()
		for range 100 {
			info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
			if err != nil || info.GetHistorySinceOffset() != 100 {
				t.Fatalf("%s: history since %d, %v", name, info.GetHistorySinceOffset(), err)
			}
		}
		batch := batchOf(100)
		for i := range batch.Items {
			batch.Items[i] = prepareDigest(digest("ab").String())
		}
		answer, err := w.client.BatchPrepareRedeem(t.Context(), batch)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: 101 calls took %s", name, took)
		}
		for _, item := range answer.GetItems() {
			got := item.GetResponse()
			if got.GetVerdict() != disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED || !got.GetConsumption().GetHistoryUnavailable() || got.GetConsumption().GetUpdateId() != "" {
				t.Fatalf("%s: %v", name, item)
			}
		}
	}
}

// A database that hangs costs a question for a fate no more than it costs a redeem: the active one is told, and of what is over it is said
// within a second, not at the call's deadline, that history is away; and at once while history is left alone.
func TestFateWithoutHistory(t *testing.T) {
	w := basic(t, func(_ *api.Config, d *api.Deps) { d.Index = hungHistory{d.Index.(*index.Index)} })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	active, err := w.client.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{ContractId: cid("root")})
	if err != nil || active.GetFate() != disclosurev1.Fate_FATE_ACTIVE || active.GetHistorySinceOffset() != active.GetAnswer().GetPosition().GetOffset() {
		t.Errorf("fate of an active contract: %v, %v", active, err)
	}
	for _, paused := range []bool{true, false} {
		if !paused {
			w.setNow(epoch.Add(6 * time.Second))
		}
		began := time.Now()
		_, err = w.client.GetContractFate(ctx, &disclosurev1.GetContractFateRequest{ContractId: cid("never")})
		wantReason(t, err, api.StoreUnavailable)
		if took := time.Since(began); took > 8*time.Second || !paused && took < 900*time.Millisecond {
			t.Errorf("paused %v: told after %s", paused, took)
		}
	}
}

// Callers learn the follower's state and not what its errors say of the operator's hosts and users.
func TestStreamDetailIsNotTheOperators(t *testing.T) {
	w := basic(t)
	for _, state := range []string{"connecting", "waiting", "snapshot", "live", "reconnecting", "halted", "stopped"} {
		w.setStatus(func(s *api.Status) {
			s.State, s.Detail = state, "password authentication failed for user svc (10.1.2.3)"
		})
		info, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{})
		if err != nil || info.GetStreamState() != state || strings.Contains(info.GetStreamDetail(), "svc") || (info.GetStreamDetail() == "") != (state == "live") {
			t.Errorf("%s: %q, %q, %v", state, info.GetStreamState(), info.GetStreamDetail(), err)
		}
	}
}

// A server that never waits answers what is there.
func TestNeverWait(t *testing.T) {
	w := basic(t, func(c *api.Config, _ *api.Deps) { c.MaxWait, c.DefaultWait = 0, 0 })
	seen := w.apply(created(contract("more", node(t, "a"))))
	if _, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AfterUpdateId: seen, MinOffset: 103, ParticipantId: participant})); err != nil {
		t.Errorf("what is there: %v", err)
	}
	_, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AfterUpdateId: "1220ab"}))
	wantReason(t, err, api.UpdateNotSeen)
	_, err = w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{MinOffset: 104, ParticipantId: participant}))
	wantReason(t, err, api.Behind)
	answer, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{NotContractIds: []string{cid("core")}}))
	if err != nil || !answer.GetCoreState().GetContract().GetUnchanged() {
		t.Errorf("the same contract: %v, %v", answer.GetCoreState().GetContract(), err)
	}
}

// An audit lists all activations for who asks, with hashes by which others can tell what differs.
func TestAuditListsActivations(t *testing.T) {
	w := basic(t)
	plain, err := w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Full: true})
	if err != nil || len(plain.GetListed()) != 0 {
		t.Fatalf("not asked for: %d listed, %v", len(plain.GetListed()), err)
	}
	audit, err := w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Full: true, Activations: true})
	if err != nil || int64(len(audit.GetListed())) != audit.GetActivations() || audit.GetActivations() != 2 {
		t.Fatalf("%v, %v", audit, err)
	}
	for _, a := range audit.GetListed() {
		want := w.index.View().Contract(a.GetContractId())[0].StateHash()
		if string(a.GetHash()) != string(want[:16]) {
			t.Errorf("hash of %s: %x, want %x", a.GetContractId(), a.GetHash(), want[:16])
		}
	}
	_, err = w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Activations: true})
	wantReason(t, err, api.InvalidField)

	w = basic(t, func(c *api.Config, _ *api.Deps) { c.MaxAnswerBytes = 300 })
	_, err = w.client.Audit(t.Context(), &disclosurev1.AuditRequest{Full: true, Activations: true})
	wantReason(t, err, api.AnswerTooLarge)
}
