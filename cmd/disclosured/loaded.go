package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// checkLoaded says what of an entry that a database gave back is not what was written to it. Answers are made from columns, and what
// holds them together is the blob: its contract id recomputes from it, and the columns say what it says. So an edit of a node's
// consumed digests, of a CoreState's guardians, of a party or of a blob is found, whoever made it.
//
// What a blob does not say is not covered: on which synchronizer the contract is, whether it is in flight, that it is active at all (rows
// that were taken out or put back), and all of history. `audit --against-ledger` holds the first three to the ledger. Nor is the
// content of a contract whose package version has a shape that this program does not know: only its blob's own words on it.
//
// What is stored as refused is never served, and what it says of itself need not be true. But that it was refused must be: a node that is taken
// out of its partition like that makes a gap.
func checkLoaded(e *index.Entry) error {
	if e.BlobCheck == ledger.BlobMissing {
		if len(e.Blob) > 0 {
			return fmt.Errorf("contract %s is stored as one that came without a blob, and it has one", e.ContractID)
		}
		return nil
	}
	verified, err := verifyLoaded(e)
	switch {
	case e.BlobCheck == ledger.BlobVerified, e.BlobCheck == ledger.BlobUnverifiable:
		return err
	case verified:
		return fmt.Errorf("contract %s is stored as one whose blob was refused, and it verifies", e.ContractID)
	default:
		return nil
	}
}

// verifyLoaded compares an entry with its blob, and the blob with its id. Not verified and no error is one that can't be compared whole.
func verifyLoaded(e *index.Entry) (verified bool, err error) {
	sealed, err := contractblob.Open(e.Blob)
	if err != nil {
		if e.BlobCheck == ledger.BlobUnverifiable && errors.Is(err, contractblob.ErrUnsupported) {
			return false, nil // a form of blob that this program does not know
		}
		return false, err
	}
	if err := compareEnvelope(e, sealed.Contract()); err != nil {
		return false, err
	}
	schema, err := recomputeLoaded(e, sealed)
	switch {
	case err == nil:
	case errors.Is(err, contractblob.ErrUnverifiable), errors.Is(err, damlvalue.ErrShape):
		return false, nil // its content can't be read without the names that came with its event
	default:
		return false, err
	}
	if schema == nil {
		return true, nil // compared already
	}
	whole, err := sealed.Decode()
	if err != nil {
		return false, err
	}
	labelled, err := damlvalue.Label(whole.Argument, schema)
	if err != nil {
		return false, err
	}
	payload, err := wormhole.Decode(e.TemplateID, labelled.(damlvalue.Record))
	if err != nil {
		return false, err
	}
	if !samePayload(payload, e.Payload) {
		return false, fmt.Errorf("what is stored of the content of contract %s is not what its blob holds", e.ContractID)
	}
	return true, nil
}

// compareEnvelope compares what the blob says beside the argument.
func compareEnvelope(e *index.Entry, c *contractblob.Contract) error {
	var what string
	switch {
	case c.ContractID.String() != e.ContractID:
		return fmt.Errorf("the blob stored with contract %s is that of contract %s", e.ContractID, c.ContractID)
	case c.TemplateID != e.TemplateID:
		what = "template"
	case c.PackageName != e.PackageName:
		what = "package name"
	case !slices.Equal(c.Signatories, e.Signatories):
		what = "signatories"
	case !slices.Equal(c.Observers, e.Observers):
		what = "observers"
	case !c.CreatedTime().Equal(e.CreatedAt):
		what = "time of creation"
	default:
		return nil
	}
	return fmt.Errorf("what is stored of the %s of contract %s is not what its blob says", what, e.ContractID)
}

// recomputeLoaded recomputes the contract's id from its blob, and returns the type that the content is of: nil for a replay node whose
// content was compared on the way, since there are many.
func recomputeLoaded(e *index.Entry, sealed *contractblob.Sealed) (damlvalue.Type, error) {
	node, _ := e.Payload.(*wormhole.ReplayNode)
	unknown := fmt.Errorf("contract %s: %w: its package version's shape is not known", e.ContractID, contractblob.ErrUnverifiable)
	for _, schema := range loadedSchemas[e.TemplateID.QualifiedName()] {
		var compare nodeComparer
		var visit func(contractblob.Leaf)
		if node != nil {
			compare.node = node
			visit = compare.leaf
		}
		err := sealed.Recompute(schema, visit)
		switch {
		case errors.Is(err, damlvalue.ErrShape):
			continue
		case err != nil:
			return nil, err
		case e.BlobCheck == ledger.BlobUnverifiable:
			return nil, fmt.Errorf("contract %s is stored as one that can't be verified, and it can", e.ContractID)
		case node != nil && compare.same():
			return nil, nil
		}
		return schema, nil
	}
	return nil, unknown
}

// loadedSchemas are the known versions of the served templates.
var loadedSchemas = func() map[string][]damlvalue.Type {
	known := map[string][]damlvalue.Type{}
	for _, t := range wormhole.Templates() {
		known[t.QualifiedName()] = wormhole.Schemas(t.QualifiedName())
	}
	return known
}()

// nodeComparer compares a replay node with the leaves of a blob's argument, as they come. It says only that they are the same as the
// model writes them: what it finds no equality in is decoded and compared as values.
type nodeComparer struct {
	node *wormhole.ReplayNode
	// differs is set at the first difference. namespaced: there was a namespace. digests is how many digests there were.
	differs, namespaced bool
	digests             int
}

func (c *nodeComparer) leaf(l contractblob.Leaf) {
	switch l.Field {
	case "consumer":
		c.expect(string(l.Bytes) == c.node.Consumer)
	case "operator":
		c.expect(string(l.Bytes) == c.node.Operator)
	case "namespace":
		c.namespaced = true
		c.expect(string(l.Bytes) == c.node.Namespace.Value && len(l.Bytes) <= wormhole.MaxNamespace)
	case "prefix":
		c.expect(string(l.Bytes) == c.node.Prefix.String())
	case "splitThreshold":
		c.expect(l.Number == c.node.SplitThreshold && 1 <= l.Number && l.Number <= maxSplitThreshold)
	case "consumed": // in ascending order, as the packed digests are
		packed := c.node.Consumed.Packed()
		if at := c.digests * len(wormhole.Digest{}); c.differs || at >= len(packed) {
			c.differs = true
		} else {
			var digits [wormhole.DigestNibbles]byte
			hex.Encode(digits[:], packed[at:at+len(wormhole.Digest{})])
			c.expect(bytes.Equal(digits[c.node.Prefix.Len():], l.Bytes))
		}
		c.digests++
	}
}

// maxSplitThreshold is the model's own bound.
const maxSplitThreshold = 4096

func (c *nodeComparer) expect(equal bool) { c.differs = c.differs || !equal }

func (c *nodeComparer) same() bool {
	return !c.differs && c.namespaced == c.node.Namespace.Present && c.digests == c.node.Consumed.Len()
}

// samePayload compares content. A list without elements is one that is not there, where the model has no difference between the two.
func samePayload(a, b wormhole.Payload) bool {
	switch a := a.(type) {
	case *wormhole.CoreState:
		b, ok := b.(*wormhole.CoreState)
		if !ok || len(a.GuardianSets) != len(b.GuardianSets) || !slices.Equal(a.ConsumedGovernance, b.ConsumedGovernance) {
			return false
		}
		for i, set := range a.GuardianSets {
			other, ok := b.GuardianSets[i]
			if !ok || !slices.Equal(set.Keys, other.Keys) || (set.Expiration == nil) != (other.Expiration == nil) ||
				set.Expiration != nil && !set.Expiration.Equal(*other.Expiration) {
				return false
			}
		}
		return a.Operator == b.Operator && a.GuardianGovernance == b.GuardianGovernance && a.GuardianObserver == b.GuardianObserver &&
			a.ChainID == b.ChainID && a.GovernanceChainID == b.GovernanceChainID && a.GovernanceContract == b.GovernanceContract &&
			a.GuardianSetIndex == b.GuardianSetIndex && a.MessageFee == b.MessageFee
	case *wormhole.Malformed:
		b, ok := b.(*wormhole.Malformed) // never served; its fault is words, and stored as a text can be
		return ok && a.Template == b.Template && a.Operator == b.Operator && a.Consumer == b.Consumer
	case *wormhole.ReplayNode:
		b, ok := b.(*wormhole.ReplayNode)
		return ok && index.ScopeOf("", a) == index.ScopeOf("", b) && a.Prefix == b.Prefix && a.SplitThreshold == b.SplitThreshold &&
			bytes.Equal(a.Consumed.Packed(), b.Consumed.Packed())
	default: // plain values, and a registry's list, nil where its version has none
		return reflect.DeepEqual(a, b)
	}
}
