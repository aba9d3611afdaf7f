package wormhole_test

import (
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/disclosured/disclosured/internal/wormhole"
)

type modelVAAs struct {
	CoreState struct {
		ChainID            int64  `json:"chainId"`
		GovernanceChainID  int64  `json:"governanceChainId"`
		GovernanceContract string `json:"governanceContract"`
		GuardianSetIndex   int64  `json:"guardianSetIndex"`
		MessageFee         int64  `json:"messageFee"`
		GuardianSets       map[string]struct {
			Keys       []string   `json:"keys"`
			Expiration *time.Time `json:"expirationTime"`
		} `json:"guardianSets"`
	} `json:"coreState"`
	VAAs []struct {
		Name       string   `json:"name"`
		Call       string   `json:"call"`
		EncodedVAA string   `json:"encodedVAA"`
		Digest     string   `json:"digest"`
		PubKeys    [][2]any `json:"pubKeys"`
		Expected   string   `json:"expected"`
		Verifies   bool     `json:"verifies"`
	} `json:"vaas"`
}

func (m *modelVAAs) state(t testing.TB) *wormhole.CoreState {
	t.Helper()
	state := &wormhole.CoreState{
		Operator: "operator::1", GuardianGovernance: "governance::1", GuardianObserver: "observer::1",
		ChainID: m.CoreState.ChainID, GovernanceChainID: m.CoreState.GovernanceChainID, GovernanceContract: m.CoreState.GovernanceContract,
		GuardianSetIndex: m.CoreState.GuardianSetIndex, MessageFee: m.CoreState.MessageFee, GuardianSets: map[int64]wormhole.GuardianSet{},
	}
	for index, set := range m.CoreState.GuardianSets {
		i, err := strconv.ParseInt(index, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		state.GuardianSets[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: set.Expiration}
	}
	return state
}

var recordedAt = time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)

// TestModelVAAs holds the checks to what the model on a real participant answered to each VAA.
func TestModelVAAs(t *testing.T) {
	var data modelVAAs
	readJSON(t, "model-vaas.json.gz", &data)
	state := data.state(t)
	// These two are the example integrator's own checks, after the VAA was found good.
	ofIntegrator := map[string]bool{"VAA is from a different chain": true, "VAA is from a different emitter": true}
	for _, row := range data.VAAs {
		t.Run(row.Name, func(t *testing.T) {
			want := row.Expected
			if want == "ok" || ofIntegrator[want] {
				want = ""
			}
			var keys []wormhole.PubKey
			for _, k := range row.PubKeys {
				keys = append(keys, wormhole.PubKey{Index: int64(k[0].(float64)), Key: k[1].(string)})
			}
			got := ""
			var err error
			switch row.Call {
			case "Redeem":
				var vaa *wormhole.VAA
				if vaa, err = state.VerifyEncoded(row.EncodedVAA, keys, recordedAt, wormhole.ActiveBefore); err == nil && vaa.Digest().String() != row.Digest {
					t.Errorf("digest %s, want %s", vaa.Digest(), row.Digest)
				}
			case "SubmitGovernanceVAA":
				_, err = state.SubmitGovernance(row.EncodedVAA, keys, recordedAt, wormhole.ActiveBefore)
			default:
				t.Fatalf("unknown call %q", row.Call)
			}
			if err != nil {
				got = err.Error()
				if wormhole.RuleOf(err) == nil {
					t.Errorf("%v is no rule", err)
				}
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}

			// With the keys that the VAA's own signatures give, it is good or not in itself.
			vaa, err := wormhole.ParseVAA(unhex(t, row.EncodedVAA))
			if err != nil {
				if row.Verifies {
					t.Errorf("parse: %v", err)
				}
				return
			}
			var set *wormhole.GuardianSet
			if s, ok := state.GuardianSets[int64(vaa.GuardianSetIndex)]; ok {
				set = &s
			}
			recovered, recoverErr := vaa.RecoverKeys(set)
			err = state.Verify(vaa, recovered, recordedAt)
			if (err == nil) != row.Verifies {
				t.Errorf("with recovered keys: got %v, want verifies = %v", err, row.Verifies)
			}
			if row.Verifies && recoverErr != nil {
				t.Errorf("recover keys: %v", recoverErr)
			}
		})
	}
}

// TestVerifyOrder breaks a VAA in every way at once and mends it fault by fault: each time the next check speaks.
func TestVerifyOrder(t *testing.T) {
	guardians := map[uint8]wormhole.GuardianKey{}
	set := wormhole.GuardianSet{}
	for i := range uint8(4) {
		guardians[i] = wormhole.TestGuardian(strconv.Itoa(int(i)))
		set.Keys = append(set.Keys, guardians[i].Address())
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expired := set
	expired.Expiration = &now
	good := wormhole.SignVAA(sampleBody(1), 5, guardians)
	keys := wormhole.PubKeys(guardians)
	check := func(vaa *wormhole.VAA, keys []wormhole.PubKey, sets map[int64]wormhole.GuardianSet, wantCode wormhole.RuleCode, want string) {
		t.Helper()
		err := (&wormhole.CoreState{GuardianSets: sets}).Verify(vaa, keys, now)
		if !errors.Is(err, wantCode) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	clone := func() *wormhole.VAA {
		vaa, err := wormhole.ParseVAA(good.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return vaa
	}

	bad := clone()
	bad.Sequence = math.MaxInt64 + 1
	bad.Signatures[0].R[0] ^= 1 // invalid
	bad.Signatures[1].GuardianIndex = 0
	bad.Signatures = bad.Signatures[:2]
	check(bad, nil, nil, wormhole.RuleNumberTooLarge, "number exceeds 63 bits")
	bad.Sequence = math.MaxInt64
	check(bad, nil, map[int64]wormhole.GuardianSet{4: set}, wormhole.RuleUnknownGuardianSet, "unknown guardian set index")
	check(bad, nil, map[int64]wormhole.GuardianSet{5: expired}, wormhole.RuleGuardianSetExpired, "guardian set has expired")
	sets := map[int64]wormhole.GuardianSet{5: set}
	check(bad, nil, sets, wormhole.RuleNoQuorum, "no quorum: have 2, need 3")

	bad = clone()
	bad.Signatures[0].GuardianIndex = 9
	bad.Signatures[1].GuardianIndex = 3 // not ascending, and found only after the first signature's checks
	check(bad, nil, sets, wormhole.RuleGuardianOutOfRange, "guardian index out of range: 9")
	bad.Signatures[0].GuardianIndex = 0
	bad.Signatures[0].S[31] ^= 1
	check(bad, nil, sets, wormhole.RulePublicKeyMissing, "missing public key for guardian index: 0")
	check(bad, []wormhole.PubKey{{Index: 0, Key: keys[1].Key}, keys[0]}, sets, wormhole.RulePublicKeyMismatch, "public key does not match guardian address at index 0")
	check(bad, keys, sets, wormhole.RuleInvalidSignature, "invalid signature for guardian index 0")
	bad.Signatures[0] = good.Signatures[0]
	bad.Signatures[1].GuardianIndex = 0
	check(bad, keys, sets, wormhole.RuleSignaturesNotAscending, "signature indices not strictly ascending")
	bad.Signatures[1] = good.Signatures[1]
	if err := (&wormhole.CoreState{GuardianSets: sets}).Verify(bad, keys, now); err != nil {
		t.Errorf("mended: %v", err)
	}
}

func TestVerifyEncodedText(t *testing.T) {
	state := &wormhole.CoreState{GuardianSets: map[int64]wormhole.GuardianSet{2: {Keys: []string{wormhole.DevnetGuardian().Address()}}}}
	vaa := sampleVAA(t)
	keys := wormhole.PubKeys(map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
	for text, want := range map[string]string{
		vaa.EncodedHex():        "",
		"0x" + vaa.EncodedHex(): "VAA must be bytes of lowercase hex",
		vaa.EncodedHex() + "a":  "VAA must be bytes of lowercase hex",
		"0A":                    "VAA must be bytes of lowercase hex",
		"é0":                    "VAA must be bytes of lowercase hex",
		"":                      "unexpected end of bytes",
		"02":                    "unsupported VAA version: 2",
		"ff":                    "unsupported VAA version: 255",
		"01":                    "unexpected end of bytes",
	} {
		got := ""
		if _, err := state.VerifyEncoded(text, keys, recordedAt, wormhole.ActiveBefore); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	for name, key := range map[string]string{
		"uppercase":  "04" + "D4A4629979F0C9FA0F0BB54EDF33F87C8C5A1F42C0350A30D68F7E967023E34E495A8EBF5101036D0FD66E3B0A8C7C61B65FCEEAF487AB3CD1B5B7B50BEB7970",
		"compressed": "02" + keys[0].Key[2:66],
		"empty":      "",
	} {
		_, err := state.VerifyEncoded(vaa.EncodedHex(), []wormhole.PubKey{{Index: 0, Key: key}}, recordedAt, wormhole.ActiveBefore)
		if !errors.Is(err, wormhole.RulePublicKeyMismatch) {
			t.Errorf("%s key: got %v", name, err)
		}
	}
}

func TestExpiryIsStrict(t *testing.T) {
	at := recordedAt
	set := wormhole.GuardianSet{Expiration: &at}
	for _, c := range []struct {
		name          string
		now           time.Time
		before, until bool
	}{
		{"a microsecond before", at.Add(-time.Microsecond), true, true},
		{"at the expiration", at, false, true},
		{"a microsecond after", at.Add(time.Microsecond), false, false},
	} {
		if got := set.Active(c.now, wormhole.ActiveBefore); got != c.before {
			t.Errorf("%s: active before = %v", c.name, got)
		}
		if got := set.Active(c.now, wormhole.ActiveUntil); got != c.until {
			t.Errorf("%s: active until = %v", c.name, got)
		}
	}
}

// TestRecoverKeysIgnoresV: whatever v says, the guardian's key is found, as the ledger verifies the signature whatever v says.
func TestRecoverKeysIgnoresV(t *testing.T) {
	guardian := wormhole.DevnetGuardian()
	set := &wormhole.GuardianSet{Keys: []string{guardian.Address()}}
	want := wormhole.PubKeys(map[uint8]wormhole.GuardianKey{0: guardian})
	for v := range 256 {
		vaa := sampleVAA(t)
		vaa.Signatures[0].V = byte(v)
		got, err := vaa.RecoverKeys(set)
		if err != nil {
			t.Errorf("v = %d: %v", v, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("v = %d (-want +got):\n%s", v, diff)
		}
	}
}

func TestRecoverKeysTellsWhatIsMissing(t *testing.T) {
	other := &wormhole.GuardianSet{Keys: []string{wormhole.TestGuardian("other").Address()}}
	keys, err := sampleVAA(t).RecoverKeys(other)
	if err == nil || err.Error() != "recover key of guardian 0: no recovery id gives the guardian's key" {
		t.Errorf("signed by another: got %v", err)
	}
	if len(keys) != 1 {
		t.Errorf("signed by another: got %d keys, want v's", len(keys))
	}
	vaa := sampleVAA(t)
	vaa.Signatures[0].R = [32]byte{}
	if keys, err := vaa.RecoverKeys(nil); err == nil || len(keys) != 0 {
		t.Errorf("r = 0: got %v and %v", keys, err)
	}
	if _, err := sampleVAA(t).RecoverKeys(&wormhole.GuardianSet{}); err == nil {
		t.Error("an empty set: no error")
	}
}

func TestQuorum(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 3, 4: 3, 18: 13, 19: 13, 20: 14, 255: 171} {
		if got := wormhole.Quorum(n); got != want {
			t.Errorf("quorum of %d: got %d, want %d", n, got, want)
		}
	}
}

func TestDevnetGuardianAddress(t *testing.T) {
	if got := wormhole.DevnetGuardian().Address(); got != "befa429d57cd18b7f8a4d91a2da9ab4af05d0fbe" {
		t.Errorf("got %s", got)
	}
}

// TestVerifyAcceptsHighS: the ledger's check takes s and n - s alike.
func TestVerifyAcceptsHighS(t *testing.T) {
	state := &wormhole.CoreState{GuardianSets: map[int64]wormhole.GuardianSet{2: {Keys: []string{wormhole.DevnetGuardian().Address()}}}}
	vaa := sampleVAA(t)
	vaa.Signatures[0].S = negateS(vaa.Signatures[0].S)
	set := state.GuardianSets[2]
	keys, err := vaa.RecoverKeys(&set)
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Verify(vaa, keys, recordedAt); err != nil {
		t.Error(err)
	}
}

func TestVerifyAndConsumeBindsTheNode(t *testing.T) {
	guardians := map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()}
	state := &wormhole.CoreState{Operator: "op", GuardianSets: map[int64]wormhole.GuardianSet{2: {Keys: []string{wormhole.DevnetGuardian().Address()}}}}
	vaa := sampleVAA(t)
	for _, c := range []struct {
		name string
		node wormhole.ReplayNode
		want string
	}{
		{"right", wormhole.ReplayNode{Consumer: "c", Operator: "op", SplitThreshold: 1}, ""},
		{"consumer before operator", wormhole.ReplayNode{Consumer: "d", Operator: "x", SplitThreshold: 1}, "replay node belongs to a different consumer"},
		{"operator", wormhole.ReplayNode{Consumer: "c", Operator: "x", SplitThreshold: 1}, "replay node belongs to a different operator"},
		{"consumed", wormhole.ReplayNode{Consumer: "c", Operator: "op", SplitThreshold: 1, Consumed: wormhole.NewSuffixSet(vaa.Digest())}, "VAA already consumed"},
	} {
		got := ""
		_, _, err := state.VerifyAndConsume(vaa.EncodedHex(), wormhole.PubKeys(guardians), "c", &c.node, recordedAt, wormhole.ActiveUntil)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestRecoverSignatures: with the guardians' own keys the verdict is VerifySignatures', and where a key is not to be had the signature is
// not the guardian's.
func TestRecoverSignatures(t *testing.T) {
	guardians := map[uint8]wormhole.GuardianKey{}
	set := wormhole.GuardianSet{}
	for i := range uint8(4) {
		guardians[i] = wormhole.TestGuardian(strconv.Itoa(int(i)))
		set.Keys = append(set.Keys, guardians[i].Address())
	}
	good := wormhole.SignVAA(sampleBody(1), 5, guardians)
	keys, err := set.RecoverSignatures(good)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wormhole.PubKeys(guardians), keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		spoil func(*wormhole.VAA)
		want  wormhole.Rule
	}{
		"no quorum":     {func(v *wormhole.VAA) { v.Signatures = v.Signatures[:2] }, wormhole.Rule{Code: wormhole.RuleNoQuorum, Message: "no quorum: have 2, need 3", Have: 2, Need: 3}},
		"not ascending": {func(v *wormhole.VAA) { v.Signatures[1].GuardianIndex = 0 }, wormhole.Rule{Code: wormhole.RuleSignaturesNotAscending, Message: "signature indices not strictly ascending"}},
		"out of range":  {func(v *wormhole.VAA) { v.Signatures[3].GuardianIndex = 4 }, wormhole.Rule{Code: wormhole.RuleGuardianOutOfRange, Message: "guardian index out of range: 4", Number: 4}},
		"another's":     {func(v *wormhole.VAA) { v.Signatures[2] = v.Signatures[1]; v.Signatures[2].GuardianIndex = 2 }, wormhole.Rule{Code: wormhole.RuleInvalidSignature, Message: "invalid signature for guardian index 2", Number: 2}},
		"r of no point": {func(v *wormhole.VAA) { v.Signatures[1].R = [32]byte{} }, wormhole.Rule{Code: wormhole.RuleInvalidSignature, Message: "invalid signature for guardian index 1", Number: 1}},
		"s is the order's": {func(v *wormhole.VAA) {
			v.Signatures[1].S = [32]byte(unhex(t, "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"))
		}, wormhole.Rule{Code: wormhole.RuleInvalidSignature, Message: "invalid signature for guardian index 1", Number: 1}},
		"damaged":            {func(v *wormhole.VAA) { v.Signatures[3].S[31] ^= 1 }, wormhole.Rule{Code: wormhole.RuleInvalidSignature, Message: "invalid signature for guardian index 3", Number: 3}},
		"v says nothing":     {func(v *wormhole.VAA) { v.Signatures[0].V = 200 }, wormhole.Rule{}},
		"another recovery":   {func(v *wormhole.VAA) { v.Signatures[0].V ^= 1 }, wormhole.Rule{}},
		"more than the set":  {func(v *wormhole.VAA) { v.Signatures = append(v.Signatures, v.Signatures...) }, wormhole.Rule{Code: wormhole.RuleSignaturesNotAscending, Message: "signature indices not strictly ascending"}},
		"first in the order": {func(v *wormhole.VAA) { v.Signatures[0].S[31] ^= 1; v.Signatures[1].GuardianIndex = 9 }, wormhole.Rule{Code: wormhole.RuleInvalidSignature, Message: "invalid signature for guardian index 0"}},
	} {
		vaa, err := wormhole.ParseVAA(good.Encode())
		if err != nil {
			t.Fatal(err)
		}
		c.spoil(vaa)
		keys, err := set.RecoverSignatures(vaa)
		got := wormhole.Rule{}
		if rule := wormhole.RuleOf(err); rule != nil {
			got = *rule
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if (err == nil) != (keys != nil) {
			t.Errorf("%s: %d keys with the error %v", name, len(keys), err)
		}
		// The ledger, given the guardians' own keys, says the same.
		ledgers := wormhole.Rule{}
		if rule := wormhole.RuleOf(set.VerifySignatures(vaa, wormhole.PubKeys(guardians))); rule != nil {
			ledgers = *rule
		}
		if diff := cmp.Diff(ledgers, got); diff != "" {
			t.Errorf("%s: the ledger says (-) and we say (+):\n%s", name, diff)
		}
	}
	nobody := wormhole.GuardianSet{Keys: []string{""}}
	if keys, err := nobody.RecoverSignatures(wormhole.SignVAA(sampleBody(1), 5, map[uint8]wormhole.GuardianKey{0: guardians[0]})); err == nil {
		t.Errorf("a guardian without an address has signed with %v", keys)
	}
}
