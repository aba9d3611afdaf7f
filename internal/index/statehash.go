package index

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// StateHash is a hash over every activation that the view holds, of whatever class, and their number. Views that hold the same
// contracts have the same, however they came about: from a stream, a snapshot or a store. Of a replay node its content is in it beside
// its blob, because answers are made from that. What only a stream tells (update ids, parents) and what the policy makes of a contract
// are not in it.
func (v *View) StateHash() (hash [sha256.Size]byte, activations int) {
	h := sha256.New()
	var number [8]byte
	write := func(n uint64) {
		binary.BigEndian.PutUint64(number[:], n)
		h.Write(number[:])
	}
	text := func(s string) {
		write(uint64(len(s)))
		h.Write([]byte(s))
	}
	for e := range v.Each { // in the order of contract id and synchronizer
		activations++
		text(e.ContractID)
		text(e.SynchronizerID)
		write(e.ReassignmentCounter)
		text(e.Target) // empty unless in flight
		blob := sha256.Sum256(e.Blob)
		h.Write(blob[:])
		if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
			for _, s := range []string{node.Consumer, node.Operator, node.Namespace.Value, node.Prefix.String()} {
				text(s)
			}
			if node.Namespace.Present {
				write(1)
			}
			write(uint64(node.SplitThreshold))
			write(uint64(node.Consumed.Len()))
			h.Write(node.Consumed.Packed())
		}
	}
	h.Sum(hash[:0])
	return hash, activations
}
