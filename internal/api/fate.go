package api

import (
	"context"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// GetContractFate implements DisclosureService. Contracts that don't count (puppets, other operators', malformed ones) are
// unknown here: their active state is nobody's business of this service.
func (s *Service) GetContractFate(ctx context.Context, req *disclosurev1.GetContractFateRequest) (*disclosurev1.GetContractFateResponse, error) {
	var c checks
	id := c.contractID("contract_id", req.GetContractId(), true)
	var digest *wormhole.Digest
	if req.GetDigest() != "" {
		d := c.digest("digest", req.GetDigest())
		digest = &d
	}
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	would := func(v *index.View) ([]string, error) {
		if e := active(v, id); e == nil {
			return nil, nil
		} else if e.InFlight {
			return nil, index.ErrInFlight
		}
		return []string{id}, nil
	}
	return answerWith(ctx, s, opts, would, func(ctx context.Context, r *reading) (*disclosurev1.GetContractFateResponse, error) {
		answer := &disclosurev1.GetContractFateResponse{Answer: s.answer(r), ContractId: id, Fate: disclosurev1.Fate_FATE_UNKNOWN}
		r.usedHistory = true
		scope, prefix := (*index.Scope)(nil), wormhole.Prefix{}
		if e := active(r.view, id); e != nil {
			r.withoutBlobs = true
			answer.HistorySinceOffset = s.historySince(ctx, r.view)
			answer.Contract = r.contract(e)
			answer.Fate = disclosurev1.Fate_FATE_ACTIVE
			if e.InFlight {
				answer.Fate = disclosurev1.Fate_FATE_IN_FLIGHT
				answer.SourceSynchronizerId, answer.TargetSynchronizerId = e.SynchronizerID, e.Target
			}
			if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
				own := index.ScopeOf(e.PackageName, node)
				scope, prefix = &own, node.Prefix
			}
		} else {
			var (
				ended index.Ended
				known bool
			)
			err := s.needHistory(ctx, func(ctx context.Context) (err error) {
				if answer.HistorySinceOffset, err = s.index.History().HistorySince(ctx); err == nil {
					ended, known, err = s.index.History().EndOf(ctx, id, r.view.Position().Offset)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
			if !known {
				return answer, nil
			}
			answer.Fate = fateOf[ended.How]
			answer.AfterOffset, answer.Offset = ended.AfterOffset, ended.Offset
			answer.UpdateId, answer.RecordTime = ended.UpdateID, timestamp(ended.RecordTime)
			answer.SuccessorContractIds = ended.Successors
			scope, prefix = ended.Scope, ended.Prefix
		}
		if digest == nil || scope == nil {
			return answer, nil
		}
		if !prefix.Covers(*digest) {
			return nil, invalid(Violation{"digest", "must begin with the contract's prefix " + prefix.String()})
		}
		// What covers the digest now is where the chain of successors ends, however many consumes and splits it has.
		switch now, err := r.view.Covering(*scope, *digest); {
		case err == nil:
			answer.CoveringContractId = now.ContractID
		case fromIndex(err) == nil:
			return nil, err
		}
		// Where no one active node covers it, that is no reason to withhold the fate that was asked for: GetCoveringNode says why.
		return answer, nil
	})
}

// active is the entry of an authentic contract that is active or in flight, nil where there is none.
func active(v *index.View, contractID string) *index.Entry {
	entries := v.Contract(contractID)
	if len(entries) == 0 || entries[0].Class != index.Authentic {
		return nil
	}
	return entries[0]
}

var fateOf = map[index.How]disclosurev1.Fate{
	index.Superseded:   disclosurev1.Fate_FATE_SUPERSEDED,
	index.Split:        disclosurev1.Fate_FATE_SPLIT,
	index.ArchivedOnly: disclosurev1.Fate_FATE_ARCHIVED,
	index.Purged:       disclosurev1.Fate_FATE_PURGED,
	index.Gone:         disclosurev1.Fate_FATE_GONE,
}
