package ledgersim

import (
	"slices"
	"time"
)

// assignmentExclusivity is for how long after an unassignment only its submitter may assign.
const assignmentExclusivity = time.Minute

// reassignCommand is one command of a reassignment submission: an unassignment of a contract, or an assignment by the
// unassignment's id.
type reassignCommand struct {
	unassign       bool
	contractID     string
	reassignmentID string
	source, target string
}

// reassignSubmission is what a client asks for; all commands are of the same kind and between the same synchronizers.
type reassignSubmission struct {
	userID, commandID, workflowID, submitter string
	commands                                 []reassignCommand
}

// reassign carries out a reassignment submission in one update.
func (l *state) reassign(sub *reassignSubmission, now time.Time) (*update, *rejection) {
	if len(sub.commands) == 0 {
		return nil, missingField("commands")
	}
	if sub.commands[0].unassign {
		return l.unassign(sub, now)
	}
	return l.assign(sub, now)
}

func (l *state) unassign(sub *reassignSubmission, now time.Time) (*update, *rejection) {
	first := sub.commands[0]
	var leaving []*activation
	var locked, confirming []string
	for _, c := range sub.commands {
		a := l.activeOn(c.contractID, c.source)
		if a == nil {
			return nil, invalidArguments("Cannot unassign contract `ContractId(%s)` because it's not active. Current status %s", c.contractID, l.statusOf(c.contractID))
		}
		if !a.contract.stakeholder(sub.submitter) {
			return nil, contractNotFound(c.contractID)
		}
		if l.locked[c.contractID] { // by a transaction that is about to archive it
			locked, confirming = append(locked, c.contractID), union(confirming, a.contract.signatories)
		}
		leaving = append(leaving, a)
	}
	if len(locked) > 0 {
		l.advance(rejectionSpan)
		return nil, l.verdict(contention, "LOCAL_VERDICT_LOCKED_CONTRACTS", "locked", locked, first.source, confirming).after(time.Second)
	}
	return l.leave(leaving, first.target, sub.submitter, sub.commandID, sub.workflowID, now), nil
}

// leave unassigns the activations, which are on one synchronizer, in one update.
func (l *state) leave(leaving []*activation, target, submitter, commandID, workflowID string, now time.Time) *update {
	source := leaving[0].synchronizer
	u := &update{
		kind: reassignmentUpdate, synchronizer: source, recordTime: l.recordTime(source, now),
		commandID: commandID, workflowID: workflowID, submitters: []string{submitter},
	}
	l.append(u)
	id := "00" + l.random.multihash()
	for _, a := range leaving {
		r := &reassignment{
			id: id, activation: a, source: source, target: target, counter: a.counter + 1, submitter: submitter,
			exclusivity: u.recordTime.Add(assignmentExclusivity), unassigned: u.offset,
		}
		r.nodeID = int32(len(u.moves))
		a.next = r
		l.deactivate(a, u)
		u.moves = append(u.moves, move{reassignment: r})
		l.reassignments[id+"/"+a.contract.id] = r
	}
	return u
}

func (l *state) assign(sub *reassignSubmission, now time.Time) (*update, *rejection) {
	var arriving []*reassignment
	for _, c := range sub.commands {
		batch := l.batch(c.reassignmentID)
		switch {
		case len(batch) == 0:
			return nil, invalidArguments("Cannot find reassignment data for reassignment `ReassignmentId(%s)`: unknown reassignment", c.reassignmentID)
		case batch[0].assigned != 0:
			return nil, invalidArguments("Cannot find reassignment data for reassignment `ReassignmentId(%s)`: reassignment already completed", c.reassignmentID)
		case now.Before(batch[0].exclusivity) && sub.submitter != batch[0].submitter:
			l.advance(rejectionSpan)
			r := reject(notFound, "REASSIGNMENT_VALIDATION_FAILED",
				"Validation check failed. Cannot assign `ReassignmentId(%s)`: only %s can initiate before exclusivity timeout Target(%s). Current timestamp is %s.",
				c.reassignmentID, batch[0].submitter, batch[0].exclusivity.Format(time.RFC3339Nano), now.UTC().Format(time.RFC3339Nano))
			c := batch[0].activation.contract
			return nil, r.with("confirming_parties", l.participant+", "+c.signatories[0]).
				with("psid", short(batch[0].target)+"::35-0").with("reported_by_participant_id", "PAR::"+l.participant)
		}
		arriving = append(arriving, batch...)
	}
	return l.arrive(arriving, sub.submitter, sub.commandID, sub.workflowID, now), nil
}

// arrive assigns what is in flight, in one update.
func (l *state) arrive(arriving []*reassignment, submitter, commandID, workflowID string, now time.Time) *update {
	target := arriving[0].target
	u := &update{
		kind: reassignmentUpdate, synchronizer: target, recordTime: l.recordTime(target, now),
		commandID: commandID, workflowID: workflowID, submitters: []string{submitter},
	}
	l.append(u)
	for i, r := range arriving {
		r.assigned = u.offset
		a := l.activate(r.activation.contract, u, target, r.counter, int32(i))
		u.moves = append(u.moves, move{reassignment: &reassignment{
			id: r.id, activation: r.activation, source: r.source, target: target, counter: r.counter, submitter: submitter,
		}, assigned: a})
	}
	return u
}

// batch are the reassignments with that id, in their order.
func (l *state) batch(id string) []*reassignment {
	var out []*reassignment
	for _, r := range l.reassignments {
		if r.id == id {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *reassignment) int { return int(a.nodeID - b.nodeID) })
	return out
}

// moveFor is a reassignment that the participant makes by itself for a submission: two updates with its command id.
func (l *state) moveFor(sub *submission, a *activation, target string, now time.Time) {
	submitter := sub.actAs[slices.IndexFunc(sub.actAs, a.contract.stakeholder)]
	l.leave([]*activation{a}, target, submitter, sub.commandID, sub.workflowID, now)
	l.arrive([]*reassignment{a.next}, submitter, sub.commandID, sub.workflowID, now)
}

func (l *state) statusOf(cid string) string {
	f := l.contracts[cid]
	if f == nil {
		return "Unknown"
	}
	if f.archivedAt != nil {
		return "Archived"
	}
	for _, r := range l.inFlightAt(l.end) {
		if r.activation.contract.id == cid {
			return "ReassignedAway(" + short(r.target) + ")"
		}
	}
	return "Active"
}
