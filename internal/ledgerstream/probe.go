package ledgerstream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
)

// Peer is what a participant tells about itself.
type Peer struct {
	LedgerAPIVersion string
	ParticipantID    string
	LedgerEnd        int64
	// PrunedTo is the offset up to which the participant has forgotten; 0 for nothing.
	PrunedTo int64
	// Synchronizers are those that it is connected to, sorted; nil where it doesn't tell.
	Synchronizers []string
	// MissingTemplates are those of the configured that no version of its package has on this participant.
	MissingTemplates []string
}

// Prober asks a participant once, outside of any following: for the operator's tools, and for comparing an index with the ledger.
type Prober struct{ f *Follower }

// NewProber makes a prober. The configuration must be valid: see Config.Validate.
func NewProber(cfg Config, conn grpc.ClientConnInterface) *Prober {
	return &Prober{f: New(cfg, conn, nil)}
}

// Identify asks who and where the participant is. Its error says what to do, where somebody can do something.
func (p *Prober) Identify(ctx context.Context) (Peer, error) {
	s := &session{f: p.f}
	asked, end := s.ask(ctx)
	peer := Peer{
		LedgerAPIVersion: asked.version, ParticipantID: asked.participantID, LedgerEnd: asked.ledgerEnd,
		PrunedTo: asked.pruned, Synchronizers: asked.synchronizers,
	}
	if end != nil {
		return peer, fmt.Errorf("asking the participant who it is: %w", end)
	}
	return peer, nil
}

// CheckReading asks whether the configured parties, packages and templates can be read, at a ledger end that Identify gave. An
// unknown template is no error but a part of the answer: Peer.MissingTemplates.
func (p *Prober) CheckReading(ctx context.Context, peer *Peer) error {
	s := &session{f: p.f}
	if end := s.resolveFilter(ctx, toInternal(*peer)); end != nil {
		return fmt.Errorf("reading as configured: %w", end)
	}
	peer.MissingTemplates = nil
	for _, t := range p.f.cfg.fullFilter().templates {
		if !slices.Contains(s.filter.templates, t) {
			peer.MissingTemplates = append(peer.MissingTemplates, t.String())
		}
	}
	return nil
}

// ReadActive reads the contracts that are active, and those in flight, at an offset that is not past the ledger end and not
// pruned, in chunks. Where templates are named only theirs are read.
func (p *Prober) ReadActive(
	ctx context.Context, peer Peer, offset int64, templates []damlvalue.TypeName,
	take func(active []ledger.Contract, inFlight []ledger.InFlight) error,
) error {
	s := &session{f: p.f}
	if end := s.resolveFilter(ctx, toInternal(peer)); end != nil {
		return fmt.Errorf("reading the active contracts at offset %d: %w", offset, end)
	}
	if len(templates) > 0 {
		s.filter.templates = slices.DeleteFunc(s.filter.templates, func(t packageTemplate) bool {
			return !slices.ContainsFunc(templates, func(want damlvalue.TypeName) bool {
				return want.QualifiedName() == t.template.QualifiedName()
			})
		})
		if len(s.filter.templates) == 0 {
			return nil // none of them is known here, so none is active
		}
	}
	s.convert = newConverter(s.filter, peer.ParticipantID, &p.f.metrics)
	if _, end := s.fill(ctx, takenSeed{take}, offset); end != nil {
		return fmt.Errorf("reading the active contracts at offset %d: %w", offset, end)
	}
	return nil
}

func toInternal(p Peer) peer {
	return peer{
		version: p.LedgerAPIVersion, participantID: p.ParticipantID, ledgerEnd: p.LedgerEnd,
		pruned: p.PrunedTo, synchronizers: p.Synchronizers,
	}
}

// takenSeed passes what a snapshot brings to a function.
type takenSeed struct {
	take func([]ledger.Contract, []ledger.InFlight) error
}

func (t takenSeed) Add(_ context.Context, contracts []ledger.Contract) error {
	return t.take(contracts, nil)
}

func (t takenSeed) AddInFlight(_ context.Context, inFlight []ledger.InFlight) error {
	return t.take(nil, inFlight)
}

func (takenSeed) Anchor(int64, string, time.Time) {}

func (takenSeed) Commit(context.Context) error { return nil }
func (takenSeed) Abort(context.Context) error  { return nil }
