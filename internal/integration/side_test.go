package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// side is one of the two participants to which the story is told. What it knows of the ledger it knows from the answers to its own
// submissions.
type side struct {
	name    string
	client  *submit.Client
	world   *devnet.World
	parties map[string]string
	// begin is the ledger end before anything was done.
	begin int64

	mu sync.Mutex
	// nodes are the active replay nodes, core is the CoreState; gone are the contracts that were archived, whichever answer came first.
	nodes map[string]submit.Created
	core  submit.Created
	gone  map[string]bool
	// last is the last update that changed any of them.
	last *submit.Result
}

func newSide(name string, client *submit.Client) *side {
	return &side{name: name, client: client, parties: map[string]string{}, nodes: map[string]submit.Created{}, gone: map[string]bool{}}
}

// thresholds are those of the three apps.
var thresholds = []int64{4, 16, 128}

// Parties beside those of the devnet. None of them is a stakeholder of anything to begin with.
var strangers = func() []string {
	names := []string{"accomplice", "puppeteer"}
	for i := range redeemers {
		names = append(names, redeemer(i))
	}
	return names
}()

// redeemers is how many contend for one node.
const redeemers = 8

func redeemer(i int) string { return fmt.Sprintf("redeemer%d", i+1) }

// prepare uploads the model, allocates all parties and makes anchors and apps. User is the token's user, who is let act as all parties, or "".
func (s *side) prepare(ctx context.Context, lf, suffix, user string, sets map[int64]wormhole.GuardianSet) error {
	var err error
	if s.begin, err = s.client.LedgerEnd(ctx); err != nil {
		return err
	}
	for _, name := range []string{daml.WormholeCorePackage, daml.ExampleIntegratorPackage} {
		dar, err := daml.Find(name, lf)
		if err != nil {
			return err
		}
		if err := s.client.UploadDAR(ctx, dar.Bytes()); err != nil {
			return fmt.Errorf("%s for LF %s: %w", name, lf, err)
		}
	}
	for _, name := range strangers {
		if s.parties[name], err = s.client.AllocateParty(ctx, name+suffix); err != nil {
			return err
		}
		if user != "" {
			if err := s.client.GrantActAs(ctx, user, s.parties[name]); err != nil {
				return err
			}
		}
	}
	s.world, err = devnet.Make(ctx, s.client, devnet.Options{Thresholds: thresholds, Suffix: suffix, User: user, Sets: sets})
	if err != nil {
		return err
	}
	for _, template := range []string{"node", "core"} {
		name := wormhole.ReplayNodeTemplate
		if template == "core" {
			name = wormhole.CoreStateTemplate
		}
		active, err := s.client.Active(ctx, s.world.Operator, name, wormhole.PackageName)
		if err != nil {
			return err
		}
		for _, c := range active {
			s.created(c)
		}
	}
	return nil
}

// learn takes what a transaction changed.
func (s *side) learn(r *submit.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, id := range r.Archived {
		s.gone[id] = true
		_, known := s.nodes[id]
		changed = changed || known || id == s.core.ContractID
		delete(s.nodes, id)
	}
	for _, c := range r.Created {
		changed = s.created(c) || changed
	}
	if changed && (s.last == nil || s.last.Offset < r.Offset) {
		s.last = r
	}
}

// created takes a contract, and tells whether it is one that the service serves. The lock must be held, or nobody else be there.
func (s *side) created(c submit.Created) bool {
	if s.gone[c.ContractID] {
		return false
	}
	switch p := c.Payload.(type) {
	case *wormhole.ReplayNode:
		if p.Operator == s.world.Operator {
			s.nodes[c.ContractID] = c
			return true
		}
	case *wormhole.CoreState:
		if p.Operator == s.world.Operator && p.GuardianGovernance == s.world.GuardianGovernance {
			s.core = c
			return true
		}
	}
	return false
}

// covering is the app's node that covers the digest, by what the submissions showed.
func (s *side) covering(consumer string, digest wormhole.Digest) (submit.Created, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []submit.Created
	for _, c := range s.nodes {
		if n, ok := c.Payload.(*wormhole.ReplayNode); ok && n.Consumer == consumer && n.Prefix.Covers(digest) {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		return submit.Created{}, fmt.Errorf("%s: %d nodes of %s cover %s", s.name, len(found), consumer, digest)
	}
	return found[0], nil
}

// other is a node of the app's that does not cover the digest.
func (s *side) other(consumer string, digest wormhole.Digest) (submit.Created, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []submit.Created
	for _, c := range s.nodes {
		if n, ok := c.Payload.(*wormhole.ReplayNode); ok && n.Consumer == consumer && !n.Prefix.Covers(digest) {
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return submit.Created{}, fmt.Errorf("%s: all nodes of %s cover %s", s.name, consumer, digest)
	}
	// The same one on both sides.
	return slices.MinFunc(found, func(a, b submit.Created) int {
		return compareText(prefixOf(a), prefixOf(b))
	}), nil
}

func prefixOf(c submit.Created) string {
	if n, ok := c.Payload.(*wormhole.ReplayNode); ok {
		return n.Prefix.String()
	}
	return ""
}

// shape is what a transaction did, without ids: how many contracts of which template it made and left, and how many it archived.
func shape(r *submit.Result) string {
	made := map[string]int{}
	for _, c := range r.Created {
		made[c.TemplateID.QualifiedName()]++
	}
	return fmt.Sprintf("made %v, archived %d", made, len(r.Archived))
}

// lastResult is the last update that changed what the service serves.
func (s *side) lastResult() *submit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *side) coreState() submit.Created {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core
}

// bundle is a redeem as it is submitted: the arguments and the disclosures, each of which a scene may change.
type bundle struct {
	redeemer, commandID                     string
	integrator, coreState, node             string // contract ids, as the arguments name them
	encoded                                 string
	keys                                    []wormhole.PubKey
	discloseApp, discloseCore, discloseNode *submit.Disclosure
	more                                    []submit.Disclosure
	// synchronizer prescribes one.
	synchronizer string
}

func (b *bundle) submission() submit.Submission {
	sub := submit.Submission{
		CommandID: b.commandID, ActAs: []string{b.redeemer}, SynchronizerID: b.synchronizer,
		Commands: []submit.Command{submit.Redeem(submit.Redemption{
			Integrator: b.integrator, CoreState: b.coreState, ReplayNode: b.node, Redeemer: b.redeemer, EncodedVAA: b.encoded, PubKeys: b.keys,
		})},
	}
	for _, d := range []*submit.Disclosure{b.discloseApp, b.discloseCore, b.discloseNode} {
		if d != nil {
			sub.Disclosed = append(sub.Disclosed, *d)
		}
	}
	sub.Disclosed = append(sub.Disclosed, b.more...)
	return sub
}

// bundleOf makes the redeem of a VAA on a node, with the keys of the guardians' own.
func (s *side) bundleOf(app *devnet.App, vaa *wormhole.VAA, node submit.Created, redeemer string, commandID string) (*bundle, error) {
	core := s.coreState()
	state, ok := core.Payload.(*wormhole.CoreState)
	if !ok {
		return nil, fmt.Errorf("%s: the CoreState's payload is a %T", s.name, core.Payload)
	}
	var keys []wormhole.PubKey
	if set, ok := state.GuardianSets[int64(vaa.GuardianSetIndex)]; ok {
		keys, _ = vaa.RecoverKeys(&set) // what can't be recovered is missing, and the ledger will say so
	}
	return &bundle{
		redeemer: s.parties[redeemer], commandID: commandID, integrator: app.Integrator.ContractID, coreState: core.ContractID, node: node.ContractID,
		encoded: vaa.EncodedHex(), keys: keys,
		discloseApp: disclosure(app.Integrator.Contract), discloseCore: disclosure(core.Contract), discloseNode: disclosure(node.Contract),
	}, nil
}

func disclosure(c ledger.Contract) *submit.Disclosure {
	d := submit.Disclose(c)
	return &d
}

// tries are all nodes, without ids: consumer, prefix, threshold and digests.
func (s *side) tries() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for _, c := range s.nodes {
		if n, ok := c.Payload.(*wormhole.ReplayNode); ok {
			all[n.Consumer+"/"+n.Prefix.String()] = fmt.Sprintf("%d %x", n.SplitThreshold, n.Consumed.Packed())
		}
	}
	return all
}

// changedBy takes an update that changed what the service serves in another way than learn knows.
func (s *side) changedBy(offset int64, updateID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = &submit.Result{Offset: offset, UpdateID: updateID}
}
