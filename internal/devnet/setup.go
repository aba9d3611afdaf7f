package devnet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// Report is told of each thing as it is made or, where made is false, found: what it is in a few words, and its id.
type Report func(what, id string, made bool)

// Ensure is Make for a participant that has some of the devnet, or all of it, already: parties are found by their hints, contracts among
// the active ones of those parties. So it can be run again after it was interrupted, and again at each start. Two at once on one
// participant may make things twice.
//
// What is found is taken as it is: an app's threshold is then its trie's and not the option's, its Root is empty where the trie has no
// root node any more, and governance may have replaced the CoreState. VAAs are signed for the present set, by the development guardian.
func Ensure(ctx context.Context, client *submit.Client, options Options, report Report) (*World, error) {
	return (&setup{client: client, options: options, report: report, world: &World{}, look: true}).run(ctx)
}

// setup makes a devnet step by step, in the order in which one thing needs the other.
type setup struct {
	client  *submit.Client
	options Options
	report  Report
	world   *World
	// look is whether to look for what is there before making it.
	look bool
}

func (s *setup) run(ctx context.Context) (*World, error) {
	w := s.world
	for _, p := range []struct {
		hint string
		id   *string
	}{{"operator", &w.Operator}, {"guardianGovernance", &w.GuardianGovernance}, {"guardianObserver", &w.GuardianObserver}} {
		var err error
		if *p.id, err = s.party(ctx, p.hint); err != nil {
			return nil, fmt.Errorf("devnet: %w", err)
		}
	}
	if err := s.anchors(ctx); err != nil {
		return nil, err
	}
	for i, threshold := range s.options.Thresholds {
		app, err := s.app(ctx, i+1, threshold)
		if err != nil {
			return nil, fmt.Errorf("devnet: making app %d: %w", i+1, err)
		}
		w.Apps = append(w.Apps, app)
	}
	return w, nil
}

func (s *setup) party(ctx context.Context, hint string) (string, error) {
	hint += s.options.Suffix
	id, found := "", false
	var err error
	if s.look {
		if id, found, err = s.client.FindParty(ctx, hint); err != nil {
			return "", err
		}
	}
	if !found {
		if id, err = s.client.AllocateParty(ctx, hint); err != nil {
			return "", err
		}
	}
	if s.options.User != "" {
		if err := s.client.GrantActAs(ctx, s.options.User, id); err != nil {
			return "", err
		}
	}
	s.tell("party "+hint, id, !found)
	return id, nil
}

// anchors makes the CoreState and the registries.
func (s *setup) anchors(ctx context.Context) error {
	w := s.world
	core, err := s.one(ctx, "CoreState", w.Operator, wormhole.CoreStateTemplate, func(c submit.Created) bool {
		state, ok := c.Payload.(*wormhole.CoreState)
		return ok && state.Operator == w.Operator && state.GuardianGovernance == w.GuardianGovernance
	}, []string{w.Operator, w.GuardianGovernance}, submit.Create(w.coreState(s.options.Sets)))
	if err != nil {
		return err
	}
	w.CoreState = core.ContractID
	if state, ok := core.Payload.(*wormhole.CoreState); ok {
		w.set.Store(uint32(state.GuardianSetIndex))
	}
	registry, err := s.one(ctx, "ReplayRootRegistry", w.Operator, wormhole.ReplayRootRegistryTemplate, func(c submit.Created) bool {
		r, ok := c.Payload.(*wormhole.ReplayRootRegistry)
		return ok && r.Operator == w.Operator
	}, []string{w.Operator}, submit.Create(&wormhole.ReplayRootRegistry{Operator: w.Operator, Granted: []string{}}))
	if err != nil {
		return err
	}
	w.ReplayRootRegistry = registry.ContractID
	emitters, err := s.one(ctx, "EmitterRegistry", w.Operator, wormhole.EmitterRegistryTemplate, func(c submit.Created) bool {
		r, ok := c.Payload.(*wormhole.EmitterRegistry)
		return ok && r.Operator == w.Operator
	}, []string{w.Operator}, submit.Create(&wormhole.EmitterRegistry{Operator: w.Operator, NextID: 1}))
	if err != nil {
		return err
	}
	w.EmitterRegistry = emitters.ContractID
	return nil
}

// one finds the one active contract of the party's that is meant, or makes it.
func (s *setup) one(
	ctx context.Context, what, party string, template damlvalue.TypeName, meant func(submit.Created) bool, actAs []string, command submit.Command,
) (submit.Created, error) {
	found, err := s.active(ctx, party, template, wormhole.PackageName, meant)
	switch {
	case err != nil:
		return submit.Created{}, fmt.Errorf("devnet: looking for the %s: %w", what, err)
	case len(found) > 1:
		return submit.Created{}, fmt.Errorf("devnet: there are %d contracts %s of these parties, not one: archive all but one, or choose another suffix", len(found), what)
	case len(found) == 1:
		s.tell(what, found[0].ContractID, false)
		return found[0], nil
	}
	made, err := s.create(ctx, what, actAs, template, command)
	if err != nil {
		return submit.Created{}, fmt.Errorf("devnet: %w", err)
	}
	return made, nil
}

// active are the party's active contracts of a template that are meant; none where nothing is to be looked for.
func (s *setup) active(ctx context.Context, party string, template damlvalue.TypeName, pkgName string, meant func(submit.Created) bool) ([]submit.Created, error) {
	if !s.look {
		return nil, nil
	}
	all, err := s.client.Active(ctx, party, template, pkgName)
	if err != nil {
		return nil, err
	}
	var found []submit.Created
	for _, c := range all {
		if meant(c) {
			found = append(found, c)
		}
	}
	return found, nil
}

// create submits a command that makes a contract of the template.
func (s *setup) create(ctx context.Context, what string, actAs []string, template damlvalue.TypeName, command submit.Command) (submit.Created, error) {
	result, err := s.do(ctx, actAs, command)
	if err != nil {
		return submit.Created{}, fmt.Errorf("creating the %s: %w", what, err)
	}
	made, ok := result.First(template)
	if !ok {
		return submit.Created{}, fmt.Errorf("creating the %s: the transaction at offset %d made none", what, result.Offset)
	}
	s.tell(what, made.ContractID, true)
	return made, nil
}

// app makes an app's party, its trie's root and its contract.
func (s *setup) app(ctx context.Context, number int, threshold int64) (*App, error) {
	name := fmt.Sprintf("app%d", number)
	consumer, err := s.party(ctx, name)
	if err != nil {
		return nil, err
	}
	address := sha256.Sum256([]byte("disclosured devnet peer of " + consumer))
	app := &App{Consumer: consumer, Threshold: threshold, PeerAddress: hex.EncodeToString(address[:])}
	if err := s.root(ctx, name, app); err != nil {
		return nil, err
	}
	integrator := submit.Integrator{Manager: consumer, Operator: s.world.Operator, PeerChain: peerChain, PeerAddress: app.PeerAddress}
	found, err := s.active(ctx, consumer, submit.IntegratorTemplate, submit.IntegratorPackage, func(c submit.Created) bool {
		return c.Argument.Field("operator", 1) == damlvalue.Value(damlvalue.Party(s.world.Operator)) &&
			c.Argument.Field("peerAddress", 4) == damlvalue.Value(damlvalue.Text(app.PeerAddress))
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the app's contract: %w", err)
	}
	if len(found) > 0 {
		app.Integrator = found[0]
		s.tell(name+"'s contract", app.Integrator.ContractID, false)
		return app, nil
	}
	app.Integrator, err = s.create(ctx, name+"'s contract", []string{consumer}, submit.IntegratorTemplate, submit.CreateIntegrator(integrator))
	return app, err
}

// root finds the app's trie, or asks for its root and has it granted.
func (s *setup) root(ctx context.Context, name string, app *App) error {
	what := name + "'s trie"
	nodes, err := s.active(ctx, app.Consumer, wormhole.ReplayNodeTemplate, wormhole.PackageName, func(c submit.Created) bool {
		n, ok := c.Payload.(*wormhole.ReplayNode)
		return ok && n.Consumer == app.Consumer && n.Operator == s.world.Operator
	})
	if err != nil {
		return fmt.Errorf("looking for the trie: %w", err)
	}
	for _, c := range nodes {
		n, ok := c.Payload.(*wormhole.ReplayNode)
		if !ok {
			continue // active let only these pass
		}
		app.Threshold = n.SplitThreshold
		if n.Prefix.Len() == 0 {
			app.Root = c.ContractID
		}
	}
	if len(nodes) > 0 {
		s.tell(what, app.Root, false)
		return nil
	}
	request, err := s.request(ctx, name, app)
	if err != nil {
		return err
	}
	granted, err := s.do(ctx, []string{s.world.Operator}, submit.ApproveRoot(request, s.world.ReplayRootRegistry))
	if err != nil {
		return fmt.Errorf("granting a root: %w", err)
	}
	root, ok := granted.First(wormhole.ReplayNodeTemplate)
	registry, okRegistry := granted.First(wormhole.ReplayRootRegistryTemplate)
	if !ok || !okRegistry {
		return fmt.Errorf("granting a root at offset %d made no root or no registry", granted.Offset)
	}
	app.Root, s.world.ReplayRootRegistry = root.ContractID, registry.ContractID
	s.tell(what, app.Root, true)
	return nil
}

// request finds the app's request for a root that nobody has answered, or makes one.
func (s *setup) request(ctx context.Context, name string, app *App) (contractID string, err error) {
	open, err := s.active(ctx, app.Consumer, wormhole.ReplayRootRequestTemplate, wormhole.PackageName, func(c submit.Created) bool {
		return c.Argument.Field("operator", 1) == damlvalue.Value(damlvalue.Party(s.world.Operator)) &&
			c.Argument.Field("splitThreshold", 2) == damlvalue.Value(damlvalue.Int(app.Threshold))
	})
	if err != nil {
		return "", fmt.Errorf("looking for a request for a root: %w", err)
	}
	if len(open) > 0 {
		return open[0].ContractID, nil
	}
	made, err := s.create(ctx, name+"'s request for a root", []string{app.Consumer}, wormhole.ReplayRootRequestTemplate,
		submit.RequestRoot(wormhole.ReplayRootRequest{Consumer: app.Consumer, Operator: s.world.Operator, SplitThreshold: app.Threshold}))
	return made.ContractID, err
}

func (s *setup) tell(what, id string, made bool) {
	if s.report != nil {
		s.report(what, id, made)
	}
}

// vettingWait is how long a package that was just uploaded may take until it is vetted on the synchronizer.
const vettingWait = 30 * time.Second

// do submits a command. An upload returns before its packages are vetted everywhere, and until then the participant finds no package to
// interpret the command with; that is a refusal without effect, so the same is asked again.
func (s *setup) do(ctx context.Context, actAs []string, command submit.Command) (*submit.Result, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 100 * time.Millisecond
	return backoff.Retry(ctx, func() (*submit.Result, error) {
		result, err := s.client.Do(ctx, actAs, nil, command)
		var refused *submit.Rejection
		if err != nil && !(errors.As(err, &refused) && refused.Reason == submit.ReasonNotVetted) {
			return nil, backoff.Permanent(err)
		}
		return result, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(vettingWait))
}
