package ledgersim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// From an interpreted transaction to the ledger: routing to a synchronizer, deduplication, the confirmers' verdict, commit.

// pending is a transaction between its acceptance by the participant and its commit: what it archives is locked.
type pending struct {
	exec         *exec
	synchronizer string
	// moves are the contracts that must be reassigned to the synchronizer first.
	moves  []*activation
	change string
}

// begin interprets, routes and locks. After it, exactly one of finish and abandon must be called on the same ledger.
func (l *state) begin(sub *submission, now time.Time) (*pending, *rejection) {
	if unknown := slices.DeleteFunc(slices.Clone(sub.actAs), func(p string) bool { return l.parties[p] > 0 }); len(unknown) > 0 {
		return nil, reject(notFound, "UNKNOWN_SUBMITTERS", "The participant is not connected to any synchronizer where the given submitters are known.").
			with("unknownSubmitters", "Set("+strings.Join(unknown, ", ")+")")
	}
	if sub.synchronizer != "" && !l.knowsSynchronizer(sub.synchronizer) {
		why := "cannot resolve to physical synchronizer; ensure the node is connected to " + short(sub.synchronizer)
		return nil, reject(invalidState, "INVALID_PRESCRIBED_SYNCHRONIZER_ID", "Cannot submit transaction to prescribed synchronizer `%s` because: %s",
			short(sub.synchronizer), why).with("reason", why).with("synchronizerId", short(sub.synchronizer))
	}
	x := newExec(l, sub, now.UTC().Truncate(time.Microsecond))
	if r := x.run(); r != nil {
		return nil, r
	}
	p := &pending{exec: x, change: changeID(sub)}
	if r := l.route(p); r != nil {
		return nil, r
	}
	if r := l.deduplicate(p); r != nil {
		return nil, r
	}
	if r := l.confirm(p); r != nil {
		return nil, r
	}
	for _, cid := range p.locks() {
		l.locked[cid] = true
	}
	l.inFlight[p.change] = true
	return p, nil
}

func (l *state) abandon(p *pending) {
	delete(l.inFlight, p.change)
	for _, cid := range p.locks() {
		delete(l.locked, cid)
	}
}

// locks are the contracts that nobody else may archive or reassign until the commit: those that it archives, and those that it moves.
func (p *pending) locks() (ids []string) {
	for _, in := range p.exec.inputs {
		if in.consumed {
			ids = append(ids, in.contract.id)
		}
	}
	for _, a := range p.moves {
		ids = append(ids, a.contract.id)
	}
	return ids
}

// finish commits. The update is nil for a transaction without any effect, which can't be.
func (l *state) finish(p *pending, now time.Time) *update {
	l.abandon(p)
	x := p.exec
	for _, a := range p.moves {
		l.moveFor(x.sub, a, p.synchronizer, now)
	}
	u := &update{
		kind: transactionUpdate, synchronizer: p.synchronizer, recordTime: l.recordTime(p.synchronizer, now), effectiveAt: x.now,
		commandID: x.sub.commandID, workflowID: x.sub.workflowID, submitters: x.sub.actAs, nodes: x.nodes,
	}
	l.append(u)
	for _, n := range x.nodes {
		switch {
		case n.transient:
		case n.kind == createNode:
			l.activate(n.contract, u, p.synchronizer, 0, n.id)
		case n.kind == exerciseNode && n.consuming:
			l.archive(u, n)
		}
	}
	l.accepted[p.change] = acceptance{x.sub.submissionID, u.offset}
	return u
}

// changeID is what deduplication goes by.
func changeID(sub *submission) string {
	actAs := slices.Clone(sub.actAs)
	slices.Sort(actAs)
	return fmt.Sprintf("ChangeId(%s,%s,Set(%s))", sub.userID, sub.commandID, strings.Join(slices.Compact(actAs), ", "))
}

func (l *state) deduplicate(p *pending) *rejection {
	sync := short(p.synchronizer) + "::35-0"
	if l.inFlight[p.change] {
		r := reject(contention, "SUBMISSION_ALREADY_IN_FLIGHT", "The submission is already in-flight").
			with("changeId", p.change).with("psid", sync).after(time.Second)
		return r
	}
	before, ok := l.accepted[p.change]
	if !ok {
		return nil
	}
	r := reject(alreadyExists, "DUPLICATE_COMMAND", "Command submission already exists.").
		with("accepted", "true").with("changeId", p.change).with("completion_offset", fmt.Sprint(before.offset)).
		with("existingSubmissionId", "Some("+before.submissionID+")").with("psid", sync)
	r.definite = true
	l.advance(rejectionSpan)
	return r
}

// confirm is the confirmers' verdict: all inputs must be active on the synchronizer (or about to be moved to it) and none may be
// about to be archived by another transaction.
func (l *state) confirm(p *pending) *rejection {
	var locked, inactive []string
	for _, in := range p.exec.inputs {
		cid := in.contract.id
		moved := slices.ContainsFunc(p.moves, func(a *activation) bool { return a.contract.id == cid })
		switch {
		case l.locked[cid]:
			locked = append(locked, cid)
		case !moved && l.activeOn(cid, p.synchronizer) == nil:
			inactive = append(inactive, cid)
		}
	}
	switch {
	case len(inactive) > 0:
		l.advance(rejectionSpan)
		return l.verdict(notFound, "LOCAL_VERDICT_INACTIVE_CONTRACTS", "inactive", inactive, p.synchronizer, p.exec.confirming)
	case len(locked) > 0:
		l.advance(rejectionSpan)
		return l.verdict(contention, "LOCAL_VERDICT_LOCKED_CONTRACTS", "locked", locked, p.synchronizer, p.exec.confirming).after(time.Second)
	default:
		return nil
	}
}

func (l *state) knowsSynchronizer(id string) bool {
	return slices.ContainsFunc(l.synchronizers, func(s synchronizer) bool { return s.id == id })
}

// route chooses the synchronizer. What was disclosed for one prescribes it; so may the submission. Inputs that lie elsewhere
// are reassigned first, if a submitter is a stakeholder of all of them.
func (l *state) route(p *pending) *rejection {
	sub, inputs := p.exec.sub, p.exec.inputs
	prescribed, byDisclosure := sub.synchronizer, ""
	for _, in := range inputs {
		switch {
		case in.synchronizer == "":
		case byDisclosure == "":
			byDisclosure = in.synchronizer
		case byDisclosure != in.synchronizer:
			return reject(invalidArgument, "DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH",
				"Some disclosed contracts that were used during command interpretation have mismatching synchronizer ids: %s", disclosedFor(inputs)).ofSubmission()
		}
	}
	if byDisclosure != "" {
		if sub.synchronizer != "" && sub.synchronizer != byDisclosure {
			return reject(invalidArgument, "PRESCRIBED_SYNCHRONIZER_ID_MISMATCH",
				"The target synchronizer=%s specified in the submission request is not the synchronizer id of the disclosed contracts: %s", short(sub.synchronizer), disclosedFor(inputs)).ofSubmission()
		}
		prescribed = byDisclosure
		if !l.knowsSynchronizer(prescribed) {
			r := reject(invalidState, "INVALID_PRESCRIBED_SYNCHRONIZER_ID",
				"Cannot submit transaction to prescribed synchronizer `%s` because: cannot resolve %s to a physical synchronizer id", short(prescribed), short(prescribed))
			r.anonymous, r.withoutRequest = true, true
			return r
		}
	}
	lost, where := l.locate(inputs)
	if len(lost) > 0 {
		return reject(invalidState, "UNKNOWN_CONTRACT_SYNCHRONIZERS",
			"The synchronizers for the contracts (%s) are currently unknown due to ongoing contract reassignments or disconnected synchronizers.", strings.Join(lost, ", ")).
			with("archived", "Map()").with("notFound", "List("+strings.Join(lost, ", ")+")").
			about("CONTRACT_IDS", "["+strings.Join(lost, ", ")+"]")
	}
	var candidates []string
	switch {
	case prescribed != "":
		candidates = []string{prescribed}
	case len(where) == 0:
		candidates = []string{l.synchronizers[0].id}
	default:
		for _, s := range l.synchronizers {
			candidates = append(candidates, s.id)
		}
		slices.SortStableFunc(candidates, func(a, b string) int { return where[b] - where[a] })
	}
	for _, candidate := range candidates {
		if moves, ok := l.movesTo(p.exec, candidate); ok {
			p.synchronizer, p.moves = candidate, moves
			return nil
		}
	}
	if byDisclosure != "" {
		r := reject(invalidState, "SUBMITTER_ALWAYS_STAKEHOLDER", "The given contracts cannot be reassigned as no submitter is a stakeholder.")
		r.anonymous, r.withoutRequest = true, true
		return r
	}
	var discarded, listed []string
	for _, c := range candidates {
		const why = "Automatically reassigning contracts to a common synchronizer failed."
		discarded = append(discarded, short(c)+"::35-0 -> "+why)
		listed = append(listed, short(c)+"::35-0: "+why)
	}
	return reject(invalidState, "NO_SYNCHRONIZER_FOR_SUBMISSION",
		"No valid synchronizer found for synchronizer ranking. Discarded synchronizers: %s", strings.Join(listed, ", ")).
		with("discardedSynchronizers", "Map("+strings.Join(discarded, ", ")+")")
}

// locate counts the inputs by the synchronizers that they are on, and names those of the participant's own that are on none. A
// disclosed contract counts by what its disclosure says, else by what the participant knows of it, else not at all: the
// confirmers will say.
func (l *state) locate(inputs []*input) (lost []string, where map[string]int) {
	where = map[string]int{}
	for _, in := range inputs {
		switch active := l.active[in.contract.id]; {
		case in.synchronizer != "":
			where[in.synchronizer]++
		case len(active) > 0:
			where[active[0].synchronizer]++
		case !in.disclosed:
			lost = append(lost, in.contract.id)
		}
	}
	return lost, where
}

// movesTo are the reassignments that bring all inputs to the synchronizer, and whether the submitters may make them.
func (l *state) movesTo(x *exec, synchronizer string) (moves []*activation, ok bool) {
	for _, in := range x.inputs {
		active := l.active[in.contract.id]
		if len(active) == 0 || l.activeOn(in.contract.id, synchronizer) != nil {
			continue
		}
		if !slices.ContainsFunc(x.sub.actAs, in.contract.stakeholder) {
			return nil, false
		}
		moves = append(moves, active[0])
	}
	return moves, true
}

func disclosedFor(inputs []*input) string {
	var all []string
	for _, in := range inputs {
		if in.synchronizer != "" {
			all = append(all, fmt.Sprintf("ContractId(%s) -> %s", in.contract.id, in.synchronizer))
		}
	}
	return "Map(" + strings.Join(all, ", ") + ")"
}
