package wormhole

import (
	"maps"
	"slices"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Encode is the record of a contract, with labels and type names as a verbose read gives them (package ids are empty, but for
// the standard library's Set) and, as in every read, without trailing None fields. Decode gives the contract back.
//
// The version is the oldest that holds the content: a namespace that is present and a guardianObserver that is not empty have
// their fields. A ReplayRootRegistry whose Granted is nil has no such field. A *Malformed has no record; it gives the zero
// Record.
func Encode(p Payload) damlvalue.Record {
	switch p := p.(type) {
	case *ReplayNode:
		return encodeReplayNode(p)
	case *CoreState:
		return encodeCoreState(p)
	case *ReplayRootRegistry:
		fields := []damlvalue.Field{{Label: "operator", Value: damlvalue.Party(p.Operator)}}
		if p.Granted != nil {
			keys := make([]damlvalue.Value, 0, len(p.Granted))
			for _, consumer := range slices.Compact(slices.Sorted(slices.Values(p.Granted))) {
				keys = append(keys, damlvalue.Party(consumer))
			}
			fields = append(fields, damlvalue.Field{Label: "granted", Value: set(keys)})
		}
		return damlvalue.Record{ID: ReplayRootRegistryTemplate, Fields: fields}
	case *EmitterRegistry:
		if p.GuardianObserver == "" {
			return encode(emitterRegistryPlain, damlvalue.Party(p.Operator), damlvalue.Int(p.NextID))
		}
		return encode(emitterRegistryObserved, damlvalue.Party(p.Operator), damlvalue.Party(p.GuardianObserver), damlvalue.Int(p.NextID))
	case *Emitter:
		return encode(emitterType, damlvalue.Party(p.Operator), damlvalue.Party(p.Owner), damlvalue.Int(p.EmitterID),
			damlvalue.Text(p.EmitterAddress), damlvalue.Int(p.Sequence))
	default:
		return damlvalue.Record{}
	}
}

// Record is the request's payload, as Encode gives it for contracts.
func (q *ReplayRootRequest) Record() damlvalue.Record {
	return encode(rootRequestType, damlvalue.Party(q.Consumer), damlvalue.Party(q.Operator), damlvalue.Int(q.SplitThreshold))
}

// Record is the request's payload, as Encode gives it for contracts.
func (q *EmitterRequest) Record() damlvalue.Record {
	return encode(emitterRequestType, damlvalue.Party(q.Owner), damlvalue.Party(q.Operator))
}

func encodeReplayNode(n *ReplayNode) damlvalue.Record {
	suffixes := make([]damlvalue.Value, 0, n.Consumed.Len())
	for digest := range n.Consumed.All() {
		suffixes = append(suffixes, damlvalue.Text(digest.String()[n.Prefix.Len():]))
	}
	if n.Namespace.Present {
		return encode(replayNodeNamespaced, damlvalue.Party(n.Consumer), damlvalue.Party(n.Operator), damlvalue.Text(n.Namespace.Value),
			damlvalue.Text(n.Prefix.String()), damlvalue.Int(n.SplitThreshold), set(suffixes))
	}
	return encode(replayNodePlain, damlvalue.Party(n.Consumer), damlvalue.Party(n.Operator),
		damlvalue.Text(n.Prefix.String()), damlvalue.Int(n.SplitThreshold), set(suffixes))
}

func encodeCoreState(s *CoreState) damlvalue.Record {
	sets := make(damlvalue.GenMap, 0, len(s.GuardianSets))
	for _, index := range slices.Sorted(maps.Keys(s.GuardianSets)) {
		sets = append(sets, damlvalue.GenMapEntry{Key: damlvalue.Int(index), Value: encodeGuardianSet(s.GuardianSets[index])})
	}
	consumed := make([]damlvalue.Value, 0, len(s.ConsumedGovernance))
	for _, digest := range slices.Compact(slices.Sorted(slices.Values(s.ConsumedGovernance))) {
		consumed = append(consumed, damlvalue.Text(digest))
	}
	values := []damlvalue.Value{
		damlvalue.Party(s.Operator), damlvalue.Party(s.GuardianGovernance),
		damlvalue.Int(s.ChainID), damlvalue.Int(s.GovernanceChainID), damlvalue.Text(s.GovernanceContract),
		damlvalue.Int(s.GuardianSetIndex), sets, damlvalue.Int(s.MessageFee), set(consumed),
	}
	if s.GuardianObserver == "" {
		return encode(coreStatePlain, values...)
	}
	return encode(coreStateObserved, slices.Insert(values, 2, damlvalue.Value(damlvalue.Party(s.GuardianObserver)))...)
}

func encodeGuardianSet(g GuardianSet) damlvalue.Record {
	keys := make(damlvalue.List, len(g.Keys))
	for i, k := range g.Keys {
		keys[i] = damlvalue.Text(k)
	}
	if g.Expiration == nil {
		return encode(guardianSetType, keys)
	}
	return encode(guardianSetType, keys, damlvalue.Optional{Value: damlvalue.Timestamp(g.Expiration.UnixMicro())})
}

// encode names the values by the type's first fields.
func encode(t damlvalue.RecordType, values ...damlvalue.Value) damlvalue.Record {
	record := damlvalue.Record{ID: t.Name, Fields: make([]damlvalue.Field, len(values))}
	for i, v := range values {
		record.Fields[i] = damlvalue.Field{Label: t.Fields[i].Label, Value: v}
	}
	return record
}

// set is a DA.Set.Types:Set of keys in the ledger's order.
func set(keys []damlvalue.Value) damlvalue.Record {
	entries := make(damlvalue.GenMap, len(keys))
	for i, k := range keys {
		entries[i] = damlvalue.GenMapEntry{Key: k, Value: damlvalue.Unit{}}
	}
	return encode(damlvalue.SetType(nil), entries)
}
