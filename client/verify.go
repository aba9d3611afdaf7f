package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// ErrRefused is wrapped by Verify's error: the blob is not what it should be.
var ErrRefused = errors.New("the contract is refused")

// Depth is how deep a check goes.
type Depth int

const (
	// DepthContent: the blob decodes; the contract id inside is the one claimed; template, package name, signatories and anchors are as
	// expected; the node's prefix covers the digest.
	DepthContent Depth = 1
	// DepthDigest: the node holds the digest, or does not.
	DepthDigest Depth = 2
	// DepthContractID: the contract id recomputes from the blob, so that everything above belongs to that id.
	DepthContractID Depth = 3
)

// The checks, as Check.Name has them.
const (
	CheckDecodes     = "decodes"
	CheckContractID  = "contract id"
	CheckTemplate    = "template"
	CheckPackageName = "package name"
	CheckPackageID   = "package id"
	CheckPayload     = "payload"
	CheckSignatories = "signatories"
	CheckOperator    = "operator"
	CheckGovernance  = "guardian governance"
	CheckOwner       = "owner"
	CheckConsumer    = "consumer"
	CheckNamespace   = "namespace"
	CheckCovers      = "prefix covers the digest"
	CheckAbsent      = "digest absent"
	CheckPresent     = "digest present"
	CheckRecomputes  = "contract id recomputes"
)

// Result is the outcome of a check.
type Result uint8

const (
	// Passed: it is so.
	Passed Result = iota + 1
	// Failed: it is not.
	Failed
	// NotChecked: it can't be told; Check.Detail says why.
	NotChecked
)

// String is "passed", "failed" or "not checked".
func (r Result) String() string {
	switch r {
	case Passed:
		return "passed"
	case Failed:
		return "failed"
	default:
		return "not checked"
	}
}

// Check is one check that was made.
type Check struct {
	Depth  Depth
	Name   string
	Result Result
	// Detail says what is wrong, or why it could not be checked; empty where it passed.
	Detail string
}

// Template names a template of the model by its qualified name, "Module:Entity".
type Template string

// The templates that are disclosed.
const (
	ReplayNode         Template = "Wormhole.Core.Replay:ReplayNode"
	CoreState          Template = "Wormhole.Core.State:CoreState"
	ReplayRootRegistry Template = "Wormhole.Core.Replay:ReplayRootRegistry"
	EmitterRegistry    Template = "Wormhole.Core.Emitters:EmitterRegistry"
	Emitter            Template = "Wormhole.Core.Emitters:Emitter"
)

// Held says whether a node should hold the digest.
type Held uint8

const (
	// HeldEither: it doesn't matter; depth 2 is reported by Node.Holds alone.
	HeldEither Held = iota
	// HeldAbsent: it must not.
	HeldAbsent
	// HeldPresent: it must.
	HeldPresent
)

// Expected is what a blob should be. A field that is not set is not checked. One that is set and does not apply, because the contract
// is of a template that has no such field, or its payload can't be read, is a check that fails: a CoreState holds no digest, and neither
// does it not hold one.
type Expected struct {
	// ContractID is the claimed contract id, in lowercase hex. Who takes a claimed id from somebody else has to see to it that it is not
	// empty.
	ContractID string
	Template   Template
	// PackageName is the name of the package, PackageIDs the ids that are accepted. No hash covers the id of the package: whoever
	// cares which version of the code a contract claims has to list them.
	PackageName string
	PackageIDs  []string
	// Operators are the bridge's operators that are accepted, which all templates name; GuardianGovernance is a CoreState's, Owner an
	// Emitter's.
	Operators          []string
	GuardianGovernance string
	Owner              string
	// Consumer is a node's.
	Consumer string
	// Namespace is a node's; WithoutNamespace asks for one of a package version that has none.
	Namespace        *string
	WithoutNamespace bool
	// Digest is what a node should cover: 64 hex digits.
	Digest string
	Held   Held
	// AcceptUnverifiable accepts a contract whose id can't be recomputed, because the shape of its package version is not known here.
	AcceptUnverifiable bool
}

// Report says what a blob is, what was checked of it at which depth, and what no check covers.
type Report struct {
	ContractID string
	// TemplateID is "package id:Module:Entity", as the JSON Ledger API names templates.
	TemplateID  string
	PackageName string
	// Signatories and Observers are sorted; observers are the stakeholders that are not signatories.
	Signatories, Observers []string
	CreatedAt              time.Time
	// Operator is who the payload says the bridge's operator is, Owner an Emitter's owner; empty where the payload can't be read.
	Operator, Owner string
	// Node is set for a ReplayNode, CoreState for a CoreState.
	Node      *Node
	CoreState *CoreStateFacts
	// Recomputed: depth 3 passed. The blob then agrees with itself; that a ledger made the contract it does not say (see Uncovered).
	Recomputed bool
	// Checks are in the order in which they were made.
	Checks []Check

	sealed *contractblob.Sealed
	// core is the decoded payload of a CoreState.
	core *wormhole.CoreState
}

// Node is a replay node.
type Node struct {
	Consumer, Operator string
	// Namespace is nil in package versions that have none.
	Namespace *string
	// Prefix is 0 to 63 lowercase hex digits.
	Prefix         string
	SplitThreshold int64
	Consumed       int
	// Holds: the node holds the digest that was asked about.
	Holds bool
}

// CoreStateFacts is what a CoreState says.
type CoreStateFacts struct {
	Operator, GuardianGovernance, GuardianObserver string
	GuardianSetIndex, MessageFee                   int64
	GuardianSets                                   map[int64]GuardianSet
}

// GuardianSet is the keys that sign VAAs under one index.
type GuardianSet struct {
	// Keys are addresses, 20 bytes each in lowercase hex, by guardian index.
	Keys []string
	// Expiration is when the set stops to verify; nil is never.
	Expiration *time.Time
}

// Uncovered is what depth 3 does not cover, in words: whoever changes these in a blob, or makes a whole blob up, is not found out by
// recomputing its contract id.
func (r *Report) Uncovered() []string { return uncovered }

var uncovered = []string{
	"genuineness: a contract id is a hash of the blob's own content, so anyone can invent a blob that names these parties as signatories and recomputes; only a ledger that takes its disclosure shows that it exists (a submission with an invented one fails, nothing worse)",
	"the package id in the template id: a participant accepts a blob with another one; only a list of accepted ids helps (the package name is covered)",
	"the contract id's discriminator, the 32 bytes before its suffix: with another one a participant finds no such contract, and nothing can be redeemed with it",
	"the synchronizer: the blob does not name it",
	"activeness: the blob of an archived contract recomputes for ever, so a digest that is absent may have been consumed since; one that is present was consumed, if the blob is genuine",
}

// Err is the first check that failed, or, without acceptUnverifiable, that the contract id could not be recomputed; nil otherwise.
// It wraps ErrRefused.
func (r *Report) Err(acceptUnverifiable bool) error {
	for _, c := range r.Checks {
		if c.Result == Failed || c.Result == NotChecked && !acceptUnverifiable {
			return fmt.Errorf("%w: depth %d, %s: %s: %s", ErrRefused, c.Depth, c.Name, c.Result, c.Detail)
		}
	}
	return nil
}

func (r *Report) add(depth Depth, name string, ok bool, detail func() string) {
	c := Check{Depth: depth, Name: name, Result: Passed}
	if !ok {
		c.Result, c.Detail = Failed, detail()
	}
	r.Checks = append(r.Checks, c)
}

// Verify checks a created event blob against what it should be, without asking anyone. The report says what was found and is never nil;
// the error, which wraps ErrRefused, says whether to use the blob.
func Verify(blob []byte, expected Expected) (*Report, error) {
	r := &Report{Checks: make([]Check, 0, 12)}
	digest, err := expected.digest()
	if err != nil {
		return r, fmt.Errorf("%w: what is expected: %w", ErrRefused, err)
	}
	r.sealed, err = contractblob.Open(blob)
	if err != nil {
		r.add(DepthContent, CheckDecodes, false, err.Error)
		return r, r.Err(false)
	}
	r.envelope(&expected)
	r.payload(digest)
	r.parties(&expected)
	r.node(&expected, digest)
	return r, r.Err(expected.AcceptUnverifiable)
}

// digest is the expected digest in lowercase, "" for none.
func (e *Expected) digest() (string, error) {
	if canonicalDigest(e.Digest) {
		return e.Digest, nil
	}
	if e.Digest == "" {
		if e.Held != HeldEither {
			return "", errors.New("whether a digest is held is asked without a digest")
		}
		return "", nil
	}
	d, err := wormhole.ParseDigest(e.Digest)
	if err != nil {
		return "", err
	}
	return d.String(), nil
}

// canonicalDigest reports whether a text is a digest as all others are brought to be: 64 lowercase hex digits.
func canonicalDigest(s string) bool {
	if len(s) != wormhole.DigestNibbles {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// qualifiedName is the template's name without the package id.
func (r *Report) qualifiedName() string { return r.TemplateID[strings.IndexByte(r.TemplateID, ':')+1:] }

// envelope checks what the blob says beside the payload.
func (r *Report) envelope(e *Expected) {
	c := r.sealed.Contract()
	r.ContractID, r.TemplateID, r.PackageName = c.ContractID.String(), c.TemplateID.String(), c.PackageName
	r.Signatories, r.Observers, r.CreatedAt = c.Signatories, c.Observers, c.CreatedTime()
	if e.ContractID != "" {
		r.add(DepthContent, CheckContractID, r.ContractID == e.ContractID, func() string {
			return fmt.Sprintf("the blob is of contract %s, claimed is %s", r.ContractID, e.ContractID)
		})
	}
	if e.Template != "" {
		name := r.qualifiedName()
		r.add(DepthContent, CheckTemplate, name == string(e.Template), func() string {
			return fmt.Sprintf("the blob is of a %s, expected is %s", name, e.Template)
		})
	}
	if e.PackageName != "" {
		r.add(DepthContent, CheckPackageName, c.PackageName == e.PackageName, func() string {
			return fmt.Sprintf("the blob is of package %s, expected is %s", c.PackageName, e.PackageName)
		})
	}
	if len(e.PackageIDs) > 0 {
		r.add(DepthContent, CheckPackageID, slices.Contains(e.PackageIDs, c.TemplateID.PackageID), func() string {
			return fmt.Sprintf("package id %s is none of the accepted ones", c.TemplateID.PackageID)
		})
	}
}

// payload reads the argument and recomputes the contract id, in one pass where the template's version is known.
func (r *Report) payload(digest string) {
	template := Template(r.qualifiedName())
	var reader nodeReader
	var visit func(contractblob.Leaf)
	if template == ReplayNode {
		visit = reader.visit
	}
	var verdict error
	known, fits := false, false
	for _, schema := range schemas[template] {
		reader = nodeReader{digest: digest, parties: r.Signatories}
		err := r.sealed.Recompute(schema, visit)
		if errors.Is(err, damlvalue.ErrShape) {
			continue
		}
		known, verdict = true, err
		fits = err == nil || errors.Is(err, contractblob.ErrMismatch)
		if fits && template == ReplayNode {
			r.Node = &reader.Node
			r.malformed(reader.fault())
		}
		break
	}
	if !known {
		verdict = fmt.Errorf("%w: the shape of this version of %s is not known", contractblob.ErrUnverifiable, template)
	}
	if !fits || template != ReplayNode {
		verdict = r.decode(template, digest, verdict)
	}
	switch {
	case r.Node != nil:
		r.Operator = r.Node.Operator
	case r.CoreState != nil:
		r.Operator = r.CoreState.Operator
	}
	switch {
	case verdict == nil:
		r.Recomputed = true
		r.Checks = append(r.Checks, Check{Depth: DepthContractID, Name: CheckRecomputes, Result: Passed})
	case errors.Is(verdict, contractblob.ErrUnverifiable), errors.Is(verdict, contractblob.ErrUnsupported):
		r.Checks = append(r.Checks, Check{Depth: DepthContractID, Name: CheckRecomputes, Result: NotChecked, Detail: verdict.Error()})
	case errors.Is(verdict, contractblob.ErrMismatch):
		r.add(DepthContractID, CheckRecomputes, false, verdict.Error)
	default:
		r.add(DepthContent, CheckDecodes, false, verdict.Error)
	}
}

// decode reads the argument by way of its values: of templates other than ReplayNode, of versions whose shape is not known, and of ids of
// older versions. It returns verdict, or what is known better.
func (r *Report) decode(template Template, digest string, verdict error) error {
	whole, err := r.sealed.Decode()
	if err != nil {
		return err
	}
	if whole.ContractID.Version() != contractblob.V12 {
		verdict = contractblob.Recompute(whole, nil)
	}
	payload, err := wormhole.Decode(whole.TemplateID, whole.Argument)
	if errors.Is(err, wormhole.ErrUnknownTemplate) {
		return verdict
	}
	if err != nil {
		r.add(DepthContent, CheckPayload, false, err.Error)
		return verdict
	}
	switch p := payload.(type) {
	case *wormhole.ReplayNode:
		r.Node = nodeOf(p, digest)
	case *wormhole.CoreState:
		r.core, r.CoreState = p, factsOf(p)
	case *wormhole.ReplayRootRegistry:
		r.Operator = p.Operator
	case *wormhole.EmitterRegistry:
		r.Operator = p.Operator
	case *wormhole.Emitter:
		r.Operator, r.Owner = p.Operator, p.Owner
	case *wormhole.Malformed:
		r.malformed(p.Fault)
		return verdict
	}
	r.signed(wormhole.RequiredSignatories(payload))
	return verdict
}

// malformed notes whether the payload is one that the model can produce.
func (r *Report) malformed(fault string) {
	r.add(DepthContent, CheckPayload, fault == "", func() string { return "the model makes no such " + r.TemplateID + ": " + fault })
	if fault == "" && r.Node != nil {
		r.signed([]string{r.Node.Consumer, r.Node.Operator})
	}
}

// signed checks that those whom the payload names have signed it: anyone can create a contract that names others.
func (r *Report) signed(required []string) {
	missing := ""
	for _, p := range required {
		if _, ok := slices.BinarySearch(r.Signatories, p); !ok {
			missing = p
		}
	}
	r.add(DepthContent, CheckSignatories, missing == "", func() string { return "party " + missing + " is named in the payload and has not signed" })
}

// parties checks the anchors.
func (r *Report) parties(e *Expected) {
	if len(e.Operators) > 0 {
		r.add(DepthContent, CheckOperator, r.Operator != "" && slices.Contains(e.Operators, r.Operator), func() string {
			if r.Operator == "" {
				return r.lacks("operator")
			}
			return "operator " + r.Operator + " is none of the accepted ones"
		})
	}
	if e.GuardianGovernance != "" {
		r.add(DepthContent, CheckGovernance, r.CoreState != nil && r.CoreState.GuardianGovernance == e.GuardianGovernance, func() string {
			if r.CoreState == nil {
				return r.lacks("guardian governance")
			}
			return fmt.Sprintf("guardian governance is %s, expected is %s", r.CoreState.GuardianGovernance, e.GuardianGovernance)
		})
	}
	if e.Owner != "" {
		r.add(DepthContent, CheckOwner, r.Owner == e.Owner, func() string {
			if r.Owner == "" {
				return r.lacks("owner")
			}
			return fmt.Sprintf("owner is %s, expected is %s", r.Owner, e.Owner)
		})
	}
}

// lacks says that an expectation does not apply.
func (r *Report) lacks(what string) string {
	return fmt.Sprintf("a %s, as far as its payload can be read, has no %s", r.qualifiedName(), what)
}

// node checks a node against the scope and the digest.
func (r *Report) node(e *Expected, digest string) {
	n := r.Node
	if e.Consumer != "" {
		r.add(DepthContent, CheckConsumer, n != nil && n.Consumer == e.Consumer, func() string {
			if n == nil {
				return r.lacks("consumer")
			}
			return fmt.Sprintf("consumer is %s, expected is %s", n.Consumer, e.Consumer)
		})
	}
	if e.Namespace != nil || e.WithoutNamespace {
		ok := n != nil && (n.Namespace == nil && e.WithoutNamespace || n.Namespace != nil && e.Namespace != nil && *n.Namespace == *e.Namespace)
		r.add(DepthContent, CheckNamespace, ok, func() string {
			if n == nil {
				return r.lacks("namespace, nor lacks one as a node does")
			}
			return "it is a node of another namespace than expected"
		})
	}
	if digest == "" {
		return
	}
	covers := n != nil && len(n.Prefix) < len(digest) && digest[:len(n.Prefix)] == n.Prefix
	r.add(DepthContent, CheckCovers, covers, func() string {
		if n == nil {
			return r.lacks("prefix")
		}
		return fmt.Sprintf("prefix %q does not cover digest %s", n.Prefix, digest)
	})
	switch e.Held {
	case HeldAbsent:
		// What a node that does not cover the digest lacks says nothing of the digest.
		r.add(DepthDigest, CheckAbsent, covers && !n.Holds, func() string {
			if !covers {
				return "it does not cover the digest"
			}
			return "the node holds the digest already"
		})
	case HeldPresent:
		r.add(DepthDigest, CheckPresent, covers && n.Holds, func() string { return "the node does not hold the digest" })
	}
}
