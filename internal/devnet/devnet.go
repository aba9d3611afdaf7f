// Package devnet makes a small Wormhole on any participant, simulated or real: the parties, the anchors (CoreState with a development
// guardian set, the two registries), some apps with a replay trie each, and VAAs for them signed by the development guardians.
//
// The demo, the simulated ledger's command and the end-to-end tests share it. It knows a participant only through package submit, so
// whatever it makes came through the Ledger API. Its guardians' keys are public: nothing that it makes guards anything.
package devnet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The chains and contracts of the development network.
const (
	chainID            = 72 // Canton's Wormhole chain id
	governanceChainID  = 1
	governanceContract = "0000000000000000000000000000000000000000000000000000000000000004"
	// peerChain is where the apps' counterparts live.
	peerChain = 2
)

// Options say what to make.
type Options struct {
	// Thresholds makes an app for each entry, whose trie splits at it (1 to 4096).
	Thresholds []int64
	// Suffix ends the hints of all parties, so that several devnets fit on one participant.
	Suffix string
}

// World is a devnet. Its methods are safe for concurrent use.
type World struct {
	Operator, GuardianGovernance, GuardianObserver string
	// CoreState is the first CoreState; governance replaces it.
	CoreState string
	// ReplayRootRegistry and EmitterRegistry are the registries as Make left them.
	ReplayRootRegistry, EmitterRegistry string
	Apps                                []*App

	sequence atomic.Uint64
	// set is the index of the guardian set that signs: a guardian set upgrade moves it on.
	set atomic.Uint32
}

// App is an integrator with a replay trie of its own.
type App struct {
	// Consumer is the app's party.
	Consumer  string
	Threshold int64
	// Integrator is the app's contract, which redeemers who are no stakeholders need disclosed.
	Integrator submit.Created
	// Root is the contract id of the trie's root as it was made.
	Root        string
	PeerAddress string
}

// Make makes a devnet through the client, on a participant that has the model's packages.
func Make(ctx context.Context, client *submit.Client, options Options) (*World, error) {
	w := &World{}
	for hint, party := range map[string]*string{
		"operator": &w.Operator, "guardianGovernance": &w.GuardianGovernance, "guardianObserver": &w.GuardianObserver,
	} {
		var err error
		if *party, err = client.AllocateParty(ctx, hint+options.Suffix); err != nil {
			return nil, fmt.Errorf("devnet: %w", err)
		}
	}
	coreState, err := make1(ctx, client, []string{w.Operator, w.GuardianGovernance}, submit.Create(w.coreState()))
	if err != nil {
		return nil, fmt.Errorf("devnet: creating CoreState: %w", err)
	}
	w.CoreState = coreState
	if w.ReplayRootRegistry, err = make1(ctx, client, []string{w.Operator}, submit.Create(&wormhole.ReplayRootRegistry{Operator: w.Operator, Granted: []string{}})); err != nil {
		return nil, fmt.Errorf("devnet: creating the replay-root registry: %w", err)
	}
	if w.EmitterRegistry, err = make1(ctx, client, []string{w.Operator}, submit.Create(&wormhole.EmitterRegistry{Operator: w.Operator, NextID: 1})); err != nil {
		return nil, fmt.Errorf("devnet: creating the emitter registry: %w", err)
	}
	for i, threshold := range options.Thresholds {
		app, err := w.makeApp(ctx, client, fmt.Sprintf("app%d%s", i+1, options.Suffix), threshold)
		if err != nil {
			return nil, fmt.Errorf("devnet: making app %d: %w", i+1, err)
		}
		w.Apps = append(w.Apps, app)
	}
	return w, nil
}

// make1 submits a command that creates one contract and returns its id.
func make1(ctx context.Context, client *submit.Client, actAs []string, command submit.Command) (string, error) {
	result, err := client.Do(ctx, actAs, nil, command)
	if err != nil {
		return "", err
	}
	if len(result.Created) != 1 {
		return "", fmt.Errorf("%d contracts were created, not one", len(result.Created))
	}
	return result.Created[0].ContractID, nil
}

func (w *World) coreState() *wormhole.CoreState {
	return &wormhole.CoreState{
		Operator: w.Operator, GuardianGovernance: w.GuardianGovernance, GuardianObserver: w.GuardianObserver,
		ChainID: chainID, GovernanceChainID: governanceChainID, GovernanceContract: governanceContract,
		GuardianSetIndex:   0,
		GuardianSets:       map[int64]wormhole.GuardianSet{0: {Keys: []string{wormhole.DevnetGuardian().Address()}}},
		ConsumedGovernance: []string{},
	}
}

// makeApp allocates the app's party, asks for its root and has it granted, and creates the app's contract.
func (w *World) makeApp(ctx context.Context, client *submit.Client, hint string, threshold int64) (*App, error) {
	consumer, err := client.AllocateParty(ctx, hint)
	if err != nil {
		return nil, err
	}
	address := sha256.Sum256([]byte("disclosured devnet peer of " + consumer))
	app := &App{Consumer: consumer, Threshold: threshold, PeerAddress: hex.EncodeToString(address[:])}

	request, err := make1(ctx, client, []string{consumer}, submit.RequestRoot(wormhole.ReplayRootRequest{
		Consumer: consumer, Operator: w.Operator, SplitThreshold: threshold,
	}))
	if err != nil {
		return nil, fmt.Errorf("asking for a root: %w", err)
	}
	granted, err := client.Do(ctx, []string{w.Operator}, nil, submit.ApproveRoot(request, w.ReplayRootRegistry))
	if err != nil {
		return nil, fmt.Errorf("granting a root: %w", err)
	}
	root, ok := granted.First(wormhole.ReplayNodeTemplate)
	registry, okRegistry := granted.First(wormhole.ReplayRootRegistryTemplate)
	if !ok || !okRegistry {
		return nil, fmt.Errorf("granting a root at offset %d made no root or no registry", granted.Offset)
	}
	app.Root, w.ReplayRootRegistry = root.ContractID, registry.ContractID

	created, err := client.Do(ctx, []string{consumer}, nil, submit.CreateIntegrator(submit.Integrator{
		Manager: consumer, Operator: w.Operator, PeerChain: peerChain, PeerAddress: app.PeerAddress,
	}))
	if err != nil {
		return nil, fmt.Errorf("creating the app's contract: %w", err)
	}
	if app.Integrator, ok = created.First(submit.IntegratorTemplate); !ok {
		return nil, fmt.Errorf("creating the app's contract at offset %d made none", created.Offset)
	}
	return app, nil
}

// guardians are the keys of the current set. Every set of a devnet has the one public guardian.
func guardians() map[uint8]wormhole.GuardianKey {
	return map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()}
}

// VAA is a new message for the app: no two are the same.
func (w *World) VAA(app *App, payload []byte) (*wormhole.VAA, error) {
	body := wormhole.VAABody{
		Timestamp: 1_700_000_000, EmitterChain: peerChain, Sequence: w.sequence.Add(1), ConsistencyLevel: 1, Payload: payload,
	}
	if _, err := hex.Decode(body.EmitterAddress[:], []byte(app.PeerAddress)); err != nil {
		return nil, fmt.Errorf("devnet: the app's peer address: %w", err)
	}
	return wormhole.SignVAA(body, w.set.Load(), guardians()), nil
}

// governanceModule is the core bridge's module, right-aligned.
var governanceModule = append(make([]byte, 28), "Core"...)

// Governance actions of the core bridge.
const (
	guardianSetUpgrade = 2
	setMessageFee      = 3
)

// FeeVAA sets the message fee.
func (w *World) FeeVAA(fee uint64) (*wormhole.VAA, error) {
	payload := binary.BigEndian.AppendUint16(append(append([]byte{}, governanceModule...), setMessageFee), chainID)
	payload = append(payload, make([]byte, 24)...)
	return w.governance(binary.BigEndian.AppendUint64(payload, fee))
}

// UpgradeVAA replaces the guardian set by the next one, of the same guardian. Call Upgraded once it is carried out.
func (w *World) UpgradeVAA() (*wormhole.VAA, error) {
	payload := binary.BigEndian.AppendUint16(append(append([]byte{}, governanceModule...), guardianSetUpgrade), 0)
	payload = append(binary.BigEndian.AppendUint32(payload, w.set.Load()+1), 1)
	address, err := hex.DecodeString(wormhole.DevnetGuardian().Address())
	if err != nil {
		return nil, fmt.Errorf("devnet: the guardian's address: %w", err)
	}
	return w.governance(append(payload, address...))
}

// Upgraded makes later VAAs be signed by the next guardian set.
func (w *World) Upgraded() { w.set.Add(1) }

func (w *World) governance(payload []byte) (*wormhole.VAA, error) {
	body := wormhole.VAABody{Timestamp: 1_700_000_000, EmitterChain: governanceChainID, Sequence: w.sequence.Add(1), ConsistencyLevel: 1, Payload: payload}
	if _, err := hex.Decode(body.EmitterAddress[:], []byte(governanceContract)); err != nil {
		return nil, fmt.Errorf("devnet: the governance contract: %w", err)
	}
	return wormhole.SignVAA(body, w.set.Load(), guardians()), nil
}

// Govern carries a governance VAA out on the CoreState, and returns the new CoreState's id and the update.
func (w *World) Govern(ctx context.Context, client *submit.Client, coreState string, vaa *wormhole.VAA) (string, *submit.Result, error) {
	result, err := client.Do(ctx, []string{w.Operator}, nil, submit.SubmitGovernance(coreState, vaa.EncodedHex(), wormhole.PubKeys(guardians())))
	if err != nil {
		return "", nil, fmt.Errorf("devnet: governance: %w", err)
	}
	next, ok := result.First(wormhole.CoreStateTemplate)
	if !ok {
		return "", nil, fmt.Errorf("devnet: governance at offset %d made no CoreState", result.Offset)
	}
	return next.ContractID, result, nil
}
