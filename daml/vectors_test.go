package daml

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/sha3"

	"github.com/disclosured/disclosured/internal/wormhole"
)

var update = flag.Bool("update", false, "write the vectors of the Daml tests")

const vectorsFile = "wormhole-core-test/daml/Wormhole/Core/Test/Vectors.daml"

// TestVectors holds the vectors of the Daml tests to internal/wormhole, which makes them: what the Daml tests expect of the model is what the
// service expects of the ledger.
func TestVectors(t *testing.T) {
	want := vectors(t)
	if *update {
		if err := os.WriteFile(vectorsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not what internal/wormhole gives: go test ./daml -run TestVectors -update (-want +got):\n%s", vectorsFile, diff)
	}
}

// The world of the vectors: the same as that of the Daml tests' Setup.
var (
	vectorStart  = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	vectorExpiry = time.Date(2026, time.January, 2, 0, 0, 0, 0, time.UTC)
	guardianKeys = map[uint8]wormhole.GuardianKey{
		0: wormhole.DevnetGuardian(), 1: wormhole.TestGuardian("one"), 2: wormhole.TestGuardian("two"), 3: wormhole.TestGuardian("three"),
	}
	peerAddress        = strings.Repeat("0b", 32)
	governanceContract = strings.Repeat("00", 31) + "04"
)

const (
	peerChain       = 2
	currentSet      = 1
	ourChain        = 72
	governanceChain = 1
)

func vectorState() *wormhole.CoreState {
	expiry := vectorExpiry
	return &wormhole.CoreState{
		Operator: "operator", GuardianGovernance: "governance", GuardianObserver: "watcher",
		ChainID: ourChain, GovernanceChainID: governanceChain, GovernanceContract: governanceContract, GuardianSetIndex: currentSet,
		GuardianSets: map[int64]wormhole.GuardianSet{
			0: {Keys: []string{guardianKeys[0].Address()}, Expiration: &expiry},
			1: {Keys: addresses(0, 1, 2, 3)},
		},
		ConsumedGovernance: []string{},
	}
}

func addresses(indices ...uint8) []string {
	var out []string
	for _, i := range indices {
		out = append(out, guardianKeys[i].Address())
	}
	return out
}

func signers(indices ...uint8) map[uint8]wormhole.GuardianKey {
	out := map[uint8]wormhole.GuardianKey{}
	for _, i := range indices {
		out[i] = guardianKeys[i]
	}
	return out
}

func bodyOf(chain uint16, address string, sequence uint64, payload []byte) wormhole.VAABody {
	body := wormhole.VAABody{Timestamp: 1_760_000_000, Nonce: 7, EmitterChain: chain, Sequence: sequence, ConsistencyLevel: 1, Payload: payload}
	if _, err := hex.Decode(body.EmitterAddress[:], []byte(address)); err != nil {
		panic(err) // a constant of this file
	}
	return body
}

// vectorCase is a VAA with keys.
type vectorCase struct {
	name string
	vaa  string
	keys []wormhole.PubKey
}

func vectors(t *testing.T) string {
	t.Helper()
	w := &damlWriter{}
	w.header()
	w.constants()
	verification(t, w)
	governance(t, w)
	tries(t, w)
	emitters(w)
	return w.String()
}

// verification are VAAs for ParseAndVerifyVAA at vectorStart, and one at the moment when set 0 ends.
func verification(t *testing.T, w *damlWriter) {
	t.Helper()
	good := wormhole.SignVAA(bodyOf(peerChain, peerAddress, 1, []byte("hello")), currentSet, signers(0, 1, 2, 3))
	keys := wormhole.PubKeys(guardianKeys)
	text := good.EncodedHex()
	changed := func(edit func(*wormhole.VAA)) string {
		v, err := wormhole.ParseVAA(good.Encode())
		if err != nil {
			t.Fatal(err)
		}
		edit(v)
		return v.EncodedHex()
	}
	swapKey := func(i int, key string) []wormhole.PubKey {
		out := slices.Clone(keys)
		out[i].Key = key
		return out
	}
	bySet0 := wormhole.SignVAA(bodyOf(peerChain, peerAddress, 2, nil), 0, signers(0))
	cases := []vectorCase{
		{"all guardians", text, keys},
		{"three of four, keys in another order", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 3, []byte{0}), currentSet, signers(0, 2, 3)).EncodedHex(), []wormhole.PubKey{keys[3], keys[0], keys[2]}},
		{"more keys than signatures", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 4, nil), currentSet, signers(1, 2, 3)).EncodedHex(), keys},
		{"the set before, not yet expired", bySet0.EncodedHex(), keys[:1]},
		{"another recovery id", changed(func(v *wormhole.VAA) { v.Signatures[0].V = 27 }), keys},
		{"the greatest sequence", wormhole.SignVAA(bodyOf(peerChain, peerAddress, math.MaxInt64, nil), currentSet, signers(0, 1, 2)).EncodedHex(), keys},
		{"nothing", "", keys},
		{"uppercase", strings.ToUpper(text), keys},
		{"half a byte", text[:len(text)-1], keys},
		{"with 0x", "0x" + text, keys},
		{"version 2", "02" + text[2:], keys},
		{"cut in the header", text[:8], keys},
		{"cut in a signature", text[:12+100], keys},
		{"cut in the body", text[:12+4*132+20], keys},
		{"one byte short of a body", changed(func(v *wormhole.VAA) { v.Payload = nil })[:12+4*132+2*51-2], keys},
		{"a sequence of 64 bits", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 1<<63, nil), currentSet, signers(0, 1, 2)).EncodedHex(), keys},
		{"an unknown set", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 5, nil), 7, signers(0, 1, 2)).EncodedHex(), keys},
		{"two of four", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 6, nil), currentSet, signers(0, 1)).EncodedHex(), keys},
		{"no signature", wormhole.SignVAA(bodyOf(peerChain, peerAddress, 6, nil), currentSet, nil).EncodedHex(), keys},
		{"signatures out of order", changed(func(v *wormhole.VAA) { v.Signatures[1], v.Signatures[2] = v.Signatures[2], v.Signatures[1] }), keys},
		{"a guardian twice", changed(func(v *wormhole.VAA) { v.Signatures[1] = v.Signatures[0] }), keys},
		{"a guardian beyond the set", changed(func(v *wormhole.VAA) { v.Signatures[3].GuardianIndex = 9 }), keys},
		{"no key for a guardian", text, keys[:3]},
		{"another guardian's key", text, swapKey(1, keys[2].Key)},
		{"a key without its first byte", text, swapKey(2, keys[2].Key[2:])},
		{"a key in uppercase", text, swapKey(2, strings.ToUpper(keys[2].Key))},
		{"a compressed key", text, swapKey(3, "02"+keys[3].Key[2:66])},
		{"a changed signature", changed(func(v *wormhole.VAA) { v.Signatures[2].S[31] ^= 1 }), keys},
		{"a signature of nothing", changed(func(v *wormhole.VAA) { v.Signatures[0].R, v.Signatures[0].S = [32]byte{}, [32]byte{} }), keys},
		{"a changed body", changed(func(v *wormhole.VAA) { v.Nonce++ }), keys},
	}
	w.section("VAAs and what verifying them gives, at the time start.")
	w.list("verification", "Case", len(cases), func(i int) {
		w.verdict(cases[i], vectorState(), vectorStart)
	})
	w.section("The same set's VAA at the moment when the set expires.")
	w.value("expired", "Case")
	w.verdict(vectorCase{"the set before, expired", bySet0.EncodedHex(), keys[:1]}, vectorState(), vectorExpiry)
	w.section("Another good one, from the peer of the example integrator; one from another chain, and one from another emitter.")
	for _, c := range []struct {
		name string
		body wormhole.VAABody
	}{
		{"fromPeer", bodyOf(peerChain, peerAddress, 40, []byte("ten coins"))},
		{"fromPeerAgain", bodyOf(peerChain, peerAddress, 41, []byte("twenty coins"))},
		{"fromOtherChain", bodyOf(peerChain+1, peerAddress, 42, nil)},
		{"fromOtherEmitter", bodyOf(peerChain, governanceContract, 43, nil)},
	} {
		w.value(c.name, "Case")
		w.verdict(vectorCase{c.name, wormhole.SignVAA(c.body, currentSet, signers(0, 1, 2)).EncodedHex(), keys}, vectorState(), vectorStart)
	}
}

// governance is a story of governance VAAs, one after the other on one state.
func governance(t *testing.T, w *damlWriter) {
	t.Helper()
	keys := wormhole.PubKeys(guardianKeys)
	module := append(make([]byte, 28), "Core"...)
	action := func(module []byte, number byte, chain uint16, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint16(append(slices.Clone(module), number), chain), rest...)
	}
	fee := func(n uint64, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint64(make([]byte, 24), n), rest...)
	}
	set := func(index uint32, who []string, rest ...byte) []byte {
		out := append(binary.BigEndian.AppendUint32(nil, index), byte(len(who)))
		for _, a := range who {
			raw, err := hex.DecodeString(a)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, raw...)
		}
		return append(out, rest...)
	}
	sequence := uint64(100)
	from := func(setIndex uint32, chain uint16, address string, payload []byte) string {
		sequence++
		who := signers(0, 1, 2, 3)
		switch setIndex {
		case 0:
			who = signers(0)
		case 2:
			who = signers(0, 1)
		}
		return wormhole.SignVAA(bodyOf(chain, address, sequence, payload), setIndex, who).EncodedHex()
	}
	by := func(payload []byte) string { return from(currentSet, governanceChain, governanceContract, payload) }
	setFee := by(action(module, 3, ourChain, fee(250)...))
	steps := []vectorCase{
		{"a fee", setFee, keys},
		{"the same again", setFee, keys},
		{"no governance VAA at all", "02", keys},
		{"of a set that is not current", from(0, governanceChain, governanceContract, action(module, 3, ourChain, fee(1)...)), keys},
		{"from another chain", from(currentSet, peerChain, governanceContract, action(module, 3, ourChain, fee(1)...)), keys},
		{"from another contract", from(currentSet, governanceChain, peerAddress, action(module, 3, ourChain, fee(1)...)), keys},
		{"cut before the action", by(module), keys},
		{"for another module", by(action(append(make([]byte, 27), "Token"...), 3, ourChain, fee(1)...)), keys},
		{"another action", by(action(module, 1, ourChain, make([]byte, 32)...)), keys},
		{"a fee that is cut", by(action(module, 3, ourChain, fee(1)[:31]...)), keys},
		{"a fee for another chain", by(action(module, 3, peerChain, fee(1)...)), keys},
		{"a fee for all chains", by(action(module, 3, 0, fee(1)...)), keys},
		{"a fee and more", by(action(module, 3, ourChain, fee(1, 0)...)), keys},
		{"a fee of 64 bits", by(action(module, 3, ourChain, fee(1<<63)...)), keys},
		{"the greatest fee", by(action(module, 3, ourChain, fee(math.MaxInt64)...)), keys},
		{"a set that is cut", by(action(module, 2, 0, set(2, addresses(0))[:20]...)), keys},
		{"a set for another chain", by(action(module, 2, peerChain, set(2, addresses(0))...)), keys},
		{"a set and more", by(action(module, 2, 0, set(2, addresses(0), 1)...)), keys},
		{"an empty set", by(action(module, 2, 0, set(2, nil)...)), keys},
		{"the set after the next", by(action(module, 2, 0, set(3, addresses(0))...)), keys},
		{"the next set, for all chains", by(action(module, 2, 0, set(2, addresses(0, 1))...)), keys},
		{"of the set that was replaced", by(action(module, 3, ourChain, fee(1)...)), keys},
		{"the next set, for this chain", from(2, governanceChain, governanceContract, action(module, 2, ourChain, set(3, addresses(0, 1, 2, 3))...)), keys},
	}
	w.section("Governance VAAs, one after the other on one state at the time start, and the state's fee and set after each.")
	state := vectorState()
	w.list("governance", "Step", len(steps), func(i int) {
		s := steps[i]
		next, err := state.SubmitGovernance(s.vaa, s.keys, vectorStart, wormhole.ActiveBefore)
		if err == nil {
			state = next
		}
		w.record("Step", "name", quote(s.name), "encodedVAA", quote(s.vaa), "pubKeys", keyList(s.keys), "refusal", quote(refusal(t, err)),
			"messageFee", fmt.Sprint(state.MessageFee), "guardianSetIndex", fmt.Sprint(state.GuardianSetIndex))
	})
	replaced := state.GuardianSets[currentSet]
	if replaced.Expiration == nil || !replaced.Expiration.Equal(vectorStart.Add(24*time.Hour)) {
		t.Errorf("the replaced set expires at %v", replaced.Expiration)
	}
}

// tries are digests consumed one after the other on a root, and the nodes after each.
func tries(t *testing.T, w *damlWriter) {
	t.Helper()
	digest := func(prefix string, fill byte) string { return prefix + strings.Repeat(string(fill), 64-len(prefix)) }
	deep := strings.Repeat("c", 63)
	type trie struct {
		name      string
		threshold int64
		prefix    string
		digests   []string
	}
	all := []trie{
		{"no digest at all", 2, "", []string{"", "0x" + digest("", '1')[2:], digest("", '1')[:63], digest("", '1') + "1", digest("g", '1')}},
		{"one under the threshold, and the one that splits", 2, "", []string{digest("a", '1'), digest("a", '1'), digest("b", '2'), digest("c", '3'), digest("c", '3'), digest("d", '4')}},
		{"all in one child, which splits at once again", 1, "", []string{digest("aa", '1'), digest("ab", '2'), digest("ac", '3'), digest("ad", '4')}},
		{"uppercase", 4, "", []string{strings.ToUpper(digest("ab", 'c')), digest("ab", 'c')}},
		{"a node that does not cover", 4, "ab", []string{digest("ac", '0'), digest("ab", '0')}},
		{"at depth 63, which never splits", 1, deep, []string{deep + "0", deep + "1", deep + "2", deep + "f", deep + "1"}},
	}
	w.section("Digests consumed one after the other on the node that covers them (on any, if none does), and all nodes after each: prefix and number of\n-- digests, but for the empty ones.")
	w.list("tries", "Trie", len(all), func(i int) {
		c := all[i]
		prefix, err := wormhole.ParsePrefix(c.prefix)
		if err != nil {
			t.Fatal(err)
		}
		nodes := []*wormhole.ReplayNode{{Consumer: "consumer", Operator: "operator", Prefix: prefix, SplitThreshold: c.threshold}}
		var steps []string
		for _, d := range c.digests {
			at := max(0, slices.IndexFunc(nodes, func(n *wormhole.ReplayNode) bool {
				return strings.HasPrefix(strings.ToLower(d), n.Prefix.String())
			}))
			result, err := nodes[at].Consume(d)
			if err == nil {
				nodes = append(slices.Delete(nodes, at, at+1), result.Nodes...)
				slices.SortFunc(nodes, func(a, b *wormhole.ReplayNode) int { return strings.Compare(a.Prefix.String(), b.Prefix.String()) })
			}
			var filled []string
			for _, n := range nodes {
				if n.Consumed.Len() > 0 {
					filled = append(filled, fmt.Sprintf("(%s, %d)", quote(n.Prefix.String()), n.Consumed.Len()))
				}
			}
			steps = append(steps, fmt.Sprintf("(%s, %s, %d, [%s])", quote(d), quote(refusal(t, err)), len(nodes), strings.Join(filled, ", ")))
		}
		w.record("Trie", "name", quote(c.name), "splitThreshold", fmt.Sprint(c.threshold), "prefix", quote(c.prefix),
			"steps", "[ "+strings.Join(steps, "\n          , ")+" ]")
	})
}

// emitters are the addresses that the Daml sources derive: see Wormhole.Core.Emitters.
func emitters(w *damlWriter) {
	all := []struct {
		registrar, owner string
		id               uint64
	}{{"operator::1220ab", "alice::1220cd", 0}, {"operator::1220ab", "alice::1220cd", 258}, {"operator::1220", "abalice::1220cd", 0}}
	w.section("Emitters' addresses: registrar, owner, id, address.")
	w.value("emitterAddresses", "[(Text, Text, Int, Text)]")
	for i, e := range all {
		preimage := []byte("wormhole:emitter:v1")
		for _, party := range []string{e.registrar, e.owner} {
			preimage = append(binary.BigEndian.AppendUint32(preimage, uint32(len(party))), party...)
		}
		h := sha3.NewLegacyKeccak256()
		h.Write(binary.BigEndian.AppendUint64(preimage, e.id))
		fmt.Fprintf(w, "  %s (%s, %s, %d, %s)\n", []string{"[", ","}[min(i, 1)], quote(e.registrar), quote(e.owner), e.id, quote(hex.EncodeToString(h.Sum(nil))))
	}
	w.WriteString("  ]\n")
}

// refusal is the message of a rule, "" for none.
func refusal(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	rule := wormhole.RuleOf(err)
	if rule == nil {
		t.Fatalf("no rule of the model: %v", err)
	}
	return rule.Message
}

// damlWriter writes a Daml module.
type damlWriter struct{ strings.Builder }

func (w *damlWriter) header() {
	w.WriteString(`-- | What the tests put in and what they expect. This file is made: go test ./daml -run TestVectors -update
--
-- It is made by the service's own rules (internal/wormhole), so that a test that passes here says that the model and the service agree. The
-- guardians' keys are public and guard nothing.
module Wormhole.Core.Test.Vectors where

import DA.Date (Month(..), date)
import DA.Time (time)

data Case = Case
  with
    name : Text
    encodedVAA : Text
    pubKeys : [(Int, Text)]
    refusal : Text -- ^ "" if it is good
    hash : Text -- ^ "" if it is not
  deriving (Eq, Show)

data Step = Step
  with
    name : Text
    encodedVAA : Text
    pubKeys : [(Int, Text)]
    refusal : Text
    messageFee : Int
    guardianSetIndex : Int
  deriving (Eq, Show)

data Trie = Trie
  with
    name : Text
    splitThreshold : Int
    prefix : Text -- ^ of the first node
    steps : [(Text, Text, Int, [(Text, Int)])] -- ^ digest, refusal, number of nodes, and those that are not empty
  deriving (Eq, Show)
`)
}

func (w *damlWriter) constants() {
	damlTime := func(t time.Time) string {
		return fmt.Sprintf("time (date %d %s %d) 0 0 0", t.Year(), t.Format("Jan"), t.Day())
	}
	w.section("The world of the vectors.")
	for _, c := range [][3]string{
		{"start", "Time", damlTime(vectorStart)},
		{"expiry", "Time", damlTime(vectorExpiry)},
		{"addressesOfSet0", "[Text]", textList(addresses(0))},
		{"addressesOfSet1", "[Text]", textList(addresses(0, 1, 2, 3))},
		{"governanceContract", "Text", quote(governanceContract)},
		{"peerAddress", "Text", quote(peerAddress)},
		{"peerChain", "Int", fmt.Sprint(peerChain)},
	} {
		w.value(c[0], c[1])
		fmt.Fprintf(w, "  %s\n", c[2])
	}
	for _, k := range wormhole.PubKeys(guardianKeys) {
		w.value(keyName(k.Index), "(Int, Text)")
		fmt.Fprintf(w, "  (%d, %s)\n", k.Index, quote(k.Key))
	}
}

func (w *damlWriter) section(comment string) { fmt.Fprintf(w, "\n-- %s\n", comment) }

func (w *damlWriter) value(name, typ string) { fmt.Fprintf(w, "\n%s : %s\n%s =\n", name, typ, name) }

func (w *damlWriter) list(name, elem string, n int, write func(i int)) {
	w.value(name, "["+elem+"]")
	for i := range n {
		w.WriteString([]string{"  [ ", "  , "}[min(i, 1)])
		write(i)
	}
	w.WriteString("  ]\n")
}

// verdict writes a Case with what the state says at now.
func (w *damlWriter) verdict(c vectorCase, state *wormhole.CoreState, now time.Time) {
	var message, hash string
	vaa, err := state.VerifyEncoded(c.vaa, c.keys, now, wormhole.ActiveBefore)
	if err != nil {
		message = err.Error()
	} else {
		hash = vaa.Digest().String()
	}
	if strings.HasSuffix(w.String(), "=\n") {
		w.WriteString("    ")
	}
	w.record("Case", "name", quote(c.name), "encodedVAA", quote(c.vaa), "pubKeys", keyList(c.keys), "refusal", quote(message), "hash", quote(hash))
}

// record writes a record of labels and values in turn.
func (w *damlWriter) record(name string, fields ...string) {
	fmt.Fprintf(w, "%s with\n", name)
	for i := 0; i < len(fields); i += 2 {
		fmt.Fprintf(w, "        %s = %s\n", fields[i], fields[i+1])
	}
}

func keyName(index int64) string { return fmt.Sprintf("key%d", index) }

// keyList writes a guardian's own key by its name.
func keyList(keys []wormhole.PubKey) string {
	own := wormhole.PubKeys(guardianKeys)
	var out []string
	for _, k := range keys {
		if slices.Contains(own, k) {
			out = append(out, keyName(k.Index))
		} else {
			out = append(out, fmt.Sprintf("(%d, %s)", k.Index, quote(k.Key)))
		}
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func textList(texts []string) string {
	var out []string
	for _, s := range texts {
		out = append(out, quote(s))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func quote(s string) string { return `"` + s + `"` }
