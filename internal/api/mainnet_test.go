package api_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// mainnet are real VAAs and the real guardian sets; package wormhole's testdata tells where they come from.
type mainnet struct {
	GuardianSets map[string][]string `json:"guardian_sets"`
	VAAs         []struct {
		Name             string   `json:"name"`
		VAA              string   `json:"vaa"`
		GuardianSetIndex int64    `json:"guardian_set_index"`
		PubKeys          [][2]any `json:"pub_keys"`
		Sequence         uint64   `json:"sequence,string"`
	} `json:"vaas"`
}

func readMainnet(t *testing.T) (data mainnet, sets map[int64]wormhole.GuardianSet) {
	t.Helper()
	f, err := os.Open("../wormhole/testdata/mainnet-vaas.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(unzipped).Decode(&data); err != nil {
		t.Fatal(err)
	}
	sets = map[int64]wormhole.GuardianSet{}
	for text, keys := range data.GuardianSets {
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sets[i] = wormhole.GuardianSet{Keys: keys}
	}
	if len(data.VAAs) != 43 || len(sets) != 8 {
		t.Fatalf("%d VAAs and %d sets, want 43 and 8", len(data.VAAs), len(sets))
	}
	return data, sets
}

// serviceOver is a service in this process over a CoreState with the sets and an empty root.
func serviceOver(t *testing.T, sets map[int64]wormhole.GuardianSet) func(encoded []byte) *disclosurev1.PrepareRedeemResponse {
	t.Helper()
	x, err := index.Open(t.Context(), index.Policy{GuardianGovernance: governance}, nil, index.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	seed, err := x.BeginSeed(t.Context(), ledger.SeedStart{ParticipantID: participant, Offset: 100, Reason: ledger.SeedFirst})
	if err != nil {
		t.Fatal(err)
	}
	if err := seed.Add(t.Context(), []ledger.Contract{contract("core", core(sets)), contract("root", node(t, ""))}); err != nil {
		t.Fatal(err)
	}
	if err := seed.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	service := api.NewService(api.DefaultConfig(), api.Deps{Index: x, Now: func() time.Time { return epoch }, Status: func() api.Status {
		return api.Status{State: "live", ParticipantID: participant, LedgerEnd: 100, ProvenOffset: 100, ProvenAt: epoch}
	}})
	return func(encoded []byte) *disclosurev1.PrepareRedeemResponse {
		answer, err := service.PrepareRedeem(context.Background(), &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: encoded}})
		if err != nil {
			t.Fatalf("VAA %x: %v", encoded, err)
		}
		checkVerdict(t, answer)
		return answer
	}
}

// Real VAAs are redeemable by the real guardian sets (but for sequences of 64 bits, which the ledger can't hold), unless their set is
// not there or has expired.
func TestMainnetVAAs(t *testing.T) {
	data, sets := readMainnet(t)
	expired := map[int64]wormhole.GuardianSet{}
	past, soon := epoch.Add(-time.Hour), epoch.Add(time.Minute)
	for i, set := range sets {
		expired[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: &past}
		if i == 4 {
			expired[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: &soon}
		}
	}
	now, later, none := serviceOver(t, sets), serviceOver(t, expired), serviceOver(t, nil)
	for _, v := range data.VAAs {
		raw := unhex(t, v.VAA)
		wants := [3]string{"REDEEMABLE", "INVALID: guardian set has expired", "INVALID: unknown guardian set index"}
		if v.GuardianSetIndex == 4 {
			wants[1] = "EXPIRES_SOON"
		}
		if v.Sequence > math.MaxInt64 {
			wants = [3]string{"INVALID: number exceeds 63 bits", "INVALID: number exceeds 63 bits", "INVALID: number exceeds 63 bits"}
		}
		for i, ask := range []func([]byte) *disclosurev1.PrepareRedeemResponse{now, later, none} {
			answer := ask(raw)
			if got := said(answer); got != wants[i] {
				t.Errorf("%s, CoreState %d: %s, want %s", v.Name, i, got, wants[i])
			}
			for k, key := range answer.GetArguments().GetPubKeys() {
				if float64(key.GetGuardianIndex()) != v.PubKeys[k][0] || key.GetPublicKey() != v.PubKeys[k][1] {
					t.Errorf("%s: key %d is %v, want %v", v.Name, k, key, v.PubKeys[k])
				}
			}
			if args := answer.GetArguments(); args != nil && (len(args.GetPubKeys()) != len(v.PubKeys) || args.GetEncodedVaa() != v.VAA) {
				t.Errorf("%s: arguments %v", v.Name, args)
			}
		}
	}
}

// Each byte of ten real VAAs is flipped in one bit, and each is cut off at every length: the verdict is what the ledger's own checks say
// with the guardians' keys. (Of the bytes of r, s and the payload, which are all alike, every fifth unless DISCLOSURED_SOAK=1, and of those every fifth
// under the race detector, which has nothing to find in arithmetic.)
func TestDamagedMainnetVAAs(t *testing.T) {
	data, sets := readMainnet(t)
	keys := map[string]string{} // by address
	for _, v := range data.VAAs {
		for _, pair := range v.PubKeys {
			key := pair[1].(string)
			keys[wormhole.GuardianAddress(unhex(t, key))] = key
		}
	}
	// ledgers is what the ledger says to the VAA, to a submitter who has all guardians' keys that are known here.
	state := core(sets)
	ledgers := func(encoded []byte) string {
		var known []wormhole.PubKey
		if vaa, err := wormhole.ParseVAA(encoded); err == nil {
			for i, address := range sets[int64(vaa.GuardianSetIndex)].Keys {
				if key, ok := keys[address]; ok {
					known = append(known, wormhole.PubKey{Index: int64(i), Key: key})
				}
			}
		}
		_, err := state.VerifyEncoded(hex.EncodeToString(encoded), known, epoch, wormhole.ActiveBefore)
		switch rule := wormhole.RuleOf(err); {
		case err == nil:
			return "REDEEMABLE"
		case rule.Code == wormhole.RulePublicKeyMissing: // of a guardian who signed none of the 43
			return "INVALID: invalid signature for guardian index " + strconv.FormatInt(rule.Number, 10)
		default:
			return "INVALID: " + rule.Message
		}
	}
	ask := serviceOver(t, sets)
	chosen := 0
	for i, v := range data.VAAs {
		if i%4 != 1 && v.Name != "gs1" || chosen == 10 {
			continue
		}
		chosen++
		whole := unhex(t, v.VAA)
		check := func(encoded []byte, what string, at int) string {
			got := said(ask(encoded))
			if want := ledgers(encoded); got != want {
				t.Errorf("%s, %s %d: %s, the ledger says %s", v.Name, what, at, got, want)
			}
			return got
		}
		signatures := int(whole[5])
		stride := soak(5, 1)
		if proctest.Race {
			stride *= 5
		}
		body := 6 + 66*signatures
		for at := range whole {
			isV := at >= 6 && at < body && (at-6)%66 == 65
			isIndex := at >= 6 && at < body && (at-6)%66 == 0
			isHead := at < 6 || at >= body && at < body+51
			if !isV && !isIndex && !isHead && at%stride != chosen%stride {
				continue
			}
			damaged := append([]byte(nil), whole...)
			damaged[at] ^= 1 << (at % 8)
			got := check(damaged, "byte", at)
			isSet := at >= 1 && at < 5 // guardian sets share most of their guardians
			if v.Sequence <= math.MaxInt64 && !isSet && (got == "REDEEMABLE") != isV {
				t.Errorf("%s, byte %d: %s; nothing but a recovery id can change without harm", v.Name, at, got)
			}
		}
		for n := 1; n < len(whole); n++ {
			if n > body+51 && n%stride != chosen%stride {
				continue
			}
			check(whole[:n], "length", n)
		}
	}
	if chosen != 10 {
		t.Fatalf("%d VAAs chosen, want 10", chosen)
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
