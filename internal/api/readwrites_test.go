package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// noticing is an index that tells when a call waits on it.
type noticing struct {
	*index.Index
	waits chan struct{}
}

func (n noticing) Wait(ctx context.Context, ok func(*index.View) bool) (*index.View, error) {
	first := true
	return n.Index.Wait(ctx, func(v *index.View) bool {
		met := ok(v)
		if first && !met {
			n.waits <- struct{}{}
		}
		first = false
		return met
	})
}

func (n noticing) WaitUpdate(ctx context.Context, id string) (*index.View, index.UpdateRef, error) {
	n.waits <- struct{}{}
	return n.Index.WaitUpdate(ctx, id)
}

func noticed(waits chan struct{}) option {
	return func(c *api.Config, d *api.Deps) {
		d.Index = noticing{d.Index.(*index.Index), waits}
		c.DefaultWait = 30 * time.Second
	}
}

// A call that asks to see a write waits for it, and then sees it.
func TestReadYourWrites(t *testing.T) {
	long := durationpb.New(20 * time.Second)
	for name, c := range map[string]struct {
		read *disclosurev1.ReadOptions
	}{
		"after_update_id":  {&disclosurev1.ReadOptions{AfterUpdateId: fmt.Sprintf("1220%064X", 103)}}, // in any case
		"min_offset":       {&disclosurev1.ReadOptions{MinOffset: 102, ParticipantId: participant, Wait: long}},
		"not_contract_ids": {&disclosurev1.ReadOptions{NotContractIds: []string{cid("root")}, Wait: long}},
	} {
		t.Run(name, func(t *testing.T) {
			waits := make(chan struct{}, 10)
			w := basic(t, noticed(waits))
			type result struct {
				answer *disclosurev1.PrepareRedeemResponse
				err    error
			}
			got := make(chan result, 1)
			go func() {
				req := prepareDigest(digest("ab").String())
				req.Read = c.read
				answer, err := w.client.PrepareRedeem(context.Background(), req)
				got <- result{answer, err}
			}()
			<-waits
			w.apply(archived("root"), created(contract("root2", node(t, "", digest("cd")))))
			r := <-got
			if r.err != nil {
				t.Fatal(r.err)
			}
			if id := r.answer.GetReplayNode().GetContract().GetContractId(); id != cid("root2") || r.answer.GetReplayNode().GetContract().GetUnchanged() {
				t.Errorf("covering node %s, want the successor, not marked unchanged", id)
			}
			if r.answer.GetAnswer().GetPosition().GetOffset() != 103 {
				t.Errorf("offset %d, want 103", r.answer.GetAnswer().GetPosition().GetOffset())
			}
		})
	}
}

// What a caller waited for is not in the time that the service took.
func TestWaitsAreNotLatency(t *testing.T) {
	w := basic(t)
	_, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AfterUpdateId: "1220ab", Wait: durationpb.New(300 * time.Millisecond)}))
	wantReason(t, err, api.UpdateNotSeen)
	if _, err := w.client.GetCoreState(t.Context(), readWith(nil)); err != nil {
		t.Fatal(err)
	}
	_, text := w.get("/metrics")
	for _, line := range []string{
		`disclosured_api_call_seconds_bucket{method="GetCoreState",outcome="error",le="0.25"} 1`,
		`disclosured_api_call_seconds_bucket{method="GetCoreState",outcome="ok",le="0.25"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("/metrics lacks %s:\n%s", line, text)
		}
	}
}

// Where no successor comes in time the same contract is the answer, marked: a locked contract is not dead.
func TestUnchanged(t *testing.T) {
	w := basic(t)
	req := prepareDigest(digest("ab").String())
	req.Read = &disclosurev1.ReadOptions{NotContractIds: []string{cid("root")}}
	answer, err := w.client.PrepareRedeem(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if c := answer.GetReplayNode().GetContract(); c.GetContractId() != cid("root") || !c.GetUnchanged() {
		t.Errorf("covering node %v, want the same, unchanged", c)
	}
	if answer.GetCoreState().GetContract().GetUnchanged() {
		t.Error("the CoreState is marked unchanged, and nobody asked for another")
	}
	if len(answer.GetDisclosedContracts()) != 2 {
		t.Errorf("%d disclosures, want both", len(answer.GetDisclosedContracts()))
	}
}

// A contract in flight is waited for until it has arrived.
func TestNotContractIDsWaitsOutAFlight(t *testing.T) {
	waits := make(chan struct{}, 10)
	w := basic(t, noticed(waits))
	w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid("core"), Source: sync1, Target: sync2, ReassignmentCounter: 1})
	got := make(chan error, 1)
	go func() {
		_, err := w.client.GetCoreState(context.Background(), &disclosurev1.GetCoreStateRequest{Read: &disclosurev1.ReadOptions{NotContractIds: []string{cid("other")}}})
		got <- err
	}()
	<-waits
	moved := contract("core", core(nil))
	moved.SynchronizerID, moved.ReassignmentCounter = sync2, 1
	w.apply(ledger.Event{Kind: ledger.Assigned, ContractID: cid("core"), Contract: &moved, Source: sync1, Target: sync2, ReassignmentCounter: 1})
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A min_offset of the old participant is refused even where the wait saw another participant's index come.
func TestWaitSeesAnotherParticipant(t *testing.T) {
	waits := make(chan struct{}, 10)
	w := basic(t, noticed(waits))
	got := make(chan error, 1)
	go func() {
		_, err := w.client.GetCoreState(context.Background(), readWith(&disclosurev1.ReadOptions{MinOffset: 500, ParticipantId: participant}))
		got <- err
	}()
	<-waits
	w.reseed(ledger.SeedStart{ParticipantID: "other::1220", Offset: 900, Reason: ledger.SeedAnotherParticipant}, contract("core", core(nil)))
	wantReason(t, <-got, api.OffsetOfAnotherParticipant)
}

// 64 readers during 100 splits: every answer has exactly one covering node, active at the stated offset.
func TestReadersDuringSplits(t *testing.T) {
	w := newWorld(t)
	w.seed(contract("core", core(nil)), contract("n", node(t, "")))
	// aliveAt[offset] are the nodes active at it.
	var mu sync.Mutex
	aliveAt := map[int64]map[string]bool{100: {cid("n"): true}}
	alive := []string{""}

	stop := make(chan struct{})
	var readers sync.WaitGroup
	for r := range 64 {
		readers.Go(func() {
			d := digest(fmt.Sprintf("%02x", r*4))
			for {
				select {
				case <-stop:
					return
				default:
				}
				answer, err := w.client.PrepareRedeem(context.Background(), prepareDigest(d.String()))
				if err != nil {
					t.Error(err)
					return
				}
				id, offset := answer.GetReplayNode().GetContract().GetContractId(), answer.GetAnswer().GetPosition().GetOffset()
				mu.Lock()
				active, known := aliveAt[offset]
				mu.Unlock()
				if known && !active[id] {
					t.Errorf("node %s was not active at offset %d", id, offset)
				}
				if p := answer.GetReplayNode().GetPrefix(); !strings.HasPrefix(d.String(), p) {
					t.Errorf("node of prefix %q for digest %s", p, d)
				}
			}
		})
	}
	names := map[string]string{"": "n"}
	for i := range 100 {
		// The shallowest node splits.
		at := alive[0]
		alive = alive[1:]
		events := []ledger.Event{archived(names[at])}
		for _, nibble := range "0123456789abcdef" {
			child := at + string(nibble)
			names[child] = fmt.Sprintf("n%d%s", i, child)
			events = append(events, created(contract(names[child], node(t, child))))
			alive = append(alive, child)
		}
		active := map[string]bool{}
		for _, p := range alive {
			active[cid(names[p])] = true
		}
		mu.Lock()
		aliveAt[w.index.View().Position().Offset+3] = active
		mu.Unlock()
		w.apply(events...)
	}
	close(stop)
	readers.Wait()
}

// Bug E05: pages of one list are of one view, whatever happens in between; a token holds for its list and place.
func TestE05Paging(t *testing.T) {
	w := newWorld(t)
	var contracts []ledger.Contract
	for i := range 450 {
		contracts = append(contracts, contract(fmt.Sprintf("n%d", i), nodeIn(t, func(n *wormhole.ReplayNode) {
			n.Namespace = wormhole.Namespace{Present: true, Value: fmt.Sprintf("space-%03d", i)}
		})))
	}
	w.seed(contracts...)
	var names []string
	token, pages := "", 0
	for {
		answer, err := w.client.ListScopes(t.Context(), &disclosurev1.ListScopesRequest{Consumer: consumer, PageSize: 200, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if got := answer.GetAnswer().GetPosition().GetOffset(); got != 100 {
			t.Errorf("page %d is of offset %d, want 100", pages, got)
		}
		for _, s := range answer.GetScopes() {
			names = append(names, s.GetScope().GetNamespace())
		}
		w.apply(created(contract(fmt.Sprintf("more%d", pages), nodeIn(t, func(n *wormhole.ReplayNode) {
			n.Namespace = wormhole.Namespace{Present: true, Value: fmt.Sprintf("space-%03d+", pages*150)}
		}))))
		if token = answer.GetNextPageToken(); token == "" {
			break
		}
	}
	if pages != 3 || len(names) != 450 || !slices.IsSorted(names) || len(slices.Compact(names)) != 450 {
		t.Errorf("%d scopes on %d pages, want the 450 of the first view on 3, each once", len(names), pages)
	}
	first, err := w.client.ListScopes(t.Context(), &disclosurev1.ListScopesRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	again := &disclosurev1.ListScopesRequest{PageSize: 1, PageToken: first.GetNextPageToken()}
	_, err = w.client.ListScopes(t.Context(), &disclosurev1.ListScopesRequest{Consumer: consumer, PageToken: first.GetNextPageToken()})
	wantReason(t, err, api.PageTokenExpired) // another filter
	if _, err = w.client.ListScopes(t.Context(), again); err != nil {
		t.Errorf("within its time: %v", err)
	}
	// A slow reader has the minute that views are kept, not only the bound on freshness; how old the page is it tells.
	w.setNow(epoch.Add(50 * time.Second))
	w.proven()
	slow, err := w.client.ListScopes(t.Context(), again)
	if err != nil || slow.GetAnswer().GetFreshness().GetFresh() || slow.GetAnswer().GetFreshness().GetAge().AsDuration() != 50*time.Second {
		t.Errorf("after 50 s: %v, %v", slow.GetAnswer(), err)
	}
	w.setNow(epoch.Add(2 * time.Minute))
	w.proven()
	_, err = w.client.ListScopes(t.Context(), again)
	wantReason(t, err, api.PageTokenExpired)
}

// Bug E09: two replicas at one offset give the same bytes, whatever order things came in.
func TestE09ReplicasAgreeByteForByte(t *testing.T) {
	requests := []proto.Message{
		prepareDigest(digest("0").String()), prepareVAA("0x" + vaa(1).EncodedHex()), batchOf(3),
		&disclosurev1.GetCoreStateRequest{}, &disclosurev1.ListScopesRequest{}, &disclosurev1.AuditRequest{}, &disclosurev1.GetCoveringNodeRequest{Scope: selector(), Digest: digest("f").String()},
		&disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: "twice::1"}, Subject: prepareDigest(digest("0").String()).Subject},
	}
	contracts := []ledger.Contract{contract("core", core(map[int64]wormhole.GuardianSet{3: {}, 1: {}, 2: {}, 0: guardianSets()[0]})), contract("root", node(t, ""))}
	for i := range 6 {
		contracts = append(contracts, contract(fmt.Sprintf("odd%d", i), nodeIn(t, func(n *wormhole.ReplayNode) {
			n.Consumer, n.Namespace = "twice::1", wormhole.Namespace{Present: true, Value: fmt.Sprint(i % 3)}
		})))
	}
	var answers [2][][]byte
	for replica := range answers {
		w := newWorld(t)
		own := slices.Clone(contracts)
		if replica == 1 {
			slices.Reverse(own)
		}
		w.seed(own...)
		for _, req := range requests {
			raw := &rawAnswer{}
			method := strings.TrimSuffix(string(req.ProtoReflect().Descriptor().Name()), "Request")
			err := w.conn.Invoke(t.Context(), "/disclosure.v1.DisclosureService/"+method, req, nil, raw.option())
			if err != nil {
				st, _ := proto.MarshalOptions{Deterministic: true}.Marshal(statusProto(err))
				answers[replica] = append(answers[replica], st)
				continue
			}
			answers[replica] = append(answers[replica], raw.bytes)
		}
	}
	for i, req := range requests {
		if string(answers[0][i]) != string(answers[1][i]) || len(answers[0][i]) == 0 {
			t.Errorf("%T: the replicas' answers differ in their bytes", req)
		}
	}
}

// Bug B08: one entry per contract id and one view per bundle; and what the caller has is not sent again.
func TestB08OneEntryPerContract(t *testing.T) {
	w := basic(t)
	answer, err := w.client.PrepareRedeem(t.Context(), prepareVAA(vaa(1).EncodedHex()))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range answer.GetDisclosedContracts() {
		if seen[d.GetContractId()] {
			t.Errorf("%s is disclosed twice", d.GetContractId())
		}
		seen[d.GetContractId()] = true
	}
	if !seen[answer.GetArguments().GetCoreStateContractId()] || !seen[answer.GetArguments().GetReplayNodeContractId()] || len(seen) != 2 {
		t.Errorf("disclosed %v, want exactly the contracts of the arguments", seen)
	}
	req := prepareDigest(digest("a").String())
	req.Read = &disclosurev1.ReadOptions{KnownContractIds: []string{cid("root"), cid("core"), cid("core")}}
	known, err := w.client.PrepareRedeem(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if len(known.GetDisclosedContracts()) != 0 || !known.GetReplayNode().GetContract().GetBlobOmitted() || len(known.GetReplayNode().GetContract().GetCreatedEventBlob()) != 0 {
		t.Errorf("with all contracts known: %v", known)
	}
}

// Bug B10: synchronizer ids are opaque: one with a physical suffix and one without are different, and pass through as they are.
func TestB10SynchronizerIDsAreOpaque(t *testing.T) {
	w := newWorld(t)
	a, b := contract("core", core(nil)), contract("root", node(t, ""))
	a.SynchronizerID, b.SynchronizerID = sync2, sync2
	w.seed(a, b)
	answer, err := w.client.PrepareRedeem(t.Context(), prepareDigest(digest("a").String()))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range answer.GetDisclosedContracts() {
		if d.GetSynchronizerId() != sync2 {
			t.Errorf("synchronizer id %q, want %q", d.GetSynchronizerId(), sync2)
		}
	}
}

// Bug B11: answers carry the exact package id and name, so that a wallet can check that it has the package.
func TestB11PackageIsNamed(t *testing.T) {
	w := basic(t)
	answer, err := w.client.GetCoreState(t.Context(), &disclosurev1.GetCoreStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	c := answer.GetCoreState().GetContract()
	if c.GetPackageName() != packageName || c.GetTemplateId().GetPackageId() != packageID || answer.GetDisclosedContract().GetTemplateId().GetPackageId() != packageID {
		t.Errorf("package %q %v", c.GetPackageName(), c.GetTemplateId())
	}
}

// Bug C01: a digest's spelling makes no difference, and a malformed one is never "no node" (TestBadInput).
func TestC01DigestSpelling(t *testing.T) {
	w := basic(t)
	want, err := w.client.PrepareRedeem(t.Context(), prepareDigest(digest("abcdef").String()))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.ToUpper(digest("abcdef").String()), "0x" + digest("abcdef").String(), "0X" + strings.ToUpper(digest("abcdef").String())} {
		got, err := w.client.PrepareRedeem(t.Context(), prepareDigest(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// Bug C04: tries of one consumer under two operators are never mixed.
func TestC04OperatorsAreNotMixed(t *testing.T) {
	w := basic(t)
	w.apply(created(contract("other", nodeIn(t, func(n *wormhole.ReplayNode) { n.Operator = accomplice }))))
	for op, want := range map[string]string{operator: "root", accomplice: "other"} {
		answer, err := w.client.GetCoveringNode(t.Context(), &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: consumer, Operator: op}, Digest: digest("0").String()})
		if err != nil {
			t.Fatal(err)
		}
		if id := answer.GetReplayNode().GetContract().GetContractId(); id != cid(want) {
			t.Errorf("operator %s: %s, want %s", op, id, cid(want))
		}
	}
	// The accomplice has no CoreState: its trie can't be redeemed with another's.
	_, err := w.client.PrepareRedeem(t.Context(), &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: consumer, Operator: accomplice}, Subject: prepareDigest(digest("0").String()).Subject})
	wantReason(t, err, api.CoreStateMissing)
}

// Bug D09: the greatest numbers pass through.
func TestD09BigNumbers(t *testing.T) {
	w := newWorld(t)
	const most = 1<<63 - 1
	big := core(map[int64]wormhole.GuardianSet{most: {}})
	big.MessageFee, big.GuardianSetIndex, big.ChainID = most, most, most
	w.seed(contract("core", big), contract("e", &wormhole.Emitter{Operator: operator, Owner: consumer, EmitterID: most, Sequence: most}), contract("r", &wormhole.EmitterRegistry{Operator: operator, NextID: most}))
	state, err := w.client.GetCoreState(t.Context(), &disclosurev1.GetCoreStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s := state.GetCoreState(); s.GetMessageFee() != most || s.GetGuardianSetIndex() != most || s.GetGuardianSets()[0].GetIndex() != most {
		t.Errorf("CoreState %v", s)
	}
	emitter, err := w.client.GetEmitter(t.Context(), &disclosurev1.GetEmitterRequest{Owner: consumer, EmitterId: most})
	if err != nil || emitter.GetSequence() != most {
		t.Errorf("emitter %v, %v", emitter, err)
	}
	registry, err := w.client.GetRegistry(t.Context(), &disclosurev1.GetRegistryRequest{Kind: 2})
	if err != nil || registry.GetNextId() != most {
		t.Errorf("registry %v, %v", registry, err)
	}
}
