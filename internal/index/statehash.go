package index

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"time"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// StateHash is a hash over every activation that the view holds, of whatever class, and their number. Views that hold the same
// contracts have the same, however they came about: from a stream, a snapshot or a store. All that answers are made of is in it: who
// and where the contract is, its blob and what checking it showed, its parties, when it was created, and its decoded content, which
// a store keeps apart from the blob. What only a stream tells (update ids, parents), what the policy makes of a contract, and the
// words about a fault are not in it.
func (v *View) StateHash() (hash [sha256.Size]byte, activations int) {
	h := stateHasher{Hash: sha256.New()}
	for e := range v.Each { // in the order of contract id and synchronizer
		activations++
		h.entry(e)
	}
	h.Sum(hash[:0])
	return hash, activations
}

// StateHash is a hash over what of the entry is in a view's StateHash.
func (e *Entry) StateHash() (hash [sha256.Size]byte) {
	h := stateHasher{Hash: sha256.New()}
	h.entry(e)
	h.Sum(hash[:0])
	return hash
}

// stateHasher writes values so that no two different sequences of values have one encoding: numbers have eight bytes, texts and lists
// their length before them, and what may be absent says whether it is there.
type stateHasher struct {
	hash.Hash
	buf [8]byte
}

func (h *stateHasher) number(n uint64) {
	binary.BigEndian.PutUint64(h.buf[:], n)
	h.Write(h.buf[:])
}

func (h *stateHasher) numbers(list ...int64) {
	for _, n := range list {
		h.number(uint64(n))
	}
}

func (h *stateHasher) text(s string) {
	h.number(uint64(len(s)))
	h.Write([]byte(s))
}

func (h *stateHasher) texts(list ...string) {
	for _, s := range list {
		h.text(s)
	}
}

func (h *stateHasher) list(list []string) {
	h.number(uint64(len(list)))
	h.texts(list...)
}

func (h *stateHasher) present(is bool) {
	if is {
		h.number(1)
	} else {
		h.number(0)
	}
}

// time is a time to the microsecond, the ledger's own precision.
func (h *stateHasher) time(t time.Time) {
	h.present(!t.IsZero())
	if !t.IsZero() {
		h.number(uint64(t.UnixMicro()))
	}
}

func (h *stateHasher) entry(e *Entry) {
	h.texts(e.ContractID, e.SynchronizerID)
	h.number(e.ReassignmentCounter)
	h.present(e.InFlight)
	h.text(e.Target)
	h.texts(e.PackageName, e.TemplateID.PackageID, e.TemplateID.Module, e.TemplateID.Entity)
	h.list(e.Signatories)
	h.list(e.Observers)
	h.time(e.CreatedAt)
	h.number(uint64(e.BlobCheck))
	blob := sha256.Sum256(e.Blob)
	h.Write(blob[:])
	h.payload(e.Payload)
}

// payload writes the kind of a contract's content and all of the content.
func (h *stateHasher) payload(p wormhole.Payload) {
	switch p := p.(type) {
	case *wormhole.ReplayNode:
		h.texts("replay_node", p.Consumer, p.Operator)
		h.present(p.Namespace.Present)
		h.texts(p.Namespace.Value, p.Prefix.String())
		h.number(uint64(p.SplitThreshold))
		h.number(uint64(p.Consumed.Len()))
		h.Write(p.Consumed.Packed())
	case *wormhole.CoreState:
		h.texts("core_state", p.Operator, p.GuardianGovernance, p.GuardianObserver, p.GovernanceContract)
		h.numbers(p.ChainID, p.GovernanceChainID, p.GuardianSetIndex, p.MessageFee)
		h.number(uint64(len(p.GuardianSets)))
		for _, i := range slices.Sorted(maps.Keys(p.GuardianSets)) {
			set := p.GuardianSets[i]
			h.numbers(i)
			h.list(set.Keys)
			h.present(set.Expiration != nil)
			if set.Expiration != nil {
				h.time(*set.Expiration)
			}
		}
		h.list(p.ConsumedGovernance)
	case *wormhole.ReplayRootRegistry:
		h.texts("replay_root_registry", p.Operator)
		h.present(p.Granted != nil)
		h.list(p.Granted)
	case *wormhole.EmitterRegistry:
		h.texts("emitter_registry", p.Operator, p.GuardianObserver)
		h.numbers(p.NextID)
	case *wormhole.Emitter:
		h.texts("emitter", p.Operator, p.Owner, p.EmitterAddress)
		h.numbers(p.EmitterID, p.Sequence)
	case *wormhole.Malformed:
		h.texts("malformed", p.Template, p.Operator, p.Consumer)
	default:
		h.text("none")
	}
}
