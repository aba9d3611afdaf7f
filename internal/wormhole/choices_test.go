package wormhole_test

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// governed is a CoreState under the development networks' guardian.
func governed() *wormhole.CoreState {
	return &wormhole.CoreState{
		Operator: "o", GuardianGovernance: "g", ChainID: 72, GovernanceChainID: 1, GovernanceContract: strings.Repeat("0", 63) + "4",
		GuardianSetIndex: 2, GuardianSets: map[int64]wormhole.GuardianSet{2: {Keys: []string{wormhole.DevnetGuardian().Address()}}},
	}
}

// governance signs a payload as the governance contract.
func governance(t *testing.T, payload []byte, change func(*wormhole.VAABody)) (string, []wormhole.PubKey) {
	t.Helper()
	guardians := map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()}
	body := wormhole.VAABody{EmitterChain: 1, Sequence: 1, Payload: payload}
	body.EmitterAddress[31] = 4
	if change != nil {
		change(&body)
	}
	return wormhole.SignVAA(body, 2, guardians).EncodedHex(), wormhole.PubKeys(guardians)
}

func payload(module string, action byte, chain uint16, rest []byte) []byte {
	out := make([]byte, 32-len(module), 35+len(rest))
	out = append(out, module...)
	out = append(out, action)
	out = binary.BigEndian.AppendUint16(out, chain)
	return append(out, rest...)
}

func u256(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 24), n) }

func newSet(index uint32, guardians ...string) []byte {
	out := binary.BigEndian.AppendUint32(nil, index)
	out = append(out, byte(len(guardians)))
	for _, g := range guardians {
		out = append(out, g...)
	}
	return out
}

func TestSetMessageFee(t *testing.T) {
	state := governed()
	encoded, keys := governance(t, payload("Core", 3, 72, u256(math.MaxInt64)), nil)
	next, err := state.SubmitGovernance(encoded, keys, recordedAt, wormhole.ActiveUntil)
	if err != nil {
		t.Fatal(err)
	}
	want := governed()
	want.MessageFee = math.MaxInt64
	want.ConsumedGovernance = next.ConsumedGovernance
	if diff := cmp.Diff(want, next); diff != "" || len(next.ConsumedGovernance) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(governed(), state); diff != "" {
		t.Errorf("the old state changed:\n%s", diff)
	}
	if _, err := next.SubmitGovernance(encoded, keys, recordedAt, wormhole.ActiveUntil); !errors.Is(err, wormhole.RuleGovernanceConsumed) {
		t.Errorf("again: got %v", err)
	}
}

func TestGuardianSetUpgrade(t *testing.T) {
	for _, chain := range []uint16{0, 72} {
		state := governed()
		guardian := wormhole.TestGuardian("next")
		encoded, keys := governance(t, payload("Core", 2, chain, newSet(3, string(unhex(t, guardian.Address())))), nil)
		now := recordedAt.Add(1500 * time.Nanosecond)
		next, err := state.SubmitGovernance(encoded, keys, now, wormhole.ActiveUntil)
		if err != nil {
			t.Fatal(err)
		}
		expiration := recordedAt.Add(24*time.Hour + time.Microsecond)
		want := map[int64]wormhole.GuardianSet{
			2: {Keys: []string{wormhole.DevnetGuardian().Address()}, Expiration: &expiration},
			3: {Keys: []string{guardian.Address()}},
		}
		if diff := cmp.Diff(want, next.GuardianSets); diff != "" || next.GuardianSetIndex != 3 {
			t.Errorf("index %d, sets (-want +got):\n%s", next.GuardianSetIndex, diff)
		}
		if diff := cmp.Diff(governed(), state); diff != "" {
			t.Errorf("the old state changed:\n%s", diff)
		}
		// The old set still verifies, and no longer governs.
		if err := next.Verify(sampleVAA(t), keys, now); err != nil {
			t.Errorf("the old set: %v", err)
		}
		if _, err := next.SubmitGovernance(encoded, keys, now, wormhole.ActiveUntil); !errors.Is(err, wormhole.RuleGovernanceNotCurrentSet) {
			t.Errorf("the old set governs: %v", err)
		}
	}
}

func TestGovernanceMessages(t *testing.T) {
	fee := payload("Core", 3, 72, u256(1))
	address := strings.Repeat("a", 20)
	for _, c := range []struct {
		name    string
		payload []byte
		change  func(*wormhole.VAABody)
		want    string
	}{
		{"other chain", fee, func(b *wormhole.VAABody) { b.EmitterChain = 2 }, "governance VAA is not from the governance chain"},
		{"other contract", fee, func(b *wormhole.VAABody) { b.EmitterAddress[0] = 1 }, "governance VAA is not from the governance contract"},
		{"no payload", nil, nil, "unexpected end of bytes"},
		{"short header", fee[:34], nil, "unexpected end of bytes"},
		{"other module", payload("TokenBridge", 3, 72, u256(1)), nil, "governance VAA is for a different module"},
		{"other action", payload("Core", 4, 72, u256(1)), nil, "unsupported governance action: 4"},
		{"short fee", fee[:len(fee)-1], nil, "unexpected end of bytes"},
		{"fee for all chains", payload("Core", 3, 0, u256(1)), nil, "governance VAA is for a different chain"},
		{"trailing after a fee", append(slices.Clone(fee), 0), nil, "trailing bytes in governance payload"},
		{"trailing before too large", payload("Core", 3, 72, append(u256(math.MaxUint64), 0)), nil, "trailing bytes in governance payload"},
		{"fee of 64 bits", payload("Core", 3, 72, u256(math.MaxInt64+1)), nil, "number exceeds 63 bits"},
		{"fee of 256 bits", payload("Core", 3, 72, slices.Concat([]byte{1}, make([]byte, 31))), nil, "number exceeds 63 bits"},
		{"short set header", payload("Core", 2, 0, newSet(3)[:4]), nil, "unexpected end of bytes"},
		{"short keys", payload("Core", 2, 0, newSet(3, address)[:24]), nil, "unexpected end of bytes"},
		{"set for another chain", payload("Core", 2, 5, newSet(3, address)), nil, "governance VAA is for a different chain"},
		{"trailing after a set", payload("Core", 2, 0, append(newSet(3, address), 0)), nil, "trailing bytes in governance payload"},
		{"empty set", payload("Core", 2, 0, newSet(9)), nil, "new guardian set is empty"},
		{"not the next set", payload("Core", 2, 0, newSet(4, address)), nil, "new guardian set index must be the current one plus 1"},
	} {
		encoded, keys := governance(t, c.payload, c.change)
		_, err := governed().SubmitGovernance(encoded, keys, recordedAt, wormhole.ActiveUntil)
		if err == nil || err.Error() != c.want || wormhole.RuleOf(err) == nil {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	if _, err := governed().SubmitGovernance("zz", nil, recordedAt, wormhole.ActiveUntil); !errors.Is(err, wormhole.RuleVAANotHex) {
		t.Errorf("not hex: got %v", err)
	}
}

func TestReplayRoots(t *testing.T) {
	registry := &wormhole.ReplayRootRegistry{Operator: "o", Granted: []string{"a", "c"}}
	request := &wormhole.ReplayRootRequest{Consumer: "b", Operator: "o", SplitThreshold: 4}
	granted, root, err := request.ApproveReplayRoot(registry)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, granted.Granted); diff != "" {
		t.Errorf("granted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&wormhole.ReplayNode{Consumer: "b", Operator: "o", SplitThreshold: 4}, root, compareValues); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
	if len(registry.Granted) != 2 {
		t.Errorf("the old registry changed: %v", registry.Granted)
	}
	for _, c := range []struct {
		name     string
		request  wormhole.ReplayRootRequest
		registry *wormhole.ReplayRootRegistry
		want     wormhole.RuleCode
	}{
		{"other operator first", wormhole.ReplayRootRequest{Consumer: "a", Operator: "x"}, registry, wormhole.RuleRegistryOfOtherOperator},
		{"granted before the threshold", wormhole.ReplayRootRequest{Consumer: "a", Operator: "o"}, registry, wormhole.RuleRootAlreadyGranted},
		{"threshold 0", wormhole.ReplayRootRequest{Consumer: "b", Operator: "o"}, registry, wormhole.RuleTemplatePrecondition},
		{"threshold 4097", wormhole.ReplayRootRequest{Consumer: "b", Operator: "o", SplitThreshold: 4097}, registry, wormhole.RuleTemplatePrecondition},
	} {
		if _, _, err := c.request.ApproveReplayRoot(c.registry); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

func TestEmitters(t *testing.T) {
	registry := &wormhole.EmitterRegistry{Operator: "o", GuardianObserver: "g", NextID: 255}
	next, emitter, err := registry.RegisterEmitter("w")
	if err != nil {
		t.Fatal(err)
	}
	want := &wormhole.Emitter{Operator: "o", Owner: "w", EmitterID: 255, EmitterAddress: strings.Repeat("0", 62) + "ff"}
	if diff := cmp.Diff(want, emitter); diff != "" {
		t.Errorf("emitter (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&wormhole.EmitterRegistry{Operator: "o", GuardianObserver: "g", NextID: 256}, next); diff != "" || registry.NextID != 255 {
		t.Errorf("registry (-want +got):\n%s", diff)
	}
	request := &wormhole.EmitterRequest{Owner: "w", Operator: "o"}
	if _, approved, err := request.ApproveEmitter(registry); err != nil || *approved != *want {
		t.Errorf("approved: got %+v, %v", approved, err)
	}
	if _, _, err := request.ApproveEmitter(&wormhole.EmitterRegistry{Operator: "x"}); !errors.Is(err, wormhole.RuleRegistryOfOtherOperator) {
		t.Errorf("other operator: got %v", err)
	}
	if _, _, err := (&wormhole.EmitterRegistry{NextID: math.MaxInt64}).RegisterEmitter("w"); !errors.Is(err, wormhole.RuleArithmetic) {
		t.Errorf("no more ids: got %v", err)
	}

	published, sequence, err := emitter.PublishMessage("00ff")
	if err != nil || sequence != 0 || published.Sequence != 1 || emitter.Sequence != 0 {
		t.Errorf("published: got %+v, %d, %v", published, sequence, err)
	}
	if _, _, err := published.PublishMessage(""); err != nil {
		t.Errorf("an empty payload: %v", err)
	}
	for _, bad := range []string{"0", "0F", "zz", "é"} {
		if _, _, err := emitter.PublishMessage(bad); !errors.Is(err, wormhole.RulePayloadNotHex) {
			t.Errorf("payload %q: got %v", bad, err)
		}
	}
	if _, _, err := (&wormhole.Emitter{Sequence: math.MaxInt64}).PublishMessage(""); !errors.Is(err, wormhole.RuleArithmetic) {
		t.Errorf("no more sequences: got %v", err)
	}
}

func TestStakeholders(t *testing.T) {
	for _, c := range []struct {
		payload                wormhole.Payload
		signatories, observers []string
	}{
		{&wormhole.ReplayNode{Consumer: "z", Operator: "a"}, []string{"a", "z"}, nil},
		{&wormhole.ReplayNode{Consumer: "a", Operator: "a"}, []string{"a"}, nil},
		{&wormhole.CoreState{Operator: "o", GuardianGovernance: "g", GuardianObserver: "w"}, []string{"g", "o"}, []string{"w"}},
		{&wormhole.CoreState{Operator: "o", GuardianGovernance: "g", GuardianObserver: "o"}, []string{"g", "o"}, nil},
		{&wormhole.CoreState{Operator: "o", GuardianGovernance: "g"}, []string{"g", "o"}, nil},
		{&wormhole.ReplayRootRegistry{Operator: "o"}, []string{"o"}, nil},
		{&wormhole.EmitterRegistry{Operator: "o", GuardianObserver: "w"}, []string{"o"}, []string{"w"}},
		{&wormhole.Emitter{Operator: "o", Owner: "e"}, []string{"e", "o"}, nil},
		{&wormhole.Malformed{Operator: "o"}, nil, nil},
	} {
		if got := wormhole.RequiredSignatories(c.payload); !slices.Equal(got, c.signatories) {
			t.Errorf("%T: signatories %v, want %v", c.payload, got, c.signatories)
		}
		if got := wormhole.Observers(c.payload); !slices.Equal(got, c.observers) {
			t.Errorf("%T: observers %v, want %v", c.payload, got, c.observers)
		}
		if got, want := wormhole.Stakeholders(c.payload), len(c.signatories)+len(c.observers); len(got) != want || !slices.IsSorted(got) {
			t.Errorf("%T: stakeholders %v, want %d sorted", c.payload, got, want)
		}
	}
}
