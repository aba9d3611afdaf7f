// Package devnet makes a small Wormhole on any participant, simulated or real: the parties, the anchors (CoreState with a development
// guardian set, the two registries), some apps with a replay trie each, and VAAs for them signed by the development guardians.
//
// It is made once (Make), or made as far as it is missing (Ensure): each step of Ensure looks for what it would make, in the order in which
// one thing needs the other, so that it can be interrupted after any step and goes on from there. What it can't see is a submission of an
// earlier run that is still on its way: its contract would then be made twice, which the next run reports.
//
// The demo, the simulated ledger's command and the end-to-end tests share it. It knows a participant only through package submit, so
// whatever it makes came through the Ledger API. Its guardians' keys are public: nothing that it makes guards anything.
package devnet

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
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
	// Sets are guardian sets that the CoreState has from the start beside set 0, by index: expired ones, say. Set 0 is the current one.
	Sets map[int64]wormhole.GuardianSet
	// User, where set, is let act as each party as it is made or found: where authorization is on, the client's own user needs that.
	User string
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

// Make makes a devnet through the client, on a participant that has the model's packages and none of the parties.
func Make(ctx context.Context, client *submit.Client, options Options) (*World, error) {
	return (&setup{client: client, options: options, world: &World{}}).run(ctx)
}

func (w *World) coreState(more map[int64]wormhole.GuardianSet) *wormhole.CoreState {
	sets := maps.Clone(more)
	if sets == nil {
		sets = map[int64]wormhole.GuardianSet{}
	}
	sets[0] = wormhole.GuardianSet{Keys: []string{wormhole.DevnetGuardian().Address()}}
	return &wormhole.CoreState{
		Operator: w.Operator, GuardianGovernance: w.GuardianGovernance, GuardianObserver: w.GuardianObserver,
		ChainID: chainID, GovernanceChainID: governanceChainID, GovernanceContract: governanceContract,
		GuardianSetIndex:   0,
		GuardianSets:       sets,
		ConsumedGovernance: []string{},
	}
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
func (w *World) UpgradeVAA() (*wormhole.VAA, error) { return w.UpgradeVAATo(wormhole.DevnetGuardian()) }

// UpgradeVAATo replaces the guardian set by the next one, of those guardians (1 to 255). After it the world's own VAAs, which the
// development guardian signs, are no longer of the current set: sign with wormhole.SignVAA.
func (w *World) UpgradeVAATo(guardians ...wormhole.GuardianKey) (*wormhole.VAA, error) {
	payload := binary.BigEndian.AppendUint16(append(append([]byte{}, governanceModule...), guardianSetUpgrade), 0)
	payload = append(binary.BigEndian.AppendUint32(payload, w.set.Load()+1), byte(len(guardians)))
	for _, guardian := range guardians {
		address, err := hex.DecodeString(guardian.Address())
		if err != nil {
			return nil, fmt.Errorf("devnet: the guardian's address: %w", err)
		}
		payload = append(payload, address...)
	}
	return w.governance(payload)
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
