package integration

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// reassigns: where the participant is connected to two synchronizers, a node goes from one to the other and back. On its way it is active
// nowhere; there, it can't be brought together with the CoreState by who is a stakeholder of neither.
func (s *story) reassigns() {
	if len(s.synchronizers) < 2 {
		s.report.note("not played: the participant is connected to one synchronizer")
		return
	}
	const i = 2
	vaa := s.vaa(i)
	p := s.redeemable(i, vaa, redeemer(4))
	node := s.covering(i, vaa)
	source := node.SynchronizerID
	target := s.synchronizers[slices.IndexFunc(s.synchronizers, func(id string) bool { return id != source })]
	away := s.unassign(i, vaa, source, target)

	_, err := s.tryPrepare(s.app(s.subject, i).Consumer, vaa.Encode())
	if reason := reasonOf(err); reason != "IN_FLIGHT" {
		s.t.Errorf("of a node in flight the service says %q (%v), want IN_FLIGHT", reason, err)
	}
	s.refused("the app consumes on a node in flight", "IN_FLIGHT", want{codes.FailedPrecondition, "UNKNOWN_CONTRACT_SYNCHRONIZERS", ""}, func(on *side) submit.Submission {
		n, err := on.covering(s.app(on, i).Consumer, vaa.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		return submit.Submission{ActAs: []string{s.app(on, i).Consumer}, Commands: []submit.Command{submit.ConsumeDigest(n.ContractID, vaa.Digest().String())}}
	})
	at := func(app, core, node string) func(on *side) submit.Submission {
		return func(on *side) submit.Submission {
			b := *p.of(s, on)
			for d, id := range map[**submit.Disclosure]string{&b.discloseApp: app, &b.discloseCore: core, &b.discloseNode: node} {
				own := **d
				own.SynchronizerID = id
				*d = &own
			}
			return b.submission()
		}
	}
	s.refused("a node in flight, disclosed where it was", "IN_FLIGHT", inactive, at(source, source, source))
	s.refused("a node in flight, all disclosed where it goes", "IN_FLIGHT", want{codes.FailedPrecondition, "SUBMITTER_ALWAYS_STAKEHOLDER", ""}, at(target, target, target))

	s.assign(i, away)
	_, err = s.tryPrepare(s.app(s.subject, i).Consumer, vaa.Encode())
	if reason := reasonOf(err); reason != "DIFFERENT_SYNCHRONIZERS" {
		s.t.Errorf("of a node on another synchronizer than the CoreState the service says %q (%v), want DIFFERENT_SYNCHRONIZERS", reason, err)
	}
	s.refused("CoreState and node, each disclosed where it is", "DIFFERENT_SYNCHRONIZERS",
		want{codes.InvalidArgument, "DISCLOSED_CONTRACTS_SYNCHRONIZER_ID_MISMATCH", ""}, at(source, source, target))
	s.refused("CoreState and node, disclosed without synchronizers", "DIFFERENT_SYNCHRONIZERS",
		want{codes.FailedPrecondition, "NO_SYNCHRONIZER_FOR_SUBMISSION", ""}, at("", "", ""))

	s.assign(i, s.unassign(i, vaa, target, source))
	// The blob and the contract id are what they were.
	if again := s.redeemable(i, vaa, redeemer(4)); again.subject.node != p.subject.node {
		s.t.Errorf("after its return the service gives node %s, before it was %s", again.subject.node, p.subject.node)
	}
	s.redeem(i, vaa, redeemer(4))
}

// unassign takes the node that covers the VAA off its synchronizer, on both sides.
func (s *story) unassign(i int, vaa *wormhole.VAA, source, target string) map[*side]*submit.Reassignment {
	s.t.Helper()
	away := map[*side]*submit.Reassignment{}
	for _, on := range []*side{s.subject, s.standIn} {
		n, err := on.covering(s.app(on, i).Consumer, vaa.Digest())
		if err != nil {
			s.t.Fatal(err)
		}
		if away[on], err = on.client.Unassign(record.Note(s.ctx, "unassign a node"), s.app(on, i).Consumer, n.ContractID, source, target); err != nil {
			s.t.Fatalf("%s: %v", on.name, err)
		}
		on.changedBy(away[on].Offset, away[on].UpdateID)
	}
	return away
}

func (s *story) assign(i int, away map[*side]*submit.Reassignment) {
	s.t.Helper()
	for _, on := range []*side{s.subject, s.standIn} {
		back, err := on.client.Assign(record.Note(s.ctx, "assign a node"), s.app(on, i).Consumer, away[on])
		if err != nil {
			s.t.Fatal(fmt.Errorf("%s: %w", on.name, err))
		}
		on.changedBy(back.Offset, back.UpdateID)
	}
}
