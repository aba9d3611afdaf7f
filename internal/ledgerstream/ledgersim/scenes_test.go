package ledgersim_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// What the single scenarios need beside their calls: archives that were left out, blobs that were tampered with, tokens that were
// removed, a participant that goes down.

// dars are the uploaded archives, by the beginning of their hashes in the requests' notes.
var dars = map[string][]ledgersim.Package{
	"sha256 34d10c7d": {ledgersim.WormholeCore010},
	"sha256 13d45205": {ledgersim.Integrator010, ledgersim.WormholeCore010},
	"sha256 9c132ea5": {ledgersim.WormholeCore020},
	"sha256 42f5ea31": {ledgersim.WormholeCore040},
	"sha256 a151e133": {{ID: strings.Repeat("1a7e", 16), Name: "late-ea7537", Version: "1.0.0"}},
}

// adjust changes a request by what was not recorded of it.
func (s *story) adjust(c *replay.Call, m proto.Message) {
	dar := func() []byte {
		for _, ours := range daml.DARs() {
			if content := ours.Bytes(); strings.Contains(c.RequestNote, fmt.Sprintf("sha256 %x", sha256.Sum256(content))) {
				return content
			}
		}
		for hash, packages := range dars {
			if strings.Contains(c.RequestNote, hash) {
				content, err := ledgersim.DAR(packages...)
				if err != nil {
					s.t.Fatal(err)
				}
				return content
			}
		}
		return []byte("garbage")
	}
	switch m := m.(type) {
	case *admin.UploadDarFileRequest:
		m.DarFile = dar()
	case *admin.ValidateDarFileRequest:
		m.DarFile = dar()
	case *v2.SubmitAndWaitRequest:
		if strings.Contains(c.Note, "over 10 MiB") {
			m.Commands.WorkflowId = strings.Repeat("x", 11<<20)
		}
	}
}

// tamper finds the recorded blobs that were tampered with before they were sent, and does the same to the simulation's.
func (s *story) tamper(c *replay.Call) {
	var request v2.SubmitAndWaitRequest
	if err := c.Request(&request); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range request.GetCommands().GetDisclosedContracts() {
		sent := d.GetCreatedEventBlob()
		if _, ok := s.compare.blobs[string(sent)]; ok || len(sent) == 0 {
			continue
		}
		if decoded, err := contractblob.Decode(sent); err == nil {
			// A blob that no event showed in this form may be the one of a contract that is needed first.
			s.need(decoded.ContractID.String())
			if _, ok := s.compare.blobs[string(sent)]; ok {
				continue
			}
		}
		original := s.closest(sent)
		if original == "" {
			continue
		}
		tampered := applyChange([]byte(original), sent, s.compare.blobs[original])
		s.compare.blobs[string(sent)] = tampered
		before, err := contractblob.Decode(sent)
		if err != nil {
			continue
		}
		if after, err := contractblob.Decode(tampered); err == nil {
			s.compare.match("tampered", before.ContractID.String(), after.ContractID.String())
		}
	}
}

// closest is the known recorded blob that differs least from one that was sent.
func (s *story) closest(sent []byte) string {
	best, least := "", 100
	for known := range s.compare.blobs {
		n := min(len(known), len(sent))
		differing := 0
		for i := range n {
			if known[i] != sent[i] {
				differing++
			}
		}
		if longer := max(len(known), len(sent)) - n; longer > 0 && differing > 0 {
			continue
		}
		if differing < least {
			best, least = known, differing
		}
	}
	return best
}

// applyChange does to b what turned original into changed.
func applyChange(original, changed, b []byte) []byte {
	out := append([]byte(nil), b...)
	for i := range min(len(original), len(changed), len(out)) {
		out[i] ^= original[i] ^ changed[i]
	}
	switch {
	case len(changed) < len(original):
		return out[:len(out)-(len(original)-len(changed))]
	default:
		return append(out, changed[len(original):]...)
	}
}

// token is the authorization that a call of the scenario about tokens had; the recording has it removed.
func (s *story) token(c *replay.Call) string {
	if s.recording.Name != "11-auth" {
		return ""
	}
	const suffix = "-76e7b2"
	valid := 299 * time.Second
	bearer := func(user string) string { return "Bearer " + s.sim.Token(user, valid) }
	sign := func(claims map[string]any) string { return "Bearer " + s.sim.SignToken(claims) }
	admin := ledgersim.AdminUser
	in := func(d time.Duration) int64 { return s.clock.Now().Add(d).Unix() }
	switch note := c.Note; {
	case strings.HasPrefix(note, "no token"):
		return ""
	case note == "expired token":
		return sign(map[string]any{"sub": admin, "exp": in(-time.Minute), "scope": "daml_ledger_api"})
	case note == "token signed with another secret":
		return bearer(admin) + "x"
	case note == "token without exp":
		return sign(map[string]any{"sub": admin, "scope": "daml_ledger_api"})
	case strings.HasPrefix(note, "token of one hour"):
		return sign(map[string]any{"sub": admin, "exp": in(time.Hour), "scope": "daml_ledger_api"})
	case note == "token with another scope":
		return sign(map[string]any{"sub": admin, "exp": in(valid), "scope": "other"})
	case note == "token without scope and aud":
		return sign(map[string]any{"sub": admin, "exp": in(valid)})
	case note == "token of an unknown user":
		return bearer("nobody")
	case note == "token without Bearer":
		return strings.TrimPrefix(bearer(admin), "Bearer ")
	case note == "token with bearer in lower case":
		return strings.Replace(bearer(admin), "Bearer", "bearer", 1)
	case note == "nonsense as token":
		return "Bearer nonsense"
	case note == "token with the audience form":
		return sign(map[string]any{"sub": admin, "exp": in(valid), "aud": "https://daml.com/jwt/aud/participant/" + s.sim.ParticipantID()})
	case note == "token for another participant":
		return sign(map[string]any{"sub": admin, "exp": in(valid), "aud": "https://daml.com/jwt/aud/participant/other::1220"})
	case strings.HasPrefix(note, "token of 20 s"):
		return "Bearer " + s.sim.Token("reader"+suffix, 20*time.Second)
	case strings.HasPrefix(note, "reader"), strings.HasSuffix(note, "mid-stream"):
		return bearer("reader" + suffix)
	case strings.HasPrefix(note, "user without rights"):
		return bearer("none" + suffix)
	case strings.HasPrefix(note, "CanReadAsAnyParty"):
		return bearer("any" + suffix)
	default:
		return bearer(admin)
	}
}

// withToken is the connection with the helper's token, who may act as everyone.
type withToken struct{ s *story }

func (w withToken) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if w.s.recording.Name == "11-auth" {
		w.s.sim.SetRights("helper", nil, w.s.parties())
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+w.s.sim.Token("helper", time.Minute))
	}
	return w.s.conn.Invoke(ctx, method, args, reply, opts...)
}

func (w withToken) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return w.s.conn.NewStream(ctx, desc, method, opts...)
}

// scene sets the stage right before a call.
func (s *story) scene(c *replay.Call) {
	switch fmt.Sprintf("%s %d", s.recording.Name, c.N) {
	case "08-threshold-128 22":
		// Of 300 consumes few were kept; the active contracts at the end show what the others did.
		s.needEntries(24, c)
	case "09-pruning 24":
		// While it waited the recorder made a contract.
		s.needEntries(36, nil)
	case "11-auth 17":
		s.allocate()
	case "11-auth 21":
		s.ceremony()
	case "13-shutdown 11":
		s.sim.Terminate()
		for _, t := range s.tails {
			// The streams' ends must be out before the connection is.
			err := <-t.ended
			t.ended <- err
		}
		s.sim.Stop()
	case "13-shutdown 17":
		s.start(ledgersim.Options{Seed: 99, Packages: []ledgersim.Package{}})
		s.reconnect()
	}
}

// needEntries makes the active contracts of a later call be there, but for those that the given call itself makes.
func (s *story) needEntries(n int, but *replay.Call) {
	made := newContents()
	if but != nil {
		var answer v2.SubmitAndWaitForTransactionResponse
		if err := but.Responses[0].Into(&answer); err != nil {
			s.t.Fatal(err)
		}
		made.look(answer.ProtoReflect())
	}
	for _, response := range s.recording.Call(n).Responses {
		var m v2.GetActiveContractsResponse
		if err := response.Into(&m); err != nil {
			s.t.Fatal(err)
		}
		if id := m.GetActiveContract().GetCreatedEvent().GetContractId(); made.byID[id] == nil {
			s.need(id)
		}
	}
}

// ceremony gives consumerA a root under operator, in the two steps that were not recorded.
func (s *story) ceremony() {
	var operator, consumer string
	for _, p := range s.parties() {
		switch {
		case strings.HasPrefix(p, "operator"):
			operator = p
		case strings.HasPrefix(p, "consumerA"):
			consumer = p
		}
	}
	registry := s.make([]string{operator}, submit.Create(&wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{}}))
	request := s.make([]string{consumer}, submit.RequestRoot(wormhole.ReplayRootRequest{Consumer: consumer, Operator: operator, SplitThreshold: 4}))
	s.make([]string{operator}, submit.ApproveRoot(request, registry))
}

// ending lets happen what ended an open stream.
func (s *story) ending(c *replay.Call) {
	switch {
	case s.recording.Name == "13-shutdown":
		s.sim.Terminate()
	case strings.Contains(c.Note, "next element at 25 s"):
		for _, active := range s.sim.Active(s.sim.LedgerEnd()) {
			if node, ok := active.Payload.(*wormhole.ReplayNode); ok {
				if _, err := s.helper().Do(s.ctx, []string{node.Consumer}, nil, submit.ConsumeDigest(active.ContractID, wormhole.Digest{1}.String())); err != nil {
					s.t.Fatal(err)
				}
				return
			}
		}
	}
}

// merge copies a message.
func merge(to, from protoreflect.Message) { proto.Merge(to.Interface(), from.Interface()) }
