package client

import (
	"fmt"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// schemas are the known versions of the model's templates: those that are disclosed, and the proposals.
var schemas = func() map[Template][]damlvalue.Type {
	known := map[Template][]damlvalue.Type{}
	for _, t := range append(wormhole.Templates(), wormhole.ReplayRootRequestTemplate, wormhole.EmitterRequestTemplate) {
		known[Template(t.QualifiedName())] = wormhole.Schemas(t.QualifiedName())
	}
	return known
}()

// nodeReader reads a ReplayNode from the leaves of its argument. It keeps nothing of the consumed digests but their number and whether
// the one asked for is among them: verifying a node costs little more than hashing it.
type nodeReader struct {
	Node
	// digest is what is looked for, 64 hex digits, or "".
	digest string
	// parties are the contract's signatories: the strings that consumer and operator are, if they have signed.
	parties []string
	// suffix is the digest's part behind the prefix, once the prefix is known.
	suffix string
	// odd is a suffix of another length than the prefix leaves.
	odd bool
}

func (n *nodeReader) visit(l contractblob.Leaf) {
	switch l.Field {
	case "consumed":
		n.Consumed++
		n.odd = n.odd || len(l.Bytes) != wormhole.DigestNibbles-len(n.Prefix)
		if n.suffix != "" && len(l.Bytes) == len(n.suffix) && l.Bytes[0] == n.suffix[0] && string(l.Bytes) == n.suffix {
			n.Holds = true
		}
	case "prefix":
		n.Prefix = string(l.Bytes)
		if n.digest != "" && len(n.Prefix) < len(n.digest) && n.digest[:len(n.Prefix)] == n.Prefix {
			n.suffix = n.digest[len(n.Prefix):]
		}
	case "splitThreshold":
		n.SplitThreshold = l.Number
	case "consumer":
		n.Consumer = n.party(l.Bytes)
	case "operator":
		n.Operator = n.party(l.Bytes)
	case "namespace":
		namespace := string(l.Bytes)
		n.Namespace = &namespace
	}
}

// party is the text of a party, without making another of it where it has signed.
func (n *nodeReader) party(b []byte) string {
	for _, p := range n.parties {
		if p == string(b) {
			return p
		}
	}
	return string(b)
}

// fault says why the model makes no such node, "" where it may.
func (n *nodeReader) fault() string {
	if prefix, err := wormhole.ParsePrefix(n.Prefix); err != nil || prefix.String() != n.Prefix {
		return "its prefix is not 0 to 63 lowercase hex digits"
	}
	if n.SplitThreshold < 1 || n.SplitThreshold > maxSplitThreshold {
		return fmt.Sprintf("its split threshold is %d, not in 1..%d", n.SplitThreshold, maxSplitThreshold)
	}
	if n.odd {
		return "a digest's suffix has another length than its prefix leaves"
	}
	return ""
}

// maxSplitThreshold is the model's own bound.
const maxSplitThreshold = 4096

func nodeOf(p *wormhole.ReplayNode, digest string) *Node {
	n := &Node{Consumer: p.Consumer, Operator: p.Operator, Prefix: p.Prefix.String(), SplitThreshold: p.SplitThreshold, Consumed: p.Consumed.Len()}
	if p.Namespace.Present {
		n.Namespace = &p.Namespace.Value
	}
	if d, err := wormhole.ParseDigest(digest); err == nil {
		n.Holds = p.Consumed.Contains(d)
	}
	return n
}

func factsOf(p *wormhole.CoreState) *CoreStateFacts {
	f := &CoreStateFacts{
		Operator: p.Operator, GuardianGovernance: p.GuardianGovernance, GuardianObserver: p.GuardianObserver,
		GuardianSetIndex: p.GuardianSetIndex, MessageFee: p.MessageFee, GuardianSets: make(map[int64]GuardianSet, len(p.GuardianSets)),
	}
	for i, set := range p.GuardianSets {
		f.GuardianSets[i] = GuardianSet{Keys: set.Keys, Expiration: set.Expiration}
	}
	return f
}
