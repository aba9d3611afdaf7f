package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/index"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// PrepareRedeem implements DisclosureService.
func (s *Service) PrepareRedeem(ctx context.Context, req *disclosurev1.PrepareRedeemRequest) (*disclosurev1.PrepareRedeemResponse, error) {
	var c checks
	q := c.prepare("", req)
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	return answerWith(ctx, s, opts, s.prepareCandidates(q), func(ctx context.Context, r *reading) (*disclosurev1.PrepareRedeemResponse, error) {
		answer, err := s.prepare(ctx, r, q)
		if err != nil {
			return nil, err
		}
		answer.Answer = s.answer(r)
		return answer, nil
	})
}

// BatchPrepareRedeem implements DisclosureService. What is wrong with the batch itself fails the call; what is wrong with an item
// is that item's error.
func (s *Service) BatchPrepareRedeem(ctx context.Context, req *disclosurev1.BatchPrepareRedeemRequest) (*disclosurev1.BatchPrepareRedeemResponse, error) {
	var c checks
	items := req.GetItems()
	if len(items) < 1 || len(items) > MaxBatchItems {
		c.add("items", "must be 1 to %d, got %d", MaxBatchItems, len(items))
		items = nil
	}
	queries := make([]prepareQuery, len(items))
	faults := make([]*Error, len(items))
	for i, item := range items {
		field := fmt.Sprintf("items[%d].", i)
		if item.GetRead() != nil {
			c.add(field+"read", "must not be set: the read options of the batch hold for all its items")
		}
		var own checks
		queries[i] = own.prepare(field, item)
		if err := own.err(); err != nil {
			faults[i] = asError(err)
		}
	}
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	usable := make([]prepareQuery, 0, len(queries))
	for i, q := range queries {
		if faults[i] == nil {
			usable = append(usable, q)
		}
	}
	would := func(v *index.View) ([]string, error) {
		var ids []string
		for i, q := range queries {
			if faults[i] != nil {
				continue
			}
			found, err := s.prepareCandidates(q)(v)
			if errors.Is(err, index.ErrInFlight) {
				return nil, err
			}
			ids = append(ids, found...)
		}
		return ids, nil
	}
	return answerWith(ctx, s, opts, would, func(ctx context.Context, r *reading) (*disclosurev1.BatchPrepareRedeemResponse, error) {
		// A contract's blob is in disclosed_contracts already; twice in each of 1,000 items is too much.
		// And a forecast per item would ask history 1,000 times.
		r.withoutBlobs, r.withoutForecast = true, true
		r.consumes = s.consumptions(ctx, r, usable)
		answer := &disclosurev1.BatchPrepareRedeemResponse{Answer: s.answer(r), Items: make([]*disclosurev1.BatchPrepareRedeemItem, len(queries))}
		size := 0
		disclosed := map[string]bool{}
		for i, q := range queries {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			item, fault := (*disclosurev1.PrepareRedeemResponse)(nil), faults[i]
			if fault == nil {
				var err error
				if item, err = s.prepare(ctx, r, q); err != nil {
					fault = asError(err)
				}
			}
			switch {
			case fault == nil:
				answer.Items[i] = &disclosurev1.BatchPrepareRedeemItem{Result: &disclosurev1.BatchPrepareRedeemItem_Response{Response: item}}
			case fault.Reason == Internal || fault.Reason == Cancelled || fault.Reason == DeadlineExceeded:
				return nil, fault // of the call, not of the item
			default:
				answer.Items[i] = &disclosurev1.BatchPrepareRedeemItem{Result: &disclosurev1.BatchPrepareRedeemItem_Error{Error: fault.item()}}
			}
			if req.GetDisclosuresOnce() {
				for _, d := range item.GetDisclosedContracts() {
					if !disclosed[d.GetContractId()] {
						disclosed[d.GetContractId()] = true
						answer.DisclosedContracts = append(answer.DisclosedContracts, d)
						size += proto.Size(d)
					}
				}
				if item != nil {
					item.DisclosedContracts = nil
				}
			}
			if size += proto.Size(answer.Items[i]); size > s.cfg.MaxAnswerBytes {
				return nil, failure(AnswerTooLarge, fmt.Sprintf("the answers to the first %d of %d items exceed %d bytes", i+1, len(queries), s.cfg.MaxAnswerBytes)).
					with("limit_bytes", strconv.Itoa(s.cfg.MaxAnswerBytes))
			}
		}
		return answer, nil
	})
}

// item is the error as an item of a batch. The position is the batch's.
func (e *Error) item() *disclosurev1.ItemError {
	return &disclosurev1.ItemError{
		Code:     int32(rowOf[e.Reason].Code),
		Message:  clip(e.Message, maxMessageBytes),
		Reason:   string(e.Reason),
		Metadata: e.metadata(),
	}
}

// coreState is the CoreState that a redeem in the scope exercises: of the scope's operator, which VerifyAndConsumeVAA binds the
// node to, and of its package, whose choice it is.
func (q *prepareQuery) coreState(v *index.View, scope index.Scope) (*index.Entry, error) {
	return v.CoreState(index.CoreStateSelector{PackageName: scope.PackageName, Operator: scope.Operator, ContractID: q.coreStateID})
}

// prepareCandidates are the contracts that an answer would disclose. To a VAA that the ledger refuses no successor of theirs makes a
// difference, so that nobody waits for one.
func (s *Service) prepareCandidates(q prepareQuery) candidates {
	return func(v *index.View) ([]string, error) {
		scope, err := v.Scope(q.selector)
		if err != nil {
			return nil, err
		}
		core, coreErr := q.coreState(v, scope)
		at := reading{view: v, now: s.now()}
		if s.verify(&q.subject, coreStateOf(core), at.ledgerNow()).rule != nil {
			return nil, nil
		}
		node, err := v.Covering(scope, q.digest)
		if err != nil {
			return nil, err
		}
		if coreErr != nil {
			return nil, coreErr
		}
		return []string{core.ContractID, node.ContractID}, nil
	}
}

// prepare answers one query from the reading's view, without the answer field. It goes as the ledger would: the VAA first, then the
// node; and what the ledger does not look at, whether the disclosures can be brought together, last.
func (s *Service) prepare(ctx context.Context, r *reading, q prepareQuery) (*disclosurev1.PrepareRedeemResponse, error) {
	scope, err := r.view.Scope(q.selector)
	if err != nil {
		return nil, err
	}
	core, coreErr := q.coreState(r.view, scope)
	now := r.ledgerNow()
	verified := s.verify(&q.subject, coreStateOf(core), now)
	if verified.rule != nil {
		return s.invalid(ctx, r, q, scope, core, verified.rule)
	}
	node, err := r.view.Covering(scope, q.digest)
	if err != nil {
		return nil, err
	}
	answer := &disclosurev1.PrepareRedeemResponse{
		Digest:   q.digest.String(),
		Findings: findings(r.view.FindingsFor(scope, q.digest)),
	}
	consumed, err := s.consumption(ctx, r, scope, node, q.digest)
	if err != nil {
		return nil, err
	}
	if consumed != nil {
		// The verdict needs no CoreState, and nothing here is to be submitted: no blobs.
		answer.Verdict = disclosurev1.RedeemVerdict_REDEEM_VERDICT_ALREADY_CONSUMED
		answer.Consumption = consumed
		bare := *r
		bare.withoutBlobs = true
		answer.ReplayNode = bare.replayNode(node)
		if coreErr == nil {
			answer.CoreState = bare.coreState(core)
			answer.MessageFee = answer.CoreState.GetMessageFee()
		}
		return answer, nil
	}
	if coreErr != nil {
		return nil, coreErr
	}
	if core.SynchronizerID != node.SynchronizerID {
		return nil, failure(DifferentSynchronizers, "CoreState and replay node are on different synchronizers").
			with("core_state_contract_id", core.ContractID).with("core_state_synchronizer_id", core.SynchronizerID).
			with("replay_node_contract_id", node.ContractID).with("replay_node_synchronizer_id", node.SynchronizerID)
	}
	for _, e := range []*index.Entry{core, node} {
		if err := disclosable(e); err != nil {
			return nil, err
		}
	}
	answer.ReplayNode = r.replayNode(node)
	answer.CoreState = r.coreState(core)
	answer.MessageFee = answer.CoreState.GetMessageFee()
	answer.DisclosedContracts = r.disclosures(core, node)
	if !r.withoutForecast {
		answer.Churn = s.churn(ctx, r, scope, node)
	}
	if q.vaa == nil {
		answer.Verdict = disclosurev1.RedeemVerdict_REDEEM_VERDICT_NOT_CONSUMED
		return answer, nil
	}
	answer.Verdict = disclosurev1.RedeemVerdict_REDEEM_VERDICT_REDEEMABLE
	if verified.expires != nil {
		answer.GuardianSetExpiresAt = timestamp(*verified.expires)
		if verified.expires.Sub(now) <= s.cfg.ExpiryMargin {
			answer.Verdict = disclosurev1.RedeemVerdict_REDEEM_VERDICT_EXPIRES_SOON
		}
	}
	answer.Arguments, err = arguments(q.vaa, verified.keys, scope, core, node)
	return answer, err
}
