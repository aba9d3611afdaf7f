package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
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

const (
	redeemable  = disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE
	consumed    = disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED
	invalid     = disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID
	expiresSoon = disclosurev1.RedeemVerdict_REDEEM_VERDICT_EXPIRES_SOON
	notConsumed = disclosurev1.RedeemVerdict_REDEEM_VERDICT_NOT_CONSUMED
)

// checkVerdict holds an answer to what its verdict promises.
func checkVerdict(t testing.TB, answer *disclosurev1.PrepareRedeemResponse) {
	t.Helper()
	verdict := answer.GetVerdict()
	submittable := verdict == redeemable || verdict == expiresSoon || verdict == notConsumed
	allKnown := submittable && answer.GetReplayNode().GetContract().GetBlobOmitted() && answer.GetCoreState().GetContract().GetBlobOmitted()
	for what, c := range map[string]struct{ is, want bool }{
		"disclosures":      {len(answer.GetDisclosedContracts()) > 0, submittable && !allKnown},
		"arguments":        {answer.GetArguments() != nil, verdict == redeemable || verdict == expiresSoon},
		"a failed rule":    {answer.GetFailedRule() != nil, verdict == invalid},
		"a forecast":       {answer.GetChurn() != nil, submittable},
		"a blob":           {len(answer.GetReplayNode().GetContract().GetCreatedEventBlob())+len(answer.GetCoreState().GetContract().GetCreatedEventBlob()) > 0, submittable && !allKnown},
		"an expiry":        {answer.GetGuardianSetExpiresAt() != nil && verdict != redeemable, verdict == expiresSoon},
		"a consumption":    {answer.GetConsumption() != nil && verdict != invalid, verdict == consumed},
		"a replay node":    {answer.GetReplayNode() != nil || verdict == invalid, true},
		"a verdict at all": {verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_UNSPECIFIED, true},
	} {
		if c.is != c.want {
			t.Errorf("%s: has %s: %v, want %v: %v", verdict, what, c.is, c.want, answer)
		}
	}
}

func (w *world) prepare(req *disclosurev1.PrepareRedeemRequest) *disclosurev1.PrepareRedeemResponse {
	w.t.Helper()
	answer, err := w.client.PrepareRedeem(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	checkVerdict(w.t, answer)
	return answer
}

// said is an answer's verdict in a word, with what the ledger says to an invalid VAA.
func said(answer *disclosurev1.PrepareRedeemResponse) string {
	word := strings.TrimPrefix(answer.GetVerdict().String(), "REDEEM_VERDICT_")
	if rule := answer.GetFailedRule(); rule != nil {
		word += ": " + rule.GetMessage()
	}
	return word
}

// The verification comes first, as on the ledger; only then the node, and last what the ledger does not look at.
func TestOrderOfVerdicts(t *testing.T) {
	spoiled := vaa(1)
	spoiled.Signatures = spoiled.Signatures[:1]
	good, short, huge := vaa(1).EncodedHex(), spoiled.EncodedHex(), vaa(math.MaxInt64+1).EncodedHex()
	noCore := func(w *world) { w.apply(archived("core")) }
	twoCores := func(w *world) { w.apply(created(contract("core2", core(nil)))) }
	gap := func(w *world) { w.apply(archived("root")) }
	fork := func(w *world) { w.apply(created(contract("twin", node(t, "")))) }
	used := func(w *world) { w.apply(archived("root"), created(contract("root2", node(t, "", vaa(1).Digest())))) }
	noQuorum := "INVALID: no quorum: have 1, need 2"
	for _, c := range []struct {
		name  string
		vaa   string
		world []func(*world)
		want  string
		// consumption, node: they are told.
		consumption, node bool
	}{
		{name: "good", vaa: good, want: "REDEEMABLE", node: true},
		{name: "good, consumed", vaa: good, world: []func(*world){used}, want: "ALREADY_CONSUMED", consumption: true, node: true},
		{name: "good, gap", vaa: good, world: []func(*world){gap}, want: "GAP"},
		{name: "good, fork", vaa: good, world: []func(*world){fork}, want: "FORK"},
		{name: "good, no core state", vaa: good, world: []func(*world){noCore}, want: "CORE_STATE_MISSING"},
		{name: "good, two core states", vaa: good, world: []func(*world){twoCores}, want: "CORE_STATE_DOUBLED"},
		{name: "good, consumed, no core state", vaa: good, world: []func(*world){used, noCore}, want: "ALREADY_CONSUMED", consumption: true, node: true},
		{name: "invalid", vaa: short, want: noQuorum, node: true},
		{name: "invalid, consumed", vaa: short, world: []func(*world){used}, want: noQuorum, consumption: true, node: true},
		{name: "invalid, gap", vaa: short, world: []func(*world){gap}, want: noQuorum},
		{name: "invalid, fork", vaa: short, world: []func(*world){fork}, want: noQuorum},
		{name: "invalid, no core state", vaa: short, world: []func(*world){noCore}, want: "CORE_STATE_MISSING"},
		{name: "a sequence over 63 bits, no core state", vaa: huge, world: []func(*world){noCore}, want: "INVALID: number exceeds 63 bits", node: true},
		{name: "another version", vaa: "02" + good[2:], want: "INVALID: unsupported VAA version: 2"},
		{name: "another version, base64", vaa: "AgAA", want: "INVALID: unsupported VAA version: 2"},
		{name: "another version, no core state", vaa: "ff", world: []func(*world){noCore}, want: "INVALID: unsupported VAA version: 255"},
		{name: "truncated", vaa: good[:200], want: "INVALID: unexpected end of bytes"},
		{name: "truncated after the version", vaa: "0x01", want: "INVALID: unexpected end of bytes"},
		{name: "truncated, gap and two core states", vaa: "01", world: []func(*world){gap, twoCores}, want: "INVALID: unexpected end of bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := basic(t)
			for _, change := range c.world {
				change(w)
			}
			answer, err := w.client.PrepareRedeem(t.Context(), prepareVAA(c.vaa))
			got, _, _ := reasonOf(err)
			if err == nil {
				checkVerdict(t, answer)
				got = said(answer)
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if told := answer.GetConsumption() != nil; told != c.consumption {
				t.Errorf("consumption told: %v, want %v", told, c.consumption)
			}
			if told := answer.GetReplayNode() != nil; told != c.node {
				t.Errorf("replay node told: %v, want %v", told, c.node)
			}
		})
	}
}

// Each rule says what there is to say of it.
func TestFailedRules(t *testing.T) {
	w := newWorld(t)
	past := epoch.Add(-time.Second)
	sets := guardianSets()
	sets[1] = wormhole.GuardianSet{Keys: sets[0].Keys, Expiration: &past}
	w.seed(contract("core", core(sets)), contract("root", node(t, "")))
	for code, c := range map[wormhole.RuleCode]struct {
		spoil func(*wormhole.VAA)
		want  *disclosurev1.FailedRule
	}{
		wormhole.RuleNumberTooLarge:         {func(v *wormhole.VAA) { v.Sequence = math.MaxInt64 + 1 }, &disclosurev1.FailedRule{Message: "number exceeds 63 bits"}},
		wormhole.RuleUnknownGuardianSet:     {func(v *wormhole.VAA) { v.GuardianSetIndex = math.MaxUint32 }, &disclosurev1.FailedRule{Message: "unknown guardian set index", GuardianSetIndex: proto.Int64(math.MaxUint32)}},
		wormhole.RuleGuardianSetExpired:     {func(v *wormhole.VAA) { v.GuardianSetIndex = 1 }, &disclosurev1.FailedRule{Message: "guardian set has expired", GuardianSetIndex: proto.Int64(1), ExpiredAt: timestampOf(past)}},
		wormhole.RuleNoQuorum:               {func(v *wormhole.VAA) { v.Signatures = nil }, &disclosurev1.FailedRule{Message: "no quorum: have 0, need 2", GuardianSetIndex: proto.Int64(0), Have: proto.Int64(0), Need: proto.Int64(2)}},
		wormhole.RuleSignaturesNotAscending: {func(v *wormhole.VAA) { v.Signatures[1] = v.Signatures[0] }, &disclosurev1.FailedRule{Message: "signature indices not strictly ascending", GuardianSetIndex: proto.Int64(0), GuardianIndex: proto.Int64(0)}},
		wormhole.RuleGuardianOutOfRange:     {func(v *wormhole.VAA) { v.Signatures[1].GuardianIndex = 255 }, &disclosurev1.FailedRule{Message: "guardian index out of range: 255", GuardianSetIndex: proto.Int64(0), GuardianIndex: proto.Int64(255)}},
		wormhole.RuleInvalidSignature:       {func(v *wormhole.VAA) { v.Payload = []byte("another") }, &disclosurev1.FailedRule{Message: "invalid signature for guardian index 0", GuardianSetIndex: proto.Int64(0), GuardianIndex: proto.Int64(0)}},
	} {
		spoiled := vaa(7)
		c.spoil(spoiled)
		c.want.Code = string(code)
		answer := w.prepare(prepareVAA(spoiled.EncodedHex()))
		if diff := cmp.Diff(c.want, answer.GetFailedRule(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", code, diff)
		}
		if answer.GetDigest() != spoiled.Digest().String() || answer.GetMessageFee() != 7 {
			t.Errorf("%s: digest %s, fee %d", code, answer.GetDigest(), answer.GetMessageFee())
		}
	}
}

// The expiry is looked at for every answer, by the later of our clock and the record time, whatever is remembered of the VAA.
func TestExpiry(t *testing.T) {
	expires := epoch.Add(24 * time.Hour)
	sets := guardianSets()
	sets[0] = wormhole.GuardianSet{Keys: sets[0].Keys, Expiration: &expires}
	begin := func(t *testing.T, margin time.Duration) *world {
		w := newWorld(t, func(c *api.Config, _ *api.Deps) { c.ExpiryMargin, c.FreshnessBound = margin, 1000*time.Hour })
		w.seed(contract("core", core(sets)), contract("root", node(t, "")))
		return w
	}
	ask := prepareVAA(vaa(1).EncodedHex())
	w := begin(t, time.Hour)
	for _, c := range []struct {
		before time.Duration
		want   disclosurev1.RedeemVerdict
	}{
		{24 * time.Hour, redeemable}, {time.Hour + 1, redeemable}, {time.Hour, expiresSoon}, {1, expiresSoon}, {0, invalid}, {-time.Hour, invalid}, {2 * time.Hour, redeemable},
	} {
		w.setNow(expires.Add(-c.before))
		answer := w.prepare(ask)
		if answer.GetVerdict() != c.want {
			t.Errorf("%s before its expiry: %s, want %s", c.before, said(answer), c.want)
		}
		if c.want != invalid && !answer.GetGuardianSetExpiresAt().AsTime().Equal(expires) {
			t.Errorf("%s before: expires at %v, want %v", c.before, answer.GetGuardianSetExpiresAt().AsTime(), expires)
		}
	}

	// A clock that is behind the ledger's: the record time counts.
	w.setNow(epoch)
	pos := w.index.View().Position()
	for _, c := range []struct {
		before time.Duration
		want   disclosurev1.RedeemVerdict
	}{{time.Minute, expiresSoon}, {-time.Minute, invalid}} {
		pos = w.index.View().Position()
		u := ledger.Update{Offset: pos.Offset + 3, UpdateID: fmt.Sprintf("1220%064x", pos.Offset), RecordTime: expires.Add(-c.before), Events: []ledger.Event{created(contract(c.before.String(), &wormhole.Emitter{Operator: operator, Owner: consumer}))}}
		if err := w.index.Apply(t.Context(), ledger.Batch{ParticipantID: participant, After: pos.Offset, Updates: []ledger.Update{u}, Through: u.Offset}); err != nil {
			t.Fatal(err)
		}
		w.proven()
		if answer := w.prepare(ask); answer.GetVerdict() != c.want {
			t.Errorf("a record time %s before the expiry: %s, want %s", c.before, said(answer), c.want)
		}
	}

	if w := begin(t, 0); true {
		w.setNow(expires.Add(-1))
		if answer := w.prepare(ask); answer.GetVerdict() != redeemable {
			t.Errorf("without a margin: %s", said(answer))
		}
	}
}

// A set that CoreState gets later makes its VAAs good, and another set under the same index is judged anew.
func TestVerdictFollowsCoreState(t *testing.T) {
	w := newWorld(t)
	w.seed(contract("core", core(nil)), contract("root", node(t, "")))
	ask := prepareVAA(vaa(1).EncodedHex())
	strangers := wormhole.GuardianSet{Keys: []string{wormhole.TestGuardian("x").Address(), wormhole.TestGuardian("y").Address()}}
	for i, c := range []struct {
		sets map[int64]wormhole.GuardianSet
		want string
	}{
		{nil, "INVALID: unknown guardian set index"}, {guardianSets(), "REDEEMABLE"},
		{map[int64]wormhole.GuardianSet{0: strangers}, "INVALID: invalid signature for guardian index 0"}, {guardianSets(), "REDEEMABLE"},
	} {
		if i > 0 {
			w.apply(archived(coreName(i-1)), created(contract(coreName(i), core(c.sets))))
		}
		for range 2 {
			if got := said(w.prepare(ask)); got != c.want {
				t.Errorf("CoreState %d: %s, want %s", i, got, c.want)
			}
		}
	}
}

func coreName(i int) string {
	if i == 0 {
		return "core"
	}
	return fmt.Sprintf("core%d", i)
}

// Without the VAA it is said whether the digest is consumed, and no more.
func TestBareDigest(t *testing.T) {
	w := basic(t)
	w.apply(archived("root"), created(contract("root2", node(t, "", vaa(1).Digest()))))
	for text, want := range map[string]disclosurev1.RedeemVerdict{vaa(1).Digest().String(): consumed, vaa(2).Digest().String(): notConsumed} {
		if answer := w.prepare(prepareDigest(text)); answer.GetVerdict() != want || answer.GetGuardianSetExpiresAt() != nil {
			t.Errorf("digest %s: %v, want %s", text, answer, want)
		}
	}
}

// Nobody waits for the successor of a contract that an invalid VAA would not come to.
func TestInvalidVAADoesNotWait(t *testing.T) {
	w := basic(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, text := range []string{"01", "0x" + strings.Replace(vaa(1).EncodedHex(), "7061796c6f6164", "aaaaaaaaaaaaaa", 1)} {
		req := prepareVAA(text)
		req.Read = &disclosurev1.ReadOptions{NotContractIds: []string{cid("root"), cid("core")}, Wait: durationpb.New(29 * time.Second)}
		began := time.Now()
		answer, err := w.client.PrepareRedeem(ctx, req)
		if err != nil || answer.GetVerdict() != invalid || time.Since(began) > 8*time.Second {
			t.Errorf("%.10s…: %v, %v after %s", text, answer, err, time.Since(began))
		}
	}
}

// Many callers at once, with more VAAs than are remembered: each gets its own verdict.
func TestVerdictsUnderLoad(t *testing.T) {
	w := newWorld(t, func(c *api.Config, _ *api.Deps) { c.VerdictCacheEntries = 3 })
	w.seed(contract("core", core(guardianSets())), contract("root", node(t, "")))
	vaas, want := make([]string, 8), make([]string, 8)
	for i := range vaas {
		v := vaa(uint64(i))
		want[i] = "REDEEMABLE"
		if i%2 == 1 {
			v.Signatures[1].S[31] ^= 1
			want[i] = "INVALID: invalid signature for guardian index 1"
		}
		vaas[i] = v.EncodedHex()
	}
	var callers sync.WaitGroup
	for c := range 4 {
		callers.Go(func() {
			for n := range 24 {
				i := (n*(c+1) + c) % len(vaas)
				answer, err := w.client.PrepareRedeem(context.Background(), prepareVAA(vaas[i]))
				if err != nil || said(answer) != want[i] {
					t.Errorf("VAA %d: %v, %v, want %s", i, said(answer), err, want[i])
				}
			}
		})
	}
	callers.Wait()
}

// The argument is what the JSON Ledger API of a real participant took: its own spelling, field by field.
func TestJSONArgument(t *testing.T) {
	raw, err := os.ReadFile("testdata/json-api-redeem.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Commands []struct {
			ExerciseCommand struct {
				ChoiceArgument map[string]json.RawMessage `json:"choiceArgument"`
			}
		} `json:"commands"`
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	sent := recorded.Commands[0].ExerciseCommand.ChoiceArgument
	text := func(field string) (s string) {
		if err := json.Unmarshal(sent[field], &s); err != nil {
			t.Fatal(field, err)
		}
		return s
	}
	w := newWorld(t)
	state := contract("core", core(map[int64]wormhole.GuardianSet{2: {Keys: []string{wormhole.DevnetGuardian().Address()}}}))
	root := contract("root", node(t, ""))
	state.ContractID, root.ContractID = text("coreStateCid"), text("replayNodeCid")
	w.seed(state, root)
	got := w.prepare(prepareVAA(text("encodedVAA"))).GetArguments()
	var argument map[string]json.RawMessage
	if err := json.Unmarshal([]byte(got.GetVerifyAndConsumeJson()), &argument); err != nil {
		t.Fatal(err)
	}
	if fields := sortedKeys(argument); !slices.Equal(fields, []string{"consumer", "encodedVAA", "pubKeys", "replayNodeCid"}) {
		t.Errorf("fields %v", fields) // the API refuses any other
	}
	for _, field := range []string{"encodedVAA", "pubKeys", "replayNodeCid"} {
		if compact(t, argument[field]) != compact(t, sent[field]) {
			t.Errorf("%s: %s, the participant took %s", field, argument[field], sent[field])
		}
	}
	if string(argument["consumer"]) != `"`+consumer+`"` || got.GetCoreStateContractId() != text("coreStateCid") {
		t.Errorf("consumer %s, core state %s", argument["consumer"], got.GetCoreStateContractId())
	}
}

func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// After the index was built anew, what happened in between is "before our history"; what was seen before is still known, unless the
// history is another's.
func TestConsumptionAfterReseed(t *testing.T) {
	w := basic(t)
	seen := w.apply(archived("root"), created(contract("root2", node(t, "", vaa(1).Digest()))))
	after := contract("root9", node(t, "", vaa(1).Digest(), vaa(2).Digest()))
	after.Offset = 190
	ask := func(sequence uint64) *disclosurev1.Consumption {
		return w.prepare(prepareVAA(vaa(sequence).EncodedHex())).GetConsumption()
	}
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 200, Reason: ledger.SeedPruned}, contract("core", core(guardianSets())), after)
	if c := ask(1); c.GetUpdateId() != seen || c.GetOffset() != 103 || c.GetBeforeHistoryOffset() != 0 {
		t.Errorf("a consume seen before the reseed: %v", c)
	}
	if c := ask(2); c.GetUpdateId() != "" || c.GetOffset() != 0 || c.GetRecordTime() != nil || c.GetBeforeHistoryOffset() != 190 {
		t.Errorf("a consume missed: %v", c)
	}
	w.reseed(ledger.SeedStart{ParticipantID: "another::1220", Offset: 50, Reason: ledger.SeedAnotherParticipant}, contract("core", core(guardianSets())), after)
	for _, sequence := range []uint64{1, 2} {
		if c := ask(sequence); c.GetUpdateId() != "" || c.GetBeforeHistoryOffset() != 190 {
			t.Errorf("a consume before another participant's history: %v", c)
		}
	}
}

// The forecast says what was seen of this node, and how much that is.
func TestChurn(t *testing.T) {
	w := newWorld(t)
	w.seed(contract("core", core(guardianSets())), contract("0", node(t, "")))
	ask := prepareDigest(digest("f").String())
	if c := w.prepare(ask).GetChurn(); c.GetWindow() != nil || c.GetConsumesSeen() != 0 || c.GetMedianLife() != nil || c.GetNextConsumeSplits() || c.GetSplitThreshold() != 4 {
		t.Errorf("forecast for a node of a snapshot: %v", c)
	}
	var digests []wormhole.Digest
	for i := range 4 { // three seconds each; the first node's beginning is not known
		digests = append(digests, digest(fmt.Sprint(i)))
		w.apply(archived(fmt.Sprint(i)), created(contract(fmt.Sprint(i+1), node(t, "", digests...))))
	}
	for _, c := range []struct {
		later time.Duration
		want  *disclosurev1.ChurnForecast
	}{
		{0, &disclosurev1.ChurnForecast{ConsumesPerMinute: 4, Window: durationpb.New(time.Minute), ConsumesSeen: 4}},
		{2 * time.Minute, &disclosurev1.ChurnForecast{ConsumesPerMinute: 1.86, Window: durationpb.New(129 * time.Second), ConsumesSeen: 4}},
		{9*time.Minute + 56*time.Second, &disclosurev1.ChurnForecast{ConsumesPerMinute: 0.2, Window: durationpb.New(10 * time.Minute), ConsumesSeen: 2}},
		{time.Hour, &disclosurev1.ChurnForecast{ConsumesPerMinute: 0, Window: durationpb.New(10 * time.Minute), ConsumesSeen: 0}},
	} {
		w.setNow(w.index.View().Position().RecordTime.Add(c.later))
		w.proven()
		c.want.MedianLife, c.want.LivesSeen = durationpb.New(3*time.Second), 3
		c.want.ConsumedCount, c.want.SplitThreshold, c.want.NextConsumeSplits = 4, 4, true
		if diff := cmp.Diff(c.want, w.prepare(ask).GetChurn(), protocmp.Transform()); diff != "" {
			t.Errorf("%s later (-want +got):\n%s", c.later, diff)
		}
	}
	// After the split a child has no life behind it, and inherits a sixteenth of what its parent had.
	split := func(id string, prefix string) {
		events := []ledger.Event{archived(id)}
		for _, nibble := range "0123456789abcdef" {
			events = append(events, created(contract("n"+prefix+string(nibble), node(t, prefix+string(nibble)))))
		}
		w.apply(events...)
		w.setNow(w.index.View().Position().RecordTime)
		w.proven()
	}
	want := func(what string, want *disclosurev1.ChurnForecast) {
		t.Helper()
		want.SplitThreshold = 4
		if diff := cmp.Diff(want, w.prepare(ask).GetChurn(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	split("4", "")
	want("a new child", &disclosurev1.ChurnForecast{ConsumesPerMinute: 0.31, Window: durationpb.New(time.Minute), InheritedConsumesSeen: 5,
		MedianLife: durationpb.New(48 * time.Second), LivesSeen: 4, MedianLifeInherited: true})
	w.apply(archived("nf"), created(contract("next", node(t, "f", digest("f1")))))
	want("a child with a life of its own", &disclosurev1.ChurnForecast{ConsumesPerMinute: 1.31, Window: durationpb.New(time.Minute), ConsumesSeen: 1, InheritedConsumesSeen: 5,
		MedianLife: durationpb.New(3 * time.Second), LivesSeen: 1, ConsumedCount: 1})
	split("next", "f")
	want("a child of a child", &disclosurev1.ChurnForecast{ConsumesPerMinute: 0.14, Window: durationpb.New(time.Minute), InheritedConsumesSeen: 7,
		MedianLife: durationpb.New(48 * time.Second), LivesSeen: 2, MedianLifeInherited: true})
	w.setNow(w.index.View().Position().RecordTime.Add(time.Hour))
	w.proven()
	want("an hour later", &disclosurev1.ChurnForecast{Window: durationpb.New(10 * time.Minute),
		MedianLife: durationpb.New(48 * time.Second), LivesSeen: 2, MedianLifeInherited: true})
}

// What was seen in a history that another one replaced is not told of the contracts of that one, even those that are in both.
func TestChurnOfAnotherHistory(t *testing.T) {
	w := newWorld(t)
	w.seed(contract("core", core(guardianSets())), contract("0", node(t, "")))
	w.apply(archived("0"), created(contract("1", node(t, "", digest("1")))))
	ask := prepareDigest(digest("f").String())
	for range 2 {
		if c := w.prepare(ask).GetChurn(); c.GetConsumesSeen() != 1 {
			t.Errorf("forecast %v", c)
		}
	}
	w.reseed(ledger.SeedStart{ParticipantID: participant, Offset: 90, Reason: ledger.SeedRewound}, contract("core", core(guardianSets())), contract("1", node(t, "", digest("1"))))
	if c := w.prepare(ask).GetChurn(); c == nil || c.GetConsumesSeen() != 0 || c.GetLivesSeen() != 0 {
		t.Errorf("forecast after the participant was restored: %v", c)
	}
}

// slowHistory answers nothing about lives until the call is given up.
type slowHistory struct {
	*index.Index
	asked chan struct{}
}

type waitingHistory struct {
	index.History
	asked chan struct{}
}

func (s slowHistory) History() index.History { return waitingHistory{s.Index.History(), s.asked} }

func (h waitingHistory) NodeLives(ctx context.Context, _ index.Scope, _ wormhole.Prefix, _ int64, _ int) ([]index.NodeLife, error) {
	h.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A database that hangs costs a redeem its forecast and a moment, once: then it is left alone for a while.
func TestChurnWithoutHistory(t *testing.T) {
	asked := make(chan struct{}, 10)
	w := basic(t, func(_ *api.Config, d *api.Deps) { d.Index = slowHistory{d.Index.(*index.Index), asked} })
	ask := func() {
		t.Helper()
		answer, err := w.client.PrepareRedeem(t.Context(), prepareVAA(vaa(1).EncodedHex()))
		if err != nil || answer.GetVerdict() != redeemable || answer.GetChurn() != nil || len(answer.GetDisclosedContracts()) != 2 {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	ask()
	ask()
	ask()
	if n := len(asked); n != 1 {
		t.Errorf("history was asked %d times in its pause, want once", n)
	}
	w.setNow(epoch.Add(6 * time.Second))
	ask()
	if n := len(asked); n != 2 {
		t.Errorf("history was asked %d times after its pause, want twice", n)
	}
}
