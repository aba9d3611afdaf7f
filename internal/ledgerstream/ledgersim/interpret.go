package ledgersim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Interpretation: a submission's commands become a tree of nodes, without any effect on the ledger.

// command is one command of a submission, still as the client sent it.
type command struct {
	create   bool
	exercise bool // both: create and exercise
	template damlvalue.TypeName
	// argument is the created contract's, choiceArg the choice's.
	argument   damlvalue.Record
	contractID string
	choice     string
	choiceArg  damlvalue.Value
}

// submission is what a client asks for.
type submission struct {
	userID, commandID, workflowID, submissionID string
	actAs, readAs                               []string
	commands                                    []command
	disclosed                                   []disclosure
	synchronizer                                string
	packagePreference                           []string
	submittedAt                                 time.Time
}

// disclosure is a disclosed contract whose blob was decoded.
type disclosure struct {
	contract     *contractblob.Contract
	synchronizer string
	// unauthentic: its authentication data are of a version that no participant knows, which shows when it is used.
	unauthentic bool
}

// nodeKind is what a node of a transaction does.
type nodeKind uint8

const (
	createNode nodeKind = iota
	exerciseNode
	fetchNode
)

// node is one node of a transaction. Ids count in the order of execution, fetches included.
type node struct {
	id       int32
	kind     nodeKind
	contract *contract
	// template is the version by which the contract was used.
	template damlvalue.TypeName
	pkgName  string

	choice      string
	arg, result damlvalue.Value
	acting      []string
	consuming   bool
	// last is the id of the last node below this one.
	last int32

	// witnesses are the parties that see the node: its informees and those of the nodes above it.
	witnesses []string
	// transient: created and archived in this transaction.
	transient bool
}

// input is a contract that the transaction used and did not create.
type input struct {
	contract *contract
	// disclosed is set for an input taken from a disclosure, and synchronizer is the one that the disclosure named, if any.
	disclosed    bool
	synchronizer string
	consumed     bool
}

// exec is one interpretation.
type exec struct {
	ledger *state
	sub    *submission
	// now is the ledger time.
	now time.Time

	created  map[string]*contract
	archived map[string]bool
	inputs   []*input
	nodes    []*node

	// authorizers and witnesses are those of the scope that is being executed; the package is that of its choice.
	authorizers, witnesses []string
	pkg                    *pkg
	trace                  []string
	confirming             []string
}

func newExec(l *state, sub *submission, now time.Time) *exec {
	return &exec{ledger: l, sub: sub, now: now, created: map[string]*contract{}, archived: map[string]bool{}, authorizers: sub.actAs}
}

// run executes all commands in order.
func (x *exec) run() *rejection {
	for i := range x.sub.commands {
		if err := x.command(&x.sub.commands[i]); err != nil {
			return asRejection(err, strings.Join(x.trace, ""))
		}
	}
	for _, n := range x.nodes {
		n.transient = x.created[n.contract.id] != nil && x.archived[n.contract.id]
	}
	return nil
}

// typed is a command after preprocessing: templates and choices found, arguments of the right types.
type typed struct {
	template  *template
	argument  damlvalue.Record
	choiceArg damlvalue.Record
}

func (x *exec) preprocess(c *command) (typed, error) {
	t, err := x.ledger.resolveTemplate(c.template, x.sub)
	if err != nil {
		return typed{}, err
	}
	out := typed{template: t}
	if c.create {
		arg, err := conform(c.argument, t.typ)
		if err != nil {
			return typed{}, err
		}
		out.argument = arg.(damlvalue.Record)
	}
	if c.exercise {
		ch := t.choices[c.choice]
		if ch == nil {
			return typed{}, fmt.Errorf("unknown choice %s in template %s", c.choice, t.name)
		}
		arg, err := conform(c.choiceArg, ch.arg)
		if err != nil {
			return typed{}, err
		}
		out.choiceArg = arg.(damlvalue.Record)
	}
	return out, nil
}

func (x *exec) command(c *command) error {
	in, err := x.preprocess(c)
	if err != nil {
		return err
	}
	x.pkg = in.template.pkg
	cid := c.contractID
	if c.create {
		if cid, err = x.create(in.template, in.argument); err != nil {
			return err
		}
	}
	if c.exercise {
		if _, err := x.exercise(in.template, cid, c.choice, in.choiceArg); err != nil {
			x.trace = append(x.trace, fmt.Sprintf("    in exercise command %s:%s on contract %.10s.\n", shortType(in.template.name), c.choice, cid))
			return err
		}
	}
	return nil
}

// createPayload creates a contract of the model.
func (x *exec) createPayload(t *template, p wormhole.Payload) (string, error) {
	arg, err := conform(wormhole.Encode(p), t.typ)
	if err != nil {
		return "", err
	}
	return x.create(t, arg.(damlvalue.Record))
}

func (x *exec) create(t *template, arg damlvalue.Record) (string, error) {
	arg = trimNones(arg)
	if t.precondition != nil && !t.precondition(arg) {
		return "", reject(invalidArgument, "TEMPLATE_PRECONDITION_VIOLATED",
			"Interpretation error: Error: Update failed due to precondition violation when creating %s@%.8s with %s",
			t.name.QualifiedName(), t.pkg.ID, show(arg)).ofSubmission()
	}
	n := x.push(&node{kind: createNode, template: t.name, pkgName: t.pkg.Name})
	signatories, observers := t.stakeholders(arg)
	if err := x.authorize(n, signatories); err != nil {
		return "", err
	}
	c, err := x.ledger.newContract(t, arg, signatories, observers, x.now)
	if err != nil {
		return "", err
	}
	n.contract = c
	n.last = n.id
	n.witnesses = union(x.witnesses, signatories, observers)
	x.created[c.id] = c
	x.confirming = union(x.confirming, signatories)
	return c.id, nil
}

func (x *exec) fetch(t *template, cid string) (damlvalue.Record, error) {
	c, this, err := x.use(t, cid)
	if err != nil {
		return damlvalue.Record{}, err
	}
	n := x.push(&node{kind: fetchNode, contract: c, template: t.name, pkgName: t.pkg.Name})
	n.last = n.id
	n.witnesses = x.witnesses
	if !slices.ContainsFunc(x.authorizers, c.stakeholder) {
		return damlvalue.Record{}, reject(invalidArgument, "DAML_AUTHORIZATION_ERROR",
			"Interpretation error: Error: node NodeId(%d) requires one of the stakeholders %s of the fetched contract to be an authorizer, but authorizers were %s",
			n.id, strings.Join(union(c.signatories, c.observers), ","), strings.Join(x.authorizers, ",")).ofSubmission()
	}
	x.confirming = union(x.confirming, c.signatories)
	return this, nil
}

func (x *exec) exercise(t *template, cid, name string, arg damlvalue.Record) (damlvalue.Value, error) {
	c, this, err := x.use(t, cid)
	if err != nil {
		return nil, err
	}
	ch := t.choices[name]
	controllers := ch.controllers(t, this, arg)
	named := named(arg, t.pkg.ID)
	n := x.push(&node{
		kind: exerciseNode, contract: c, template: t.name, pkgName: t.pkg.Name,
		choice: name, arg: named, acting: controllers, consuming: !ch.nonConsuming,
	})
	if err := x.authorize(n, controllers); err != nil {
		return nil, err
	}
	informees := union(c.signatories, controllers)
	if n.consuming {
		informees = union(informees, c.observers)
		x.archived[cid] = true
		for _, in := range x.inputs {
			in.consumed = in.consumed || in.contract.id == cid
		}
	}
	x.confirming = union(x.confirming, c.signatories, controllers)
	n.witnesses = union(x.witnesses, informees)

	// The choice runs with the authority of the contract's signatories and the controllers.
	authorizers, witnesses, pkg := x.authorizers, x.witnesses, x.pkg
	x.authorizers, x.witnesses, x.pkg = union(c.signatories, controllers), n.witnesses, t.pkg
	result, err := ch.body(x, t, this, arg)
	x.authorizers, x.witnesses, x.pkg = authorizers, witnesses, pkg
	if err != nil {
		x.trace = append(x.trace, fmt.Sprintf("    in choice %s:%s on contract %.10s (#%d)\n", shortType(t.name), name, cid, n.id))
		return nil, err
	}
	n.result = rename(result, func(id damlvalue.TypeName) damlvalue.TypeName {
		if id.PackageID == "" && id.Module != "" {
			id.PackageID = t.pkg.ID
		}
		return id
	}, true)
	n.last = int32(len(x.nodes) - 1)
	return n.result, nil
}

func (x *exec) push(n *node) *node {
	n.id = int32(len(x.nodes))
	x.nodes = append(x.nodes, n)
	return n
}

func (x *exec) authorize(n *node, required []string) error {
	for _, p := range required {
		if !slices.Contains(x.authorizers, p) {
			return reject(invalidArgument, "DAML_AUTHORIZATION_ERROR",
				"Interpretation error: Error: node NodeId(%d) (%s) requires authorizers %s, but only %s were given",
				n.id, n.template, strings.Join(required, ","), strings.Join(x.authorizers, ",")).ofSubmission()
		}
	}
	return nil
}

// use finds a contract by id for a use as template t: one made in this transaction, a disclosed one, or an active one of the
// participant's own that a submitting or reading party may see. It gives the contract and its argument as t's version has it.
func (x *exec) use(t *template, cid string) (*contract, damlvalue.Record, error) {
	c, err := x.find(t, cid)
	if err != nil {
		return nil, damlvalue.Record{}, err
	}
	this, err := x.ledger.translate(c, t)
	if err != nil {
		return nil, damlvalue.Record{}, err
	}
	return c, this, nil
}

func (x *exec) find(t *template, cid string) (*contract, error) {
	if x.archived[cid] {
		return nil, reject(notFound, "CONTRACT_NOT_ACTIVE", "Interpretation error: Error: Update failed due to fetch of an inactive contract %s (%s). The contract had been consumed in sub-transaction #0.", cid, t.name.QualifiedName()).
			about("CONTRACT_ID", cid).ofSubmission()
	}
	if c := x.created[cid]; c != nil {
		return c, wronglyTyped(c, t)
	}
	for _, in := range x.inputs {
		if in.contract.id == cid {
			return in.contract, wronglyTyped(in.contract, t)
		}
	}
	for i := range x.sub.disclosed {
		d := &x.sub.disclosed[i]
		if d.contract.ContractID.String() != cid {
			continue
		}
		c := contractOfBlob(d.contract)
		if err := wronglyTyped(c, t); err != nil {
			return nil, err
		}
		if err := x.ledger.authenticate(c, d, t); err != nil {
			return nil, err
		}
		// An authentic blob of a contract that this ledger has is that contract, but for the package id, which may be any.
		if f := x.ledger.contracts[cid]; f != nil {
			c = f.contract
		}
		x.inputs = append(x.inputs, &input{contract: c, disclosed: true, synchronizer: d.synchronizer})
		return c, nil
	}
	c := x.ledger.visible(cid, append(slices.Clone(x.sub.actAs), x.sub.readAs...))
	if c == nil {
		return nil, contractNotFound(cid)
	}
	if err := wronglyTyped(c, t); err != nil {
		return nil, err
	}
	x.inputs = append(x.inputs, &input{contract: c})
	return c, nil
}

// wronglyTyped compares templates by their names in their modules: versions are translated, other templates are an error. (A
// nil *rejection must not become a non-nil error, hence the result type.)
func wronglyTyped(c *contract, t *template) error {
	if c.template.QualifiedName() == t.name.QualifiedName() {
		return nil
	}
	return reject(invalidState, "WRONGLY_TYPED_CONTRACT",
		"Interpretation error: Error: Update failed due to wrongly typed contract id %s\nExpected contract of type %s@%.8s but got %s@%.8s",
		c.id, t.name.QualifiedName(), t.pkg.ID, c.template.QualifiedName(), c.template.PackageID).
		about("CONTRACT_ID", c.id).about("TEMPLATE_ID", t.name.String()).about("TEMPLATE_ID", c.template.String()).ofSubmission()
}

// linked is a template of the package that the running choice's package was compiled against.
func (x *exec) linked(name damlvalue.TypeName) (*template, error) {
	core := x.ledger.packages.preferred(wormholeCore, x.sub.packagePreference)
	if core == nil {
		return nil, fmt.Errorf("unknown module %s while looking for template %s", name.Module, name)
	}
	return core.templates[name.QualifiedName()], nil
}

// sibling is a template of the same package.
func (t *template) sibling(name damlvalue.TypeName) *template {
	return t.pkg.templates[name.QualifiedName()]
}

// stakeholders are the signatories and the observers that are none, each sorted.
func (t *template) stakeholders(arg damlvalue.Record) (signatories, observers []string) {
	signatories = t.signatories(arg)
	for _, p := range t.observers(arg) {
		if !slices.Contains(signatories, p) {
			observers = append(observers, p)
		}
	}
	return signatories, observers
}

func shortType(n damlvalue.TypeName) string {
	return fmt.Sprintf("%.8s:%s", n.PackageID, n.QualifiedName())
}

// union joins sorted lists of parties.
func union(lists ...[]string) []string {
	out := slices.Concat(lists...)
	slices.Sort(out)
	return slices.Compact(out)
}

// payloadOf decodes a contract of the model as the type that the caller knows it to be.
func payloadOf[P wormhole.Payload](this damlvalue.Record) (P, error) {
	p, ok := decodePayload(this).(P)
	if !ok {
		return p, failure("payload of " + this.ID.QualifiedName() + " is not one that the model makes")
	}
	return p, nil
}

// decodePayload is the payload, nil for a template that package wormhole does not decode.
func decodePayload(this damlvalue.Record) wormhole.Payload {
	p, err := wormhole.Decode(this.ID, this)
	if err != nil {
		return nil
	}
	return p
}
