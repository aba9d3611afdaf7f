package api

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Service implements DisclosureService. It is safe for concurrent use.
type Service struct {
	disclosurev1.UnimplementedDisclosureServiceServer
	cfg    Config
	index  Index
	status func() Status
	now    func() time.Time
	// stopping ends when the server begins to stop: waits end with it.
	stopping context.Context
	pages    *pages
	// findUpdate is Deps.FindUpdate; finding holds a token per call of it.
	findUpdate func(ctx context.Context, updateID string) (participantID string, offset int64, found bool)
	finding    chan struct{}
	// auditing holds a token per full audit that may run at once, one, and audits one per other audit.
	auditing  chan struct{}
	audits    chan struct{}
	verdicts  verdicts
	forecasts forecasts
	// historyPausedUntil is in nanoseconds since 1970, 0 for never.
	historyPausedUntil atomic.Int64
}

func newService(cfg Config, deps Deps, stopping context.Context) *Service {
	return &Service{
		cfg: cfg, index: deps.Index, status: deps.Status, now: deps.Now, stopping: stopping,
		findUpdate: deps.FindUpdate, finding: make(chan struct{}, maxFinds),
		pages: newPages(deps.Now), auditing: make(chan struct{}, 1), audits: make(chan struct{}, maxAudits),
		verdicts:  verdicts{newLRU[verdictKey, func() signedBy](cfg.VerdictCacheEntries, cfg.VerdictCacheBytes)},
		forecasts: forecasts{lru: newLRU[forecastKey, []life](maxForecasts, maxLivesBytes)},
	}
}

// following are the states in which the ledger's updates, or a snapshot of it, come in.
var following = map[string]bool{"live": true, "snapshot": true}

// ready says why the service is not ready, or returns nil. It asks for more than a call does: what was proven a moment ago is right without a
// connection too, and is answered; but who chooses among replicas should not choose one that can only grow older. The grace keeps
// streams that end and begin again, as they do all the time, from being seen here.
func (s *Service) ready() *Error {
	status := s.status()
	view := s.index.View()
	refused := unready(status, view, s.now(), s.cfg.FreshnessBound, false)
	switch {
	case s.stopping.Err() != nil:
		refused = failure(ShuttingDown, "the server stops")
	case refused == nil && status.State == stateStopped:
		refused = failure(NotReady, "the ledger is no longer followed").with("stream_state", status.State)
	case refused == nil && !following[status.State] && ageOf(status, s.now()) > s.cfg.ConnectionGrace:
		refused = failure(NotReady, "the ledger is not followed at present, since the participant or the database does not answer (the log says which), and the last proof of completeness ages").with("stream_state", status.State)
	}
	if refused != nil && view != nil {
		refused.at(view.Position())
	}
	return refused
}

// GetCoveringNode implements DisclosureService.
func (s *Service) GetCoveringNode(ctx context.Context, req *disclosurev1.GetCoveringNodeRequest) (*disclosurev1.GetCoveringNodeResponse, error) {
	var c checks
	selector := c.scope("scope", req.GetScope(), true)
	digest := c.digest("digest", req.GetDigest())
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	would := func(v *index.View) ([]string, error) {
		_, node, err := covering(v, *selector, digest)
		if err != nil {
			return nil, err
		}
		return []string{node.ContractID}, nil
	}
	return answerWith(ctx, s, opts, would, func(ctx context.Context, r *reading) (*disclosurev1.GetCoveringNodeResponse, error) {
		scope, node, err := covering(r.view, *selector, digest)
		if err != nil {
			return nil, err
		}
		if err := disclosable(node); err != nil {
			return nil, err
		}
		consumed, err := s.consumption(ctx, r, scope, node, digest)
		if err != nil {
			return nil, err
		}
		return &disclosurev1.GetCoveringNodeResponse{
			Answer:            s.answer(r),
			ReplayNode:        r.replayNode(node),
			Consumed:          consumed != nil,
			Consumption:       consumed,
			DisclosedContract: r.disclosure(node),
			Findings:          findings(r.view.FindingsFor(scope, digest)),
		}, nil
	})
}

// covering is the scope that the selector names and its node that covers the digest.
func covering(v *index.View, selector index.ScopeSelector, digest wormhole.Digest) (index.Scope, *index.Entry, error) {
	scope, err := v.Scope(selector)
	if err != nil {
		return scope, nil, err
	}
	node, err := v.Covering(scope, digest)
	return scope, node, err
}

// consumption is which update consumed the digest, nil where the node does not hold it.
//
// That the digest is consumed is the view's word. History adds which update it was, and where it does not answer in time the answer goes without.
//
// Where history does not know the update, what is certain is that the digest was in the trie when the node was activated: that
// offset is given. (Not where history begins: a node that its signatories made by hand can hold digests that no consume put
// there.)
func (s *Service) consumption(ctx context.Context, r *reading, scope index.Scope, node *index.Entry, digest wormhole.Digest) (*disclosurev1.Consumption, error) {
	held, ok := node.Payload.(*wormhole.ReplayNode)
	if !ok || !held.Consumed.Contains(digest) {
		return nil, nil
	}
	r.usedHistory = true
	consume, known := index.Consume{}, false
	asked := false
	if r.consumes != nil {
		asked = r.consumes.asked
		consume, known = r.consumes.found[index.ScopedDigest{Scope: scope, Digest: digest}]
	} else {
		asked = s.askHistory(ctx, func(ctx context.Context) (err error) {
			consume, known, err = s.index.History().Consumed(ctx, scope, digest, r.view.Position().Offset)
			return err
		})
	}
	if !asked {
		return &disclosurev1.Consumption{BeforeHistoryOffset: node.Offset, HistoryUnavailable: true}, ctx.Err()
	}
	if !known {
		return &disclosurev1.Consumption{BeforeHistoryOffset: node.Offset}, nil
	}
	return &disclosurev1.Consumption{Offset: consume.Offset, UpdateId: consume.UpdateID, RecordTime: timestamp(consume.RecordTime)}, nil
}

// consumes are what history says of a batch's digests, asked for at once.
type consumes struct {
	// asked is whether history answered.
	asked bool
	found map[index.ScopedDigest]index.Consume
}

// consumptions asks history once about all queries' digests that the view holds: one question and one bound on its time for a batch.
func (s *Service) consumptions(ctx context.Context, r *reading, queries []prepareQuery) *consumes {
	var held []index.ScopedDigest
	for _, q := range queries {
		if q.fault != nil {
			continue // no VAA, so no digest
		}
		scope, node, err := covering(r.view, q.selector, q.digest)
		if err != nil {
			continue
		}
		if state, ok := node.Payload.(*wormhole.ReplayNode); ok && state.Consumed.Contains(q.digest) {
			held = append(held, index.ScopedDigest{Scope: scope, Digest: q.digest})
		}
	}
	if len(held) == 0 {
		return &consumes{asked: true}
	}
	r.usedHistory = true
	all := &consumes{}
	all.asked = s.askHistory(ctx, func(ctx context.Context) (err error) {
		all.found, err = s.index.History().ConsumedAmong(ctx, held, r.view.Position().Offset)
		return err
	})
	return all
}

// GetCoreState implements DisclosureService.
func (s *Service) GetCoreState(ctx context.Context, req *disclosurev1.GetCoreStateRequest) (*disclosurev1.GetCoreStateResponse, error) {
	var c checks
	selector := index.CoreStateSelector{
		ContractID: c.contractID("contract_id", req.GetContractId(), false),
		Operator:   c.party("operator", req.GetOperator(), false),
	}
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	find := func(v *index.View) (*index.Entry, error) { return v.CoreState(selector) }
	return answerWith(ctx, s, opts, only(find), func(_ context.Context, r *reading) (*disclosurev1.GetCoreStateResponse, error) {
		core, err := find(r.view)
		if err != nil {
			return nil, err
		}
		if err := disclosable(core); err != nil {
			return nil, err
		}
		return &disclosurev1.GetCoreStateResponse{Answer: s.answer(r), CoreState: r.coreState(core), DisclosedContract: r.disclosure(core)}, nil
	})
}

// GetRegistry implements DisclosureService.
func (s *Service) GetRegistry(ctx context.Context, req *disclosurev1.GetRegistryRequest) (*disclosurev1.GetRegistryResponse, error) {
	var c checks
	kind := req.GetKind()
	if kind != disclosurev1.RegistryKind_REGISTRY_KIND_REPLAY_ROOT && kind != disclosurev1.RegistryKind_REGISTRY_KIND_EMITTER {
		c.add("kind", "must be REGISTRY_KIND_REPLAY_ROOT or REGISTRY_KIND_EMITTER")
	}
	selector := index.RegistrySelector{Operator: c.party("operator", req.GetOperator(), false)}
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	find := func(v *index.View) (*index.Entry, error) {
		if kind == disclosurev1.RegistryKind_REGISTRY_KIND_EMITTER {
			return v.EmitterRegistry(selector)
		}
		return v.ReplayRootRegistry(selector)
	}
	return answerWith(ctx, s, opts, only(find), func(_ context.Context, r *reading) (*disclosurev1.GetRegistryResponse, error) {
		registry, err := find(r.view)
		if err != nil {
			return nil, missing(err, RegistryMissing, RegistryDoubled, "registry")
		}
		if err := disclosable(registry); err != nil {
			return nil, err
		}
		answer := &disclosurev1.GetRegistryResponse{Answer: s.answer(r), Contract: r.contract(registry), DisclosedContract: r.disclosure(registry)}
		switch payload := registry.Payload.(type) {
		case *wormhole.ReplayRootRegistry:
			answer.Operator, answer.Granted = payload.Operator, payload.Granted
		case *wormhole.EmitterRegistry:
			answer.Operator, answer.NextId = payload.Operator, payload.NextID
		}
		return answer, nil
	})
}

// GetEmitter implements DisclosureService.
func (s *Service) GetEmitter(ctx context.Context, req *disclosurev1.GetEmitterRequest) (*disclosurev1.GetEmitterResponse, error) {
	var c checks
	selector := index.EmitterSelector{
		Operator:  c.party("operator", req.GetOperator(), false),
		Owner:     c.party("owner", req.GetOwner(), true),
		EmitterID: req.GetEmitterId(),
	}
	if selector.EmitterID < 0 {
		c.add("emitter_id", "must not be negative")
	}
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	find := func(v *index.View) (*index.Entry, error) { return v.Emitter(selector) }
	return answerWith(ctx, s, opts, only(find), func(_ context.Context, r *reading) (*disclosurev1.GetEmitterResponse, error) {
		e, err := find(r.view)
		if err != nil {
			return nil, missing(err, EmitterMissing, EmitterDoubled, "emitter")
		}
		if err := disclosable(e); err != nil {
			return nil, err
		}
		answer := &disclosurev1.GetEmitterResponse{Answer: s.answer(r), Contract: r.contract(e), DisclosedContract: r.disclosure(e)}
		if emitter, ok := e.Payload.(*wormhole.Emitter); ok {
			answer.Operator, answer.Owner, answer.EmitterId = emitter.Operator, emitter.Owner, emitter.EmitterID
			answer.EmitterAddress, answer.Sequence = emitter.EmitterAddress, emitter.Sequence
		}
		return answer, nil
	})
}

// only are the candidates of an answer that is one contract.
func only(find func(*index.View) (*index.Entry, error)) candidates {
	return func(v *index.View) ([]string, error) {
		e, err := find(v)
		if err != nil {
			return nil, err
		}
		return []string{e.ContractID}, nil
	}
}

// GetServerInfo implements DisclosureService. It answers in every state.
func (s *Service) GetServerInfo(ctx context.Context, _ *disclosurev1.GetServerInfoRequest) (*disclosurev1.GetServerInfoResponse, error) {
	refused := s.ready()
	status := s.status()
	view := s.index.View()
	info := s.cfg.Info
	answer := &disclosurev1.GetServerInfoResponse{
		Version:          info.Version,
		StreamState:      status.State,
		StreamDetail:     streamDetails[status.State],
		Ready:            refused == nil,
		LedgerApiVersion: status.LedgerAPIVersion,
		Synchronizers:    status.Synchronizers,
		Anchors:          &disclosurev1.Anchors{Operators: info.Operators, GuardianGovernance: info.GuardianGovernance},
		Store:            info.Store,
		StartedAt:        timestamp(info.StartedAt),
		ReadAs:           info.ReadAs,
	}
	if refused != nil {
		answer.NotReadyReason = string(refused.Reason)
	}
	for _, name := range sortedKeys(mergeKeys(status.Packages, info.PinnedPackages)) {
		answer.Packages = append(answer.Packages, &disclosurev1.PackageInfo{Name: name, SeenIds: status.Packages[name], PinnedIds: info.PinnedPackages[name]})
	}
	if view == nil {
		answer.Answer = s.answerWithoutIndex(status)
		return answer, nil
	}
	r := &reading{status: status, view: view, now: s.now()}
	answer.Answer = s.answer(r)
	stats := view.Stats()
	answer.ActiveNodes, answer.Scopes = int64(stats.Nodes), int64(stats.Scopes)
	answer.HistorySinceOffset = s.historySince(ctx, view)
	return answer, nil
}

// answerWithoutIndex says who is followed and where that ledger ends, while there is no index: offset 0, and nothing is fresh. Nil where
// the participant was not reached yet.
func (s *Service) answerWithoutIndex(status Status) *disclosurev1.Answer {
	if status.ParticipantID == "" {
		return nil
	}
	return &disclosurev1.Answer{
		Position:  &disclosurev1.Position{ParticipantId: status.ParticipantID},
		Freshness: &disclosurev1.Freshness{Bound: durationpb.New(s.cfg.FreshnessBound), LedgerEnd: status.LedgerEnd},
	}
}

// historySince is the offset after which history is complete. Where the store can't be asked it is the view's own: that claims
// nothing.
func (s *Service) historySince(ctx context.Context, view *index.View) int64 {
	since := view.Position().Offset
	s.askHistory(ctx, func(ctx context.Context) error {
		known, err := s.index.History().HistorySince(ctx)
		if err == nil {
			since = known
		}
		return err
	})
	return since
}

const (
	// historyTimeout is how long an answer waits for history, and historyPause how long answers leave it alone after it failed: of a
	// database that hangs every answer would wait as long otherwise.
	historyTimeout = time.Second
	historyPause   = time.Second
)

// askHistory asks history for what an answer can do without, and reports whether it answered. Of a call's time it gives history no more than
// half: the answer goes without, and still in time.
func (s *Service) askHistory(ctx context.Context, ask func(context.Context) error) bool {
	if s.now().UnixNano() < s.historyPausedUntil.Load() {
		return false
	}
	limit := historyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := ask(within)
	if err == nil {
		return true
	}
	// Neither a caller that has gone nor one that is in a hurry says anything about the database.
	if hurried := limit < historyTimeout && within.Err() != nil; ctx.Err() == nil && !hurried {
		s.historyPausedUntil.Store(s.now().Add(historyPause).UnixNano())
	}
	return false
}

// needHistory asks history for what an answer can't do without, and waits no longer for it: a caller that hears so within the second can
// ask elsewhere.
func (s *Service) needHistory(ctx context.Context, ask func(context.Context) error) error {
	failed := errHistoryPaused
	if s.askHistory(ctx, func(ctx context.Context) error {
		failed = ask(ctx)
		return failed
	}) {
		return nil
	}
	if ctx.Err() != nil {
		return asError(ctx.Err())
	}
	e := failure(StoreUnavailable, "history could not be read")
	e.cause = failed
	return e
}

var errHistoryPaused = errors.New("history did not answer a moment ago, and is left alone")

// streamDetails are what callers are told of a follower's state. Its own detail names the operator's hosts, users and faults.
var streamDetails = map[string]string{
	"connecting":   "the participant or the database was not reached yet, or another process holds the writer's lease",
	"waiting":      "something that the service needs, a package or a right, is not there on the participant yet: see the log",
	"snapshot":     "the active contracts are being read",
	"reconnecting": "the stream from the participant was lost and is being made again",
	stateHalted:    "an update can't be decoded or applied; the operator has to act: see the log",
	stateStopped:   "the ledger is no longer followed",
}

// mergeKeys has the keys of both maps.
func mergeKeys(a, b map[string][]string) map[string]struct{} {
	keys := make(map[string]struct{}, len(a)+len(b))
	for k := range a {
		keys[k] = struct{}{}
	}
	for k := range b {
		keys[k] = struct{}{}
	}
	return keys
}
