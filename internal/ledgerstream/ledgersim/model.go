package ledgersim

import (
	"encoding/hex"
	"slices"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// definePackage gives an uploaded package its meaning. The two packages of the model run; any other name, and a version of
// an unknown shape, is a package without templates: it can be named in filters by nobody.
func definePackage(p Package, vetted bool) *pkg {
	out := &pkg{Package: p, vetted: vetted, templates: map[string]*template{}}
	switch p.Name {
	case wormholeCore:
		out.defineCore()
	case exampleIntegrator:
		out.defineIntegrator()
	}
	return out
}

// add defines a template; its names get the package's id.
func (p *pkg) add(typ damlvalue.RecordType, signatories, observers []string, choices ...*choice) *template {
	typ = recordInPackage(typ, p.ID)
	t := &template{
		pkg:         p,
		name:        typ.Name,
		typ:         typ,
		signatories: func(this damlvalue.Record) []string { return parties(this, signatories...) },
		observers:   func(this damlvalue.Record) []string { return parties(this, observers...) },
		choices:     map[string]*choice{},
	}
	archive := &choice{name: "Archive", arg: archiveType,
		controllers: func(t *template, this, _ damlvalue.Record) []string { return t.signatories(this) },
		body: func(*exec, *template, damlvalue.Record, damlvalue.Record) (damlvalue.Value, error) {
			return damlvalue.Unit{}, nil
		}}
	for _, c := range append(choices, archive) {
		c := *c
		c.arg = recordInPackage(c.arg, p.ID)
		t.choices[c.name] = &c
	}
	p.templates[typ.Name.QualifiedName()] = t
	return t
}

// controlledBy makes controllers of fields of the contract.
func controlledBy(labels ...string) func(*template, damlvalue.Record, damlvalue.Record) []string {
	return func(_ *template, this, _ damlvalue.Record) []string { return parties(this, labels...) }
}

// chosenBy makes controllers of fields of the choice's argument.
func chosenBy(labels ...string) func(*template, damlvalue.Record, damlvalue.Record) []string {
	return func(_ *template, _, arg damlvalue.Record) []string { return parties(arg, labels...) }
}

func (p *pkg) defineCore() {
	node := modelType(wormhole.ReplayNodeTemplate, 5)
	switch {
	case compareVersions(p.Version, "0.4.0") >= 0:
		node = modelType(wormhole.ReplayNodeTemplate, 6)
	case compareVersions(p.Version, "0.2.0") >= 0:
		node = withNote(node)
	}
	p.add(node, []string{"consumer", "operator"}, nil,
		&choice{name: "ConsumeDigest", arg: consumeDigestType, controllers: controlledBy("consumer"), body: consumeDigest},
	).precondition = wellFormedNode
	p.add(modelType(wormhole.ReplayRootRegistryTemplate, 2), []string{"operator"}, nil,
		&choice{name: "GrantReplayRoot", arg: grantReplayRootType, controllers: controlledBy("operator"), body: grantReplayRoot})
	p.add(modelType(wormhole.ReplayRootRequestTemplate, 3), []string{"consumer"}, []string{"operator"},
		&choice{name: "ApproveReplayRoot", arg: approveReplayRootType, controllers: controlledBy("operator"), body: approveReplayRoot})
	p.add(modelType(wormhole.CoreStateTemplate, 10), []string{"operator", "guardianGovernance"}, []string{"guardianObserver"},
		&choice{name: "GetOperator", arg: getOperatorType, nonConsuming: true, controllers: chosenBy("reader"), body: getOperator},
		&choice{name: "VerifyAndConsumeVAA", arg: verifyAndConsumeType, nonConsuming: true, controllers: chosenBy("consumer"), body: verifyAndConsume},
		&choice{name: "ParseAndVerifyVAA", arg: parseAndVerifyType, nonConsuming: true, controllers: chosenBy("verifier"), body: parseAndVerify},
		&choice{name: "SubmitGovernanceVAA", arg: submitGovernanceType, controllers: controlledBy("operator"), body: submitGovernance})
	p.add(modelType(wormhole.EmitterRegistryTemplate, 2), []string{"operator"}, nil,
		&choice{name: "AllocateEmitterId", arg: allocateEmitterType, controllers: controlledBy("operator"), body: allocateEmitterID},
		&choice{name: "RegisterEmitter", arg: registerEmitterType, controllers: chosenBy("owner"), body: registerEmitter})
	p.add(modelType(wormhole.EmitterRequestTemplate, 2), []string{"owner"}, []string{"operator"},
		&choice{name: "ApproveEmitter", arg: approveEmitterType, controllers: controlledBy("operator"), body: approveEmitter})
	p.add(modelType(wormhole.EmitterTemplate, 5), []string{"operator", "owner"}, nil,
		&choice{name: "PublishMessage", arg: publishMessageType, controllers: controlledBy("owner"), body: publishMessage})
}

func (p *pkg) defineIntegrator() {
	p.add(receiptType, []string{"manager", "redeemer"}, nil)
	p.add(integratorType, []string{"manager"}, []string{"users"},
		&choice{name: "Redeem", arg: redeemType, nonConsuming: true, controllers: chosenBy("redeemer"), body: redeem})
}

// ---- replay nodes and their roots

func wellFormedNode(this damlvalue.Record) bool {
	_, ok := decodePayload(this).(*wormhole.ReplayNode)
	return ok
}

func consumeDigest(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	node, err := payloadOf[*wormhole.ReplayNode](this)
	if err != nil {
		return nil, err
	}
	result, err := node.Consume(text(arg, "digest"))
	if err != nil {
		return nil, err
	}
	var covering string
	for i, n := range result.Nodes {
		cid, err := x.createPayload(t, n)
		if err != nil {
			return nil, err
		}
		if i == result.Covering {
			covering = cid
		}
	}
	return damlvalue.ContractID(covering), nil
}

func grantReplayRoot(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	registry, err := payloadOf[*wormhole.ReplayRootRegistry](this)
	if err != nil {
		return nil, err
	}
	next, err := registry.GrantReplayRoot(party(arg, "consumer"))
	if err != nil {
		return nil, err
	}
	cid, err := x.createPayload(t, next)
	return damlvalue.ContractID(cid), err
}

func approveReplayRoot(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	registryTemplate := t.sibling(wormhole.ReplayRootRegistryTemplate)
	registryCid := contractIDOf(arg, "registryCid")
	registry, err := x.fetch(registryTemplate, registryCid)
	if err != nil {
		return nil, err
	}
	if party(registry, "operator") != party(this, "operator") {
		return nil, failure("registry belongs to a different operator")
	}
	granted, err := x.exercise(registryTemplate, registryCid, "GrantReplayRoot",
		record(grantReplayRootType, damlvalue.Party(party(this, "consumer"))))
	if err != nil {
		return nil, err
	}
	root := &wormhole.ReplayNode{
		Consumer: party(this, "consumer"), Operator: party(this, "operator"), SplitThreshold: integer(this, "splitThreshold"),
	}
	rootTemplate := t.sibling(wormhole.ReplayNodeTemplate)
	root.Namespace.Present = len(rootTemplate.typ.Fields) > 2 && rootTemplate.typ.Fields[2].Label == "namespace"
	rootCid, err := x.createPayload(rootTemplate, root)
	if err != nil {
		return nil, err
	}
	return tuple(granted, damlvalue.ContractID(rootCid)), nil
}

// ---- the core state

func getOperator(_ *exec, _ *template, this, _ damlvalue.Record) (damlvalue.Value, error) {
	return damlvalue.Party(party(this, "operator")), nil
}

func verifyAndConsume(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	state, err := payloadOf[*wormhole.CoreState](this)
	if err != nil {
		return nil, err
	}
	vaa, err := state.VerifyEncoded(text(arg, "encodedVAA"), pubKeys(arg), x.now, wormhole.ActiveUntil)
	if err != nil {
		return nil, err
	}
	nodeTemplate := t.sibling(wormhole.ReplayNodeTemplate)
	nodeCid := contractIDOf(arg, "replayNodeCid")
	node, err := x.fetch(nodeTemplate, nodeCid)
	switch {
	case err != nil:
		return nil, err
	case party(node, "consumer") != party(arg, "consumer"):
		return nil, failure("replay node belongs to a different consumer")
	case party(node, "operator") != state.Operator:
		return nil, failure("replay node belongs to a different operator")
	}
	covering, err := x.exercise(nodeTemplate, nodeCid, "ConsumeDigest", record(consumeDigestType, damlvalue.Text(vaa.Digest().String())))
	if err != nil {
		return nil, err
	}
	return tuple(vaaRecord(vaa), covering), nil
}

func parseAndVerify(x *exec, _ *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	state, err := payloadOf[*wormhole.CoreState](this)
	if err != nil {
		return nil, err
	}
	vaa, err := state.VerifyEncoded(text(arg, "encodedVAA"), pubKeys(arg), x.now, wormhole.ActiveUntil)
	if err != nil {
		return nil, err
	}
	return vaaRecord(vaa), nil
}

func submitGovernance(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	state, err := payloadOf[*wormhole.CoreState](this)
	if err != nil {
		return nil, err
	}
	next, err := state.SubmitGovernance(text(arg, "encodedVAA"), pubKeys(arg), x.now, wormhole.ActiveUntil)
	if err != nil {
		return nil, err
	}
	cid, err := x.createPayload(t, next)
	return damlvalue.ContractID(cid), err
}

// ---- emitters

func allocateEmitterID(x *exec, t *template, this, _ damlvalue.Record) (damlvalue.Value, error) {
	registry, err := payloadOf[*wormhole.EmitterRegistry](this)
	if err != nil {
		return nil, err
	}
	next, id, err := registry.AllocateEmitterID()
	if err != nil {
		return nil, err
	}
	cid, err := x.createPayload(t, next)
	return tuple(damlvalue.ContractID(cid), damlvalue.Int(id)), err
}

func registerEmitter(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	registry, err := payloadOf[*wormhole.EmitterRegistry](this)
	if err != nil {
		return nil, err
	}
	next, emitter, err := registry.RegisterEmitter(party(arg, "owner"))
	if err != nil {
		return nil, err
	}
	registryCid, err := x.createPayload(t, next)
	if err != nil {
		return nil, err
	}
	emitterCid, err := x.createPayload(t.sibling(wormhole.EmitterTemplate), emitter)
	return tuple(damlvalue.ContractID(registryCid), damlvalue.ContractID(emitterCid)), err
}

func approveEmitter(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	registryTemplate := t.sibling(wormhole.EmitterRegistryTemplate)
	registryCid := contractIDOf(arg, "registryCid")
	fetched, err := x.fetch(registryTemplate, registryCid)
	if err != nil {
		return nil, err
	}
	registry, err := payloadOf[*wormhole.EmitterRegistry](fetched)
	if err != nil {
		return nil, err
	}
	request := &wormhole.EmitterRequest{Owner: party(this, "owner"), Operator: party(this, "operator")}
	_, emitter, err := request.ApproveEmitter(registry)
	if err != nil {
		return nil, err
	}
	allocated, err := x.exercise(registryTemplate, registryCid, "AllocateEmitterId", record(allocateEmitterType))
	if err != nil {
		return nil, err
	}
	emitterCid, err := x.createPayload(t.sibling(wormhole.EmitterTemplate), emitter)
	if err != nil {
		return nil, err
	}
	nextRegistry := allocated.(damlvalue.Record).Field("_1", 0)
	return tuple(nextRegistry, damlvalue.ContractID(emitterCid)), nil
}

func publishMessage(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	emitter, err := payloadOf[*wormhole.Emitter](this)
	if err != nil {
		return nil, err
	}
	next, sequence, err := emitter.PublishMessage(text(arg, "payload"))
	if err != nil {
		return nil, err
	}
	cid, err := x.createPayload(t, next)
	return tuple(damlvalue.ContractID(cid), damlvalue.Int(sequence)), err
}

// ---- the example integrator

func redeem(x *exec, t *template, this, arg damlvalue.Record) (damlvalue.Value, error) {
	stateTemplate, err := x.linked(wormhole.CoreStateTemplate)
	if err != nil {
		return nil, err
	}
	coreStateCid := contractIDOf(arg, "coreStateCid")
	manager := party(this, "manager")
	operator, err := x.exercise(stateTemplate, coreStateCid, "GetOperator", record(getOperatorType, damlvalue.Party(manager)))
	if err != nil {
		return nil, err
	}
	if operator != damlvalue.Party(party(this, "operator")) {
		return nil, failure("core state belongs to a different operator")
	}
	verified, err := x.exercise(stateTemplate, coreStateCid, "VerifyAndConsumeVAA", record(verifyAndConsumeType,
		arg.Field("encodedVAA", 3), arg.Field("pubKeys", 4), damlvalue.Party(manager), arg.Field("replayNodeCid", 2)))
	if err != nil {
		return nil, err
	}
	vaa := verified.(damlvalue.Record).Field("_1", 0).(damlvalue.Record)
	switch {
	case integer(vaa, "emitterChain") != integer(this, "peerChain"):
		return nil, failure("VAA is from a different chain")
	case text(vaa, "emitterAddress") != text(this, "peerAddress"):
		return nil, failure("VAA is from a different emitter")
	}
	receiptTemplate := t.pkg.templates[receiptType.Name.QualifiedName()]
	receipt, err := x.create(receiptTemplate, record(receiptTemplate.typ,
		damlvalue.Party(manager), damlvalue.Party(party(arg, "redeemer")), vaa.Field("sequence", 7), vaa.Field("payload", 9)))
	if err != nil {
		return nil, err
	}
	return tuple(damlvalue.ContractID(receipt), verified.(damlvalue.Record).Field("_2", 1)), nil
}

// ---- reading values that typing has already checked

func text(r damlvalue.Record, label string) string {
	t, _ := r.Field(label, -1).(damlvalue.Text)
	return string(t)
}

func party(r damlvalue.Record, label string) string {
	p, _ := r.Field(label, -1).(damlvalue.Party)
	return string(p)
}

func integer(r damlvalue.Record, label string) int64 {
	i, _ := r.Field(label, -1).(damlvalue.Int)
	return int64(i)
}

func contractIDOf(r damlvalue.Record, label string) string {
	c, _ := r.Field(label, -1).(damlvalue.ContractID)
	return string(c)
}

// parties are the parties in those fields, be they of type Party or [Party], sorted and without repeats.
func parties(r damlvalue.Record, labels ...string) []string {
	var out []string
	for _, label := range labels {
		switch v := r.Field(label, -1).(type) {
		case damlvalue.Party:
			out = append(out, string(v))
		case damlvalue.List:
			for _, e := range v {
				if p, ok := e.(damlvalue.Party); ok {
					out = append(out, string(p))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// pubKeys is the argument of that name.
func pubKeys(arg damlvalue.Record) []wormhole.PubKey {
	list, _ := arg.Field("pubKeys", -1).(damlvalue.List)
	keys := make([]wormhole.PubKey, 0, len(list))
	for _, e := range list {
		if pair, ok := e.(damlvalue.Record); ok {
			keys = append(keys, wormhole.PubKey{Index: integer(pair, "_1"), Key: text(pair, "_2")})
		}
	}
	return keys
}

// record makes a record of that type from its fields' values, in order.
func record(t damlvalue.RecordType, values ...damlvalue.Value) damlvalue.Record {
	out := damlvalue.Record{ID: t.Name, Fields: make([]damlvalue.Field, len(values))}
	for i, v := range values {
		out.Fields[i] = damlvalue.Field{Label: t.Fields[i].Label, Value: v}
	}
	return out
}

// vaaRecord is a parsed VAA as the model's own record.
func vaaRecord(v *wormhole.VAA) damlvalue.Record {
	signatures := make(damlvalue.List, len(v.Signatures))
	for i, s := range v.Signatures {
		signatures[i] = record(vaaSignatureType, damlvalue.Int(s.GuardianIndex),
			damlvalue.Text(hex.EncodeToString(s.R[:])), damlvalue.Text(hex.EncodeToString(s.S[:])), damlvalue.Int(s.V))
	}
	return record(vaaType, damlvalue.Int(1), damlvalue.Int(v.GuardianSetIndex), signatures,
		damlvalue.Int(v.Timestamp), damlvalue.Int(v.Nonce), damlvalue.Int(v.EmitterChain),
		damlvalue.Text(hex.EncodeToString(v.EmitterAddress[:])), damlvalue.Int(int64(v.Sequence)), damlvalue.Int(v.ConsistencyLevel),
		damlvalue.Text(hex.EncodeToString(v.Payload)), damlvalue.Text(v.Digest().String()))
}
