package integration

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

var (
	unauthentic = want{codes.InvalidArgument, "INTERPRETATION_UPGRADE_ERROR_AUTHENTICATION_FAILED", ""}
	invalidated = want{codes.InvalidArgument, "INTERPRETATION_UPGRADE_ERROR_VALIDATION_FAILED", ""}
	badArgument = want{codes.InvalidArgument, "INVALID_ARGUMENT", ""}
	badField    = want{codes.InvalidArgument, "INVALID_FIELD", ""}
)

// wrongBlobs: the node's or the CoreState's blob is not what the service gave. Each is also verified offline, as the Go client does before it
// submits anything.
func (s *story) wrongBlobs() {
	vaa := s.vaaWhere(0, func(n submit.Created) bool { return n.Payload.(*wormhole.ReplayNode).Consumed.Len() > 0 })
	p := s.redeemable(0, vaa, redeemer(2))
	change := func(what string, expected want, depart func(b []byte) []byte) {
		s.t.Helper()
		s.blob(what, vaa, p, expected, func(on *side, d *submit.Disclosure) { d.Blob = depart(slices.Clone(d.Blob)) })
	}
	// edit changes what the blob says and encodes it anew.
	edit := func(what string, expected want, depart func(c *contractblob.Contract)) {
		s.t.Helper()
		change(what, expected, func(b []byte) []byte { return s.edited(b, depart) })
	}
	s.blob("a digit of a consumed digest changed", vaa, p, unauthentic, func(on *side, d *submit.Disclosure) {
		d.Blob = s.otherDigest(on, vaa, d.Blob)
	})
	edit("a bit of the salt flipped", unauthentic, func(c *contractblob.Contract) { c.Salt[0] ^= 1 })
	edit("the time of creation changed", unauthentic, func(c *contractblob.Contract) { c.CreatedAt++ })
	edit("another package name", invalidated, func(c *contractblob.Contract) { c.PackageName = "wormhole-corf" })
	edit("another signatory than the argument names", invalidated, func(c *contractblob.Contract) {
		// One letter, so that the order stays and whoever repeats a recording can do the same to a blob of other parties.
		at := slices.Index(c.Signatories, s.app(s.subject, 0).Consumer)
		c.Signatories[at] = "b" + strings.TrimPrefix(c.Signatories[at], "a")
	})
	change("the first byte flipped", badArgument, func(b []byte) []byte { b[0] ^= 0xff; return b })
	change("a bit of the last byte flipped", unauthentic, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	change("the version text changed to 2.9", badArgument, func(b []byte) []byte { return bytes.Replace(b, []byte("2.1"), []byte("2.9"), 1) })
	change("cut off", badArgument, func(b []byte) []byte { return b[:len(b)/2] })
	change("an unknown field appended", badArgument, func(b []byte) []byte { return append(b, 0xfa, 0x3e, 0x01, 0x78) })
	change("empty", want{codes.InvalidArgument, "MISSING_FIELD", ""}, func([]byte) []byte { return nil })
	other := map[*side]string{}
	s.blob("the contract id's discriminator changed, the command names the real id", vaa, p, notFound, func(on *side, d *submit.Disclosure) {
		d.Blob, other[on] = s.otherDiscriminator(d.Blob)
		d.ContractID = ""
	})
	s.departs("the same, the command names the changed id", p, inactive, func(on *side, b *bundle) {
		b.discloseNode.Blob, b.node = s.otherDiscriminator(b.discloseNode.Blob)
		b.discloseNode.ContractID = b.node
	})
	s.departs("the CoreState's salt changed", p, unauthentic, func(_ *side, b *bundle) {
		b.discloseCore.Blob = s.edited(b.discloseCore.Blob, func(c *contractblob.Contract) { c.Salt[31] ^= 1 })
	})
	s.departs("the CoreState's blob in the node's place", p, badArgument, func(_ *side, b *bundle) { b.discloseNode.Blob = b.discloseCore.Blob })

	// Seen on a participant, and the reason why the client has PackageIDs: no hash covers the id of the package.
	const another = "0000000000000000000000000000000000000000000000000000000000000001"
	s.report.note("a package id changed inside of the blob is not noticed by the ledger: the redeem commits")
	for _, b := range []*bundle{p.subject, p.standIn} {
		b.discloseNode.Blob = s.edited(b.discloseNode.Blob, func(c *contractblob.Contract) { c.TemplateID.PackageID = another })
		b.discloseNode.TemplateID.PackageID = another
	}
	s.consumedBy(0, vaa, s.commit("a redeem with another package id inside of the node's blob", p).UpdateID)
}

// blob submits with the node's disclosure changed, and verifies the changed blob offline: it must be refused there too.
func (s *story) blob(what string, vaa *wormhole.VAA, p pair, expected want, depart func(on *side, d *submit.Disclosure)) {
	s.t.Helper()
	changed := *p.subject.discloseNode
	depart(s.subject, &changed)
	_, err := client.Verify(changed.Blob, client.Expected{
		ContractID: p.subject.node, Template: client.ReplayNode, PackageName: wormhole.PackageName, Operators: []string{s.subject.world.Operator},
		Consumer: s.app(s.subject, 0).Consumer, Digest: vaa.Digest().String(), Held: client.HeldAbsent,
	})
	if err == nil {
		s.t.Errorf("%s: the client verifies the blob", what)
	}
	s.refused("a blob: "+what, fmt.Sprintf("not as given; offline: %s", short(err)), expected, func(on *side) submit.Submission {
		b := *p.of(s, on)
		d := *b.discloseNode
		depart(on, &d)
		b.discloseNode = &d
		return b.submission()
	})
}

// short is an error without ids, for a table.
func short(err error) string {
	if err == nil {
		return "verified"
	}
	text := strings.TrimPrefix(err.Error(), client.ErrRefused.Error()+": ")
	if parts := strings.SplitN(text, ":", 3); len(parts) == 3 {
		text = parts[0] + ":" + parts[1]
	}
	return strings.ReplaceAll(text, "|", "/")
}

func (s *story) edited(blob []byte, edit func(c *contractblob.Contract)) []byte {
	s.t.Helper()
	c, err := contractblob.Decode(blob)
	if err != nil {
		s.t.Fatal(err)
	}
	edit(c)
	changed, err := contractblob.Encode(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return changed
}

// otherDigest changes the last digit of the first digest that the node holds.
func (s *story) otherDigest(on *side, vaa *wormhole.VAA, blob []byte) []byte {
	s.t.Helper()
	created, err := on.covering(s.app(on, 0).Consumer, vaa.Digest())
	if err != nil {
		s.t.Fatal(err)
	}
	node := created.Payload.(*wormhole.ReplayNode)
	text := node.Consumed.At(0).String()[node.Prefix.Len():]
	at := bytes.Index(blob, []byte(text))
	if at < 0 {
		s.t.Fatalf("the blob does not hold the suffix %s", text)
	}
	last := at + len(text) - 1
	blob = slices.Clone(blob)
	if blob[last] == '0' {
		blob[last] = '1'
	} else {
		blob[last] = '0'
	}
	return blob
}

// otherDiscriminator changes a bit of the contract id inside of the blob, and returns the id too.
func (s *story) otherDiscriminator(blob []byte) (changed []byte, id string) {
	s.t.Helper()
	changed = s.edited(blob, func(c *contractblob.Contract) {
		raw := c.ContractID.Bytes()
		raw[5] ^= 1
		other, err := contractblob.ContractIDFromBytes(raw)
		if err != nil {
			s.t.Fatal(err)
		}
		c.ContractID, id = other, other.String()
	})
	return changed, id
}

// wrongDisclosures: disclosures that are missing, doubled, exchanged, or say what their blobs do not.
func (s *story) wrongDisclosures() {
	vaa := s.vaa(1)
	p := s.redeemable(1, vaa, redeemer(3))
	missing := func(what string, id func(b *bundle) string, depart func(b *bundle)) {
		s.t.Helper()
		refusal := s.departs(what, p, notFound, func(_ *side, b *bundle) { depart(b) })
		if refusal != nil && !slices.Contains(refusal.Contracts, id(p.subject)) {
			s.t.Errorf("%s: the refusal names %v, not %s", what, refusal.Contracts, id(p.subject))
		}
	}
	missing("without the node's disclosure", func(b *bundle) string { return b.node }, func(b *bundle) { b.discloseNode = nil })
	missing("without the CoreState's disclosure", func(b *bundle) string { return b.coreState }, func(b *bundle) { b.discloseCore = nil })
	missing("without the app's disclosure", func(b *bundle) string { return b.integrator }, func(b *bundle) { b.discloseApp = nil })
	missing("without any disclosure", func(b *bundle) string { return b.integrator }, func(b *bundle) { b.discloseApp, b.discloseCore, b.discloseNode = nil, nil, nil })
	s.departs("node and CoreState exchanged in the arguments", p, want{codes.FailedPrecondition, "WRONGLY_TYPED_CONTRACT", ""},
		func(_ *side, b *bundle) { b.coreState, b.node = b.node, b.coreState })
	s.departs("a contract_id that is not the blob's", p, badArgument, func(_ *side, b *bundle) { b.discloseNode.ContractID = b.coreState })
	s.departs("a malformed contract_id", p, badField, func(_ *side, b *bundle) { b.discloseNode.ContractID = "no contract" })
	s.departs("a template_id that is not the blob's", p, badArgument, func(_ *side, b *bundle) { b.discloseNode.TemplateID.Entity = "CoreState" })
	s.departs("a template_id by the package's name", p, badField, func(_ *side, b *bundle) { b.discloseNode.TemplateID.PackageID = "#" + wormhole.PackageName })
	s.departs("two blobs for one contract id", p, want{codes.InvalidArgument, "", ""}, func(_ *side, b *bundle) {
		second := *b.discloseNode
		second.Blob = s.edited(second.Blob, func(c *contractblob.Contract) { c.Salt[0] ^= 1 })
		b.more = append(b.more, second)
	})
	_, fingerprint, _ := strings.Cut(s.participant, "::")
	unknown := "other::" + fingerprint
	s.departs("an unknown synchronizer_id on the node", p, want{codes.InvalidArgument, "DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH", ""},
		func(_ *side, b *bundle) { b.discloseNode.SynchronizerID = unknown })
	s.departs("a malformed synchronizer_id on the node", p, badField, func(_ *side, b *bundle) { b.discloseNode.SynchronizerID = "nowhere" })
	everywhere := func(b *bundle, id string) {
		b.discloseApp.SynchronizerID, b.discloseCore.SynchronizerID, b.discloseNode.SynchronizerID = id, id, id
	}
	prescribed := want{codes.FailedPrecondition, "INVALID_PRESCRIBED_SYNCHRONIZER_ID", ""}
	s.departs("an unknown synchronizer_id on all disclosures", p, prescribed, func(_ *side, b *bundle) { everywhere(b, unknown) })
	s.departs("an unknown synchronizer prescribed", p, prescribed, func(_ *side, b *bundle) { b.synchronizer = unknown })
	s.departs("another synchronizer prescribed than the disclosures'", p, want{codes.InvalidArgument, "PRESCRIBED_SYNCHRONIZER_ID_MISMATCH", ""},
		func(_ *side, b *bundle) { everywhere(b, unknown); b.synchronizer = s.synchronizers[0] })
	s.departs("a request over 10 MiB", p, want{codes.ResourceExhausted, "", ""}, func(_ *side, b *bundle) { b.discloseNode.Blob = make([]byte, 11<<20) })

	// Nothing of all that spoiled anything: as given, but twice and without what the blobs say themselves, it commits.
	for _, b := range []*bundle{p.subject, p.standIn} {
		bare := submit.Disclosure{Blob: b.discloseNode.Blob}
		b.more = []submit.Disclosure{*b.discloseCore, bare}
		b.discloseNode = &submit.Disclosure{Blob: b.discloseNode.Blob}
	}
	s.consumedBy(1, vaa, s.commit("a redeem with disclosures twice and blobs alone", p).UpdateID)
}

// wrongArguments: keys, VAA and node are not those that the service gave.
func (s *story) wrongArguments() {
	vaa := s.vaa(0)
	p := s.redeemable(0, vaa, redeemer(4))
	s.departs("another guardian's key", p, saysModel("public key does not match guardian address at index 0"), func(_ *side, b *bundle) {
		b.keys = wormhole.PubKeys(map[uint8]wormhole.GuardianKey{0: wormhole.TestGuardian("integration 0")})
	})
	s.departs("no key", p, saysModel("missing public key for guardian index: 0"), func(_ *side, b *bundle) { b.keys = nil })
	s.departs("the key under another index", p, saysModel("missing public key for guardian index: 0"), func(_ *side, b *bundle) {
		b.keys = []wormhole.PubKey{{Index: 1, Key: b.keys[0].Key}}
	})
	s.departs("the key in capitals", p, saysModel("public key does not match guardian address at index 0"), func(_ *side, b *bundle) {
		b.keys = []wormhole.PubKey{{Index: 0, Key: strings.ToUpper(b.keys[0].Key)}}
	})
	s.departs("the VAA in capitals", p, saysModel("VAA must be bytes of lowercase hex"), func(_ *side, b *bundle) { b.encoded = strings.ToUpper(b.encoded) })
	s.departs("a node that does not cover the digest", p, saysModel("replay node does not cover digest"), func(on *side, b *bundle) {
		node, err := on.other(s.app(on, 0).Consumer, vaa.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		b.node, b.discloseNode = node.ContractID, disclosure(node.Contract)
	})
	foreign := s.vaa(1)
	s.departs("another app's node", p, saysModel("replay node belongs to a different consumer"), func(on *side, b *bundle) {
		node, err := on.covering(s.app(on, 1).Consumer, foreign.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		b.node, b.discloseNode = node.ContractID, disclosure(node.Contract)
	})
	s.appsOwn()
	s.consumedBy(0, vaa, s.commit("a redeem as given", p).UpdateID)
}

// appsOwn: what the bridge takes and the app does not. The service knows nothing of apps, and calls it redeemable.
func (s *story) appsOwn() {
	for _, what := range []string{"chain", "emitter"} {
		good := s.vaa(0)
		body := good.VAABody
		if what == "chain" {
			body.EmitterChain++
		} else {
			body.EmitterAddress[31] ^= 1
		}
		vaa := wormhole.SignVAA(body, 0, map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
		p := s.redeemable(0, vaa, redeemer(4))
		s.refused("a message from another "+what, "redeemable: the rule is the app's own", saysModel("VAA is from a different "+what),
			func(on *side) submit.Submission { return p.of(s, on).submission() })
	}
}

// badVAAs: VAAs that no keys, no node and no retry helps.
func (s *story) badVAAs() {
	devnet := map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()}
	signed := func(set uint32, guardians map[uint8]wormhole.GuardianKey) *wormhole.VAA {
		return wormhole.SignVAA(s.vaa(0).VAABody, set, guardians)
	}
	encoded := func(v *wormhole.VAA, change func(b []byte) []byte) []byte { return change(v.Encode()) }
	flipped := signed(0, devnet)
	flipped.Signatures[0].R[31] ^= 1
	doubled := signed(0, devnet)
	doubled.Signatures = append(doubled.Signatures, doubled.Signatures[0])
	outOfRange := signed(0, map[uint8]wormhole.GuardianKey{3: wormhole.DevnetGuardian()})
	large := s.vaa(0).VAABody
	large.Sequence = 1 << 63
	for _, bad := range []struct {
		what    string
		vaa     []byte
		message string
	}{
		{"no quorum: no signature", signed(0, nil).Encode(), "no quorum: have 0, need 1"},
		{"an unknown guardian set", signed(unknownSet, devnet).Encode(), "unknown guardian set index"},
		{"an expired guardian set", signed(expiredSet, devnet).Encode(), "guardian set has expired"},
		{"a bit of the signature flipped", flipped.Encode(), "invalid signature for guardian index 0"},
		{"signed by somebody else", signed(0, map[uint8]wormhole.GuardianKey{0: wormhole.TestGuardian("integration 1")}).Encode(), "invalid signature for guardian index 0"},
		{"one guardian's signature twice", doubled.Encode(), "signature indices not strictly ascending"},
		{"a guardian that the set does not have", outOfRange.Encode(), "guardian index out of range: 3"},
		{"another version", encoded(signed(0, devnet), func(b []byte) []byte { b[0] = 2; return b }), "unsupported VAA version: 2"},
		{"cut off", encoded(signed(0, devnet), func(b []byte) []byte { return b[:70] }), "unexpected end of bytes"},
		{"a sequence beyond 63 bits", wormhole.SignVAA(large, 0, devnet).Encode(), "number exceeds 63 bits"},
	} {
		s.badVAA(bad.what, bad.vaa, bad.message, 0)
	}
}

// badVAA asks the service for its verdict on a VAA, and submits it with all else right and the guardian's own key.
func (s *story) badVAA(what string, vaa []byte, message string, as int) {
	s.t.Helper()
	verdict, err := s.tryPrepare(s.app(s.subject, 0).Consumer, vaa)
	if err != nil {
		s.t.Fatalf("PrepareRedeem of a bad VAA (%s): %v", what, err)
	}
	if verdict.Verdict != disclosurev1.RedeemVerdict_REDEEM_VERDICT_INVALID || verdict.FailedRule.GetMessage() != message {
		s.t.Errorf("%s: the service says %s %q, want invalid %q", what, verdict.Verdict, verdict.FailedRule.GetMessage(), message)
	}
	if len(verdict.DisclosedContracts) > 0 {
		s.t.Errorf("%s: the service gives disclosures", what)
	}
	p := s.redeemable(0, s.vaa(0), redeemer(as))
	s.refused("a VAA: "+what, fmt.Sprintf("invalid, %s: %s", verdict.FailedRule.GetCode(), verdict.FailedRule.GetMessage()), saysModel(message),
		func(on *side) submit.Submission {
			b := *p.of(s, on)
			b.encoded = hex.EncodeToString(vaa)
			return b.submission()
		})
}

// ledgersOwn: what the ledger refuses whoever asks, in submissions of the app and of strangers.
func (s *story) ledgersOwn() {
	vaa := s.vaa(1)
	other := s.beside(1, vaa)
	none := "nothing: no redeem"
	node := func(on *side) submit.Created {
		n, err := on.covering(s.app(on, 1).Consumer, vaa.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	app := func(on *side) []string { return []string{s.app(on, 1).Consumer} }
	s.refused("a stranger consumes on a disclosed node", none, want{codes.InvalidArgument, "DAML_AUTHORIZATION_ERROR", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: []string{on.parties["accomplice"]}, Disclosed: []submit.Disclosure{*disclosure(node(on).Contract)},
			Commands: []submit.Command{submit.ConsumeDigest(node(on).ContractID, vaa.Digest().String())}}
	})
	s.refused("an app makes a node without its operator", none, want{codes.InvalidArgument, "DAML_AUTHORIZATION_ERROR", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: app(on), Commands: []submit.Command{submit.Create(&wormhole.ReplayNode{
			Consumer: app(on)[0], Operator: on.world.Operator, SplitThreshold: 4})}}
	})
	s.refused("a node that splits at 0", none, want{codes.InvalidArgument, "TEMPLATE_PRECONDITION_VIOLATED", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: []string{app(on)[0], on.world.Operator}, Commands: []submit.Command{submit.Create(&wormhole.ReplayNode{
			Consumer: app(on)[0], Operator: on.world.Operator, SplitThreshold: 0})}}
	})
	s.refused("one node consumed on twice in one transaction", none, want{codes.NotFound, "CONTRACT_NOT_ACTIVE", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: app(on), Commands: []submit.Command{
			submit.ConsumeDigest(node(on).ContractID, vaa.Digest().String()), submit.ConsumeDigest(node(on).ContractID, other.Digest().String())}}
	})
	s.refused("a digest that is none", none, saysModel("digest must be 32 bytes of lowercase hex"), func(on *side) submit.Submission {
		return submit.Submission{ActAs: app(on), Commands: []submit.Command{submit.ConsumeDigest(node(on).ContractID, "short")}}
	})
	s.refused("an unknown choice", none, want{codes.InvalidArgument, "COMMAND_PREPROCESSING_FAILED", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: app(on), Commands: []submit.Command{
			submit.Exercise(wormhole.ReplayNodeTemplate, wormhole.PackageName, node(on).ContractID, "Unconsume", damlvalue.Record{})}}
	})
	s.refused("an unknown package", none, want{codes.FailedPrecondition, "PACKAGE_SELECTION_FAILED", ""}, func(on *side) submit.Submission {
		return submit.Submission{ActAs: app(on), Commands: []submit.Command{
			submit.CreateRecord(damlvalue.TypeName{Module: "Nowhere", Entity: "Nothing"}, "no-such-package", damlvalue.Record{})}}
	})
	if s.user == "" { // with authorization on it is refused as a right that is missing
		_, fingerprint, _ := strings.Cut(s.participant, "::")
		s.refused("a party that nobody has allocated", none, want{codes.NotFound, "UNKNOWN_SUBMITTERS", ""}, func(on *side) submit.Submission {
			return submit.Submission{ActAs: []string{"nobody" + s.suffix + "::" + fingerprint}, Commands: []submit.Command{
				submit.Create(&wormhole.EmitterRegistry{Operator: "nobody" + s.suffix + "::" + fingerprint, NextID: 1})}}
		})
	}
	s.secondRoot()
}

// secondRoot: an app asks for a root once more. The registry knows it.
func (s *story) secondRoot() {
	requests := map[*side]string{}
	s.both("an app asks for another root", func(on *side) (*submit.Result, error) {
		result, err := on.client.Do(s.ctx, []string{s.app(on, 1).Consumer}, nil, submit.RequestRoot(wormhole.ReplayRootRequest{
			Consumer: s.app(on, 1).Consumer, Operator: on.world.Operator, SplitThreshold: 8}))
		if err != nil {
			return nil, err
		}
		requests[on] = result.Created[0].ContractID
		return result, nil
	})
	s.refused("a second root is granted", "nothing: no redeem", saysModel("consumer already has a replay root"), func(on *side) submit.Submission {
		return submit.Submission{ActAs: []string{on.world.Operator}, Commands: []submit.Command{submit.ApproveRoot(requests[on], on.world.ReplayRootRegistry)}}
	})
}
