package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// The column kind, which tells how a payload is stored.
const (
	kindReplayNode         = "replay_node"
	kindCoreState          = "core_state"
	kindReplayRootRegistry = "replay_root_registry"
	kindEmitterRegistry    = "emitter_registry"
	kindEmitter            = "emitter"
	kindMalformed          = "malformed"
)

// The types below are what the column payload holds. They are a format: a field is added with omitempty or not at all, and a
// change of meaning is a migration. Integers are JSON numbers, which jsonb keeps exactly.
type (
	storedCoreState struct {
		Operator           string                      `json:"operator"`
		GuardianGovernance string                      `json:"guardianGovernance"`
		GuardianObserver   string                      `json:"guardianObserver"`
		ChainID            int64                       `json:"chainId"`
		GovernanceChainID  int64                       `json:"governanceChainId"`
		GovernanceContract string                      `json:"governanceContract"`
		GuardianSetIndex   int64                       `json:"guardianSetIndex"`
		GuardianSets       map[int64]storedGuardianSet `json:"guardianSets"`
		MessageFee         int64                       `json:"messageFee"`
		ConsumedGovernance []string                    `json:"consumedGovernance"`
	}
	storedGuardianSet struct {
		Keys []string `json:"keys"`
		// ExpirationMicros is in microseconds since 1970, absent for ever.
		ExpirationMicros *int64 `json:"expirationMicros,omitempty"`
	}
	storedReplayRootRegistry struct {
		Operator string `json:"operator"`
		// Granted is null where the package version keeps no list.
		Granted []string `json:"granted"`
	}
	storedEmitterRegistry struct {
		Operator         string `json:"operator"`
		GuardianObserver string `json:"guardianObserver"`
		NextID           int64  `json:"nextId"`
	}
	storedEmitter struct {
		Operator       string `json:"operator"`
		Owner          string `json:"owner"`
		EmitterID      int64  `json:"emitterId"`
		EmitterAddress string `json:"emitterAddress"`
		Sequence       int64  `json:"sequence"`
	}
	storedMalformed struct {
		Template string `json:"template"`
		Operator string `json:"operator"`
		Consumer string `json:"consumer"`
		Fault    string `json:"fault"`
	}
)

// encodePayload is the columns kind and payload of any contract but a replay node.
func encodePayload(p wormhole.Payload) (kind, payload string, err error) {
	var stored any
	switch p := p.(type) {
	case *wormhole.CoreState:
		sets := make(map[int64]storedGuardianSet, len(p.GuardianSets))
		for i, set := range p.GuardianSets {
			sets[i] = storedGuardianSet{Keys: set.Keys}
			if set.Expiration != nil {
				micros := set.Expiration.UnixMicro()
				sets[i] = storedGuardianSet{Keys: set.Keys, ExpirationMicros: &micros}
			}
		}
		kind, stored = kindCoreState, storedCoreState{p.Operator, p.GuardianGovernance, p.GuardianObserver, p.ChainID, p.GovernanceChainID, p.GovernanceContract,
			p.GuardianSetIndex, sets, p.MessageFee, p.ConsumedGovernance}
	case *wormhole.ReplayRootRegistry:
		kind, stored = kindReplayRootRegistry, storedReplayRootRegistry(*p)
	case *wormhole.EmitterRegistry:
		kind, stored = kindEmitterRegistry, storedEmitterRegistry(*p)
	case *wormhole.Emitter:
		kind, stored = kindEmitter, storedEmitter(*p)
	case *wormhole.Malformed:
		// What is malformed may hold what no text column can.
		kind, stored = kindMalformed, storedMalformed{storable(p.Template), storable(p.Operator), storable(p.Consumer), storable(p.Fault)}
	default:
		return "", "", fmt.Errorf("no way to store a payload of type %T", p)
	}
	text, err := json.Marshal(stored)
	return kind, string(text), err
}

// decodePayload reads what encodePayload gave.
func decodePayload(kind string, payload []byte) (wormhole.Payload, error) {
	switch kind {
	case kindCoreState:
		s, err := decode[storedCoreState](payload)
		if err != nil {
			return nil, err
		}
		sets := make(map[int64]wormhole.GuardianSet, len(s.GuardianSets))
		for i, set := range s.GuardianSets {
			sets[i] = wormhole.GuardianSet{Keys: set.Keys}
			if set.ExpirationMicros != nil {
				expiration := time.UnixMicro(*set.ExpirationMicros).UTC()
				sets[i] = wormhole.GuardianSet{Keys: set.Keys, Expiration: &expiration}
			}
		}
		return &wormhole.CoreState{Operator: s.Operator, GuardianGovernance: s.GuardianGovernance, GuardianObserver: s.GuardianObserver,
			ChainID: s.ChainID, GovernanceChainID: s.GovernanceChainID, GovernanceContract: s.GovernanceContract, GuardianSetIndex: s.GuardianSetIndex,
			GuardianSets: sets, MessageFee: s.MessageFee, ConsumedGovernance: s.ConsumedGovernance}, nil
	case kindReplayRootRegistry:
		s, err := decode[storedReplayRootRegistry](payload)
		return (*wormhole.ReplayRootRegistry)(s), err
	case kindEmitterRegistry:
		s, err := decode[storedEmitterRegistry](payload)
		return (*wormhole.EmitterRegistry)(s), err
	case kindEmitter:
		s, err := decode[storedEmitter](payload)
		return (*wormhole.Emitter)(s), err
	case kindMalformed:
		s, err := decode[storedMalformed](payload)
		return (*wormhole.Malformed)(s), err
	default:
		return nil, fmt.Errorf("unknown kind %q", kind)
	}
}

func decode[T any](payload []byte) (*T, error) {
	stored := new(T)
	if err := json.Unmarshal(payload, stored); err != nil {
		return nil, fmt.Errorf("reading the payload: %w", err)
	}
	return stored, nil
}

// storable is text as PostgreSQL can hold it: UTF-8 without NUL. It is for texts that explain, never for names or ids.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
