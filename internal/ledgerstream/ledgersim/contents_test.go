package ledgersim_test

import (
	"fmt"
	"slices"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Not every call of a scenario was recorded, and some recordings begin in the middle. What the missing calls had done can be seen in
// what the recorded ones showed: here contracts are brought into the state in which a recorded call needs them.

// contents is every contract that a recording shows.
type contents struct {
	byID map[string]*v2.CreatedEvent
	// command is the id of the command that made a contract, where it was told.
	command map[string]string
}

func newContents() *contents {
	return &contents{byID: map[string]*v2.CreatedEvent{}, command: map[string]string{}}
}

func contentsOf(r *replay.Recording) *contents {
	out := newContents()
	for _, c := range r.Calls {
		m, ok := methods[c.Method]
		if !ok {
			continue
		}
		for _, response := range c.Responses {
			message := m.response()
			if response.Into(message) == nil {
				out.look(message.ProtoReflect())
			}
		}
	}
	return out
}

func (k *contents) look(m protoreflect.Message) {
	if e, ok := m.Interface().(*v2.CreatedEvent); ok {
		// An event with labels and a blob tells most.
		if before := k.byID[e.GetContractId()]; before == nil || len(before.GetCreatedEventBlob()) == 0 || before.GetCreateArguments().GetRecordId() == nil {
			k.byID[e.GetContractId()] = e
		}
		return
	}
	if t, ok := m.Interface().(*v2.Transaction); ok && t.GetCommandId() != "" {
		for _, e := range t.GetEvents() {
			k.command[e.GetCreated().GetContractId()] = t.GetCommandId()
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Kind() != protoreflect.MessageKind || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				k.look(v.List().Get(i).Message())
			}
		default:
			k.look(v.Message())
		}
		return true
	})
}

// argument is a contract's argument with the simulation's parties in it.
func (s *story) argument(e *v2.CreatedEvent) damlvalue.Record {
	message := &v2.Record{Fields: e.GetCreateArguments().GetFields(), RecordId: e.GetCreateArguments().GetRecordId()}
	copied := (&v2.CreatedEvent{CreateArguments: message}).ProtoReflect()
	fresh := copied.New()
	merge(fresh, copied)
	s.rewrite(fresh)
	record, err := apivalue.RecordFromProto(fresh.Interface().(*v2.CreatedEvent).GetCreateArguments())
	if err != nil {
		s.t.Fatal(err)
	}
	return record
}

// need makes a recorded contract be there, and its ids and blobs match.
func (s *story) need(id string) {
	if _, ok := s.compare.ids[id]; ok {
		return
	}
	e := s.known.byID[id]
	if e == nil || e.GetPackageName() != "wormhole-core" && e.GetPackageName() != "example-integrator" || slices.ContainsFunc(e.GetSignatories(), func(p string) bool { return !slices.Contains(s.parties(), s.compare.translate(p)) }) {
		// Not shown anywhere, of a package of its own, or of another scenario on the same participant.
		return
	}
	template := apivalue.TypeName(e.GetTemplateId())
	argument := s.argument(e)
	payload, err := wormhole.Decode(template, argument)
	if err != nil {
		payload = nil
	}
	var found string
	if node, ok := payload.(*wormhole.ReplayNode); ok {
		found = s.needNode(node)
	} else {
		found = s.needOther(e, template, argument, payload)
	}
	s.compare.match("materialized", id, found)
	if blob := e.GetCreatedEventBlob(); len(blob) > 0 {
		for _, c := range s.sim.ActiveAt(found, s.sim.LedgerEnd()) {
			s.compare.blobs[string(blob)] = c.Blob
		}
	}
}

// unmatched are the active contracts of the simulation that no recorded one stands for.
func (s *story) unmatched() []ledger.Contract {
	return slices.DeleteFunc(s.sim.Active(s.sim.LedgerEnd()), func(c ledger.Contract) bool {
		_, matched := s.compare.back[c.ContractID]
		return matched
	})
}

// needNode finds or makes a node with that content: one at its prefix that lacks some digests gets them.
func (s *story) needNode(want *wormhole.ReplayNode) string {
	for _, c := range s.sim.Active(s.sim.LedgerEnd()) {
		node, ok := c.Payload.(*wormhole.ReplayNode)
		if !ok || node.Prefix != want.Prefix || node.Consumer != want.Consumer || node.Operator != want.Operator || node.Namespace != want.Namespace {
			continue
		}
		if _, matched := s.compare.back[c.ContractID]; matched && node.Consumed.Len() == want.Consumed.Len() {
			continue
		}
		if !subset(node.Consumed, want.Consumed) {
			continue
		}
		return s.consumeAll(c.ContractID, want, node)
	}
	return s.make([]string{want.Consumer, want.Operator}, submit.Create(want))
}

func subset(a, b wormhole.SuffixSet) bool {
	for d := range a.All() {
		if !b.Contains(d) {
			return false
		}
	}
	return true
}

func (s *story) consumeAll(cid string, want, have *wormhole.ReplayNode) string {
	for d := range want.Consumed.All() {
		if have.Consumed.Contains(d) {
			continue
		}
		result, err := s.helper().Do(s.ctx, []string{want.Consumer}, nil, submit.ConsumeDigest(cid, d.String()))
		if err != nil {
			s.t.Fatalf("%s: bring a node to its recorded state: %v", s.recording.Name, err)
		}
		cid = result.Created[0].ContractID
	}
	return cid
}

func (s *story) needOther(e *v2.CreatedEvent, template damlvalue.TypeName, argument damlvalue.Record, payload wormhole.Payload) string {
	if payload != nil {
		for _, c := range s.unmatched() {
			if fmt.Sprintf("%+v", c.Payload) == fmt.Sprintf("%+v", payload) {
				return c.ContractID
			}
		}
	}
	var actAs []string
	for _, p := range e.GetSignatories() {
		actAs = append(actAs, s.compare.translate(p))
	}
	result, err := s.helper().Submit(s.ctx, submit.Submission{
		CommandID: s.known.command[e.GetContractId()], ActAs: actAs,
		Commands: []submit.Command{submit.CreateRecord(template, e.GetPackageName(), argument)},
	})
	if err != nil {
		s.t.Fatalf("%s: make a contract that the recording shows: %v", s.recording.Name, err)
	}
	return result.Created[0].ContractID
}

func (s *story) make(actAs []string, command submit.Command) string {
	result, err := s.helper().Do(s.ctx, actAs, nil, command)
	if err != nil {
		s.t.Fatalf("%s: make a contract that the recording shows: %v", s.recording.Name, err)
	}
	return result.Created[0].ContractID
}

// helper submits what was not recorded.
func (s *story) helper() *submit.Client { return submit.New(withToken{s}, "helper") }

// idsIn are all contract ids in a recorded request.
func idsIn(c *replay.Call) []string {
	return slices.DeleteFunc(idPattern.FindAllString(string(c.RequestJSON), -1), func(id string) bool { return len(id) != 138 })
}

// before brings the ledger into the state in which the call was made.
func (s *story) before(c *replay.Call) {
	switch c.Method {
	case v2.CommandService_SubmitAndWait_FullMethodName, v2.CommandService_SubmitAndWaitForTransaction_FullMethodName:
		s.tamper(c)
		for _, id := range idsIn(c) {
			s.need(id)
		}
		s.needConsumed(c)
	case v2.CommandService_SubmitAndWaitForReassignment_FullMethodName:
		for _, id := range idsIn(c) {
			s.need(id)
		}
	case v2.StateService_GetActiveContracts_FullMethodName:
		for _, response := range c.Responses {
			var m v2.GetActiveContractsResponse
			if response.Into(&m) == nil {
				s.need(m.GetActiveContract().GetCreatedEvent().GetContractId())
			}
		}
	}
	s.scene(c)
}

// needConsumed is for a node that a recorded consume used and that nothing else shows: what it held follows from what replaced it.
func (s *story) needConsumed(c *replay.Call) {
	var request v2.SubmitAndWaitForTransactionRequest
	if c.Request(&request) != nil || len(request.GetCommands().GetCommands()) != 1 {
		return
	}
	x := request.GetCommands().GetCommands()[0].GetExercise()
	if _, ok := s.compare.ids[x.GetContractId()]; ok {
		return
	}
	if x.GetChoice() == "SubmitGovernanceVAA" {
		s.compare.match("materialized", x.GetContractId(), s.anotherState())
		return
	}
	if x.GetChoice() != "ConsumeDigest" {
		return
	}
	if len(c.Responses) == 0 {
		return
	}
	digest, err := wormhole.ParseDigest(x.GetChoiceArgument().GetRecord().GetFields()[0].GetValue().GetText())
	if err != nil {
		return
	}
	var answer v2.SubmitAndWaitForTransactionResponse
	if err := c.Responses[0].Into(&answer); err != nil {
		s.t.Fatal(err)
	}
	before := s.replaced(answer.GetTransaction(), digest)
	if before == nil {
		return
	}
	s.compare.match("materialized", x.GetContractId(), s.needNode(before))
}

// anotherState is a fresh CoreState like the recording's first: some governance was done on states of its own that were not shown.
func (s *story) anotherState() string {
	var first *v2.CreatedEvent
	for _, e := range s.known.byID {
		if e.GetTemplateId().GetEntityName() == "CoreState" && (first == nil || e.GetOffset() < first.GetOffset()) {
			first = e
		}
	}
	if first == nil {
		s.t.Fatalf("%s shows no CoreState", s.recording.Name)
	}
	var actAs []string
	for _, p := range first.GetSignatories() {
		actAs = append(actAs, s.compare.translate(p))
	}
	return s.make(actAs, submit.CreateRecord(apivalue.TypeName(first.GetTemplateId()), first.GetPackageName(), s.argument(first)))
}

// replaced is the node that a transaction replaced by one node or by sixteen.
func (s *story) replaced(t *v2.Transaction, digest wormhole.Digest) *wormhole.ReplayNode {
	var digests []wormhole.Digest
	var before *wormhole.ReplayNode
	created := 0
	for _, e := range t.GetEvents() {
		if e.GetCreated() == nil {
			continue
		}
		created++
		payload, err := wormhole.Decode(apivalue.TypeName(e.GetCreated().GetTemplateId()), s.argument(e.GetCreated()))
		if err != nil {
			s.t.Fatal(err)
		}
		node, ok := payload.(*wormhole.ReplayNode)
		if !ok {
			return nil
		}
		before = node
		for d := range node.Consumed.All() {
			if d != digest {
				digests = append(digests, d)
			}
		}
	}
	if before == nil {
		return nil
	}
	out := *before
	out.Consumed = wormhole.NewSuffixSet(digests...)
	if created > 1 {
		out.Prefix = digest.Prefix(before.Prefix.Len() - 1)
	}
	return &out
}

// unrecorded makes the update that an open stream is about to show, if no recorded call made it: a consume.
func (s *story) unrecorded(c *replay.Call, i int) {
	var m v2.GetUpdatesResponse
	if c.Method != v2.UpdateService_GetUpdates_FullMethodName || c.Responses[i].Into(&m) != nil || m.GetTransaction() == nil {
		return
	}
	if _, ok := s.compare.ids[m.GetTransaction().GetUpdateId()]; ok {
		return
	}
	for _, e := range m.GetTransaction().GetEvents() {
		created := e.GetCreated()
		if created == nil {
			continue
		}
		payload, err := wormhole.Decode(apivalue.TypeName(created.GetTemplateId()), s.argument(created))
		node, ok := payload.(*wormhole.ReplayNode)
		if err != nil || !ok {
			return
		}
		for _, active := range s.sim.Active(s.sim.LedgerEnd()) {
			if have, ok := active.Payload.(*wormhole.ReplayNode); ok && have.Prefix == node.Prefix && have.Consumer == node.Consumer &&
				have.Consumed.Len() == node.Consumed.Len()-1 {
				s.consumeAll(active.ContractID, node, have)
				return
			}
		}
	}
}
