package wormhole

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"time"
)

// guardianSetGrace is how long a guardian set stays valid after it was replaced.
const guardianSetGrace = 24 * time.Hour

// coreModule is the module of governance payloads for the core bridge: "Core", right-aligned in 32 bytes.
const coreModule = "00000000000000000000000000000000000000000000000000000000436f7265"

// The core bridge's governance actions that the model carries out.
const (
	actionGuardianSetUpgrade = 2
	actionSetMessageFee      = 3
)

// SubmitGovernance is the choice SubmitGovernanceVAA: it gives the state that replaces this one. now is the ledger time: a
// replaced guardian set expires a day after it. The error is a *Rule.
func (s *CoreState) SubmitGovernance(encodedVAA string, keys []PubKey, now time.Time, expiry Expiry) (*CoreState, error) {
	v, err := s.VerifyEncoded(encodedVAA, keys, now, expiry)
	if err != nil {
		return nil, err
	}
	digest := v.Digest().String()
	switch {
	case int64(v.GuardianSetIndex) != s.GuardianSetIndex:
		return nil, rule(RuleGovernanceNotCurrentSet, "governance VAA is not signed by the current guardian set")
	case int64(v.EmitterChain) != s.GovernanceChainID:
		return nil, rule(RuleGovernanceOtherChain, "governance VAA is not from the governance chain")
	case hex.EncodeToString(v.EmitterAddress[:]) != s.GovernanceContract:
		return nil, rule(RuleGovernanceOtherContract, "governance VAA is not from the governance contract")
	case slices.Contains(s.ConsumedGovernance, digest):
		return nil, rule(RuleGovernanceConsumed, "governance VAA already consumed")
	}
	next, err := s.govern(v.Payload, now)
	if err != nil {
		return nil, err
	}
	next.ConsumedGovernance = append(next.ConsumedGovernance, digest)
	slices.Sort(next.ConsumedGovernance)
	return next, nil
}

// govern carries out a payload: module 32 | action u8 | chain u16 | the action's own.
func (s *CoreState) govern(payload []byte, now time.Time) (*CoreState, error) {
	if len(payload) < 35 {
		return nil, truncated()
	}
	if hex.EncodeToString(payload[:32]) != coreModule {
		return nil, rule(RuleGovernanceOtherModule, "governance VAA is for a different module")
	}
	action, chain, rest := payload[32], int64(binary.BigEndian.Uint16(payload[33:])), payload[35:]
	switch action {
	case actionSetMessageFee:
		return s.setMessageFee(chain, rest)
	case actionGuardianSetUpgrade:
		return s.upgradeGuardianSet(chain, rest, now)
	default:
		return nil, numbered(RuleGovernanceUnknownAction, "unsupported governance action: ", int64(action))
	}
}

// setMessageFee takes fee u256. It is for our chain only.
func (s *CoreState) setMessageFee(chain int64, rest []byte) (*CoreState, error) {
	if len(rest) < 32 {
		return nil, truncated()
	}
	if chain != s.ChainID {
		return nil, rule(RuleGovernanceForOtherChain, "governance VAA is for a different chain")
	}
	if len(rest) > 32 {
		return nil, rule(RuleGovernanceTrailingBytes, "trailing bytes in governance payload")
	}
	for _, b := range rest[:24] {
		if b != 0 {
			return nil, numberTooLarge()
		}
	}
	fee := binary.BigEndian.Uint64(rest[24:])
	if fee > math.MaxInt64 {
		return nil, numberTooLarge()
	}
	next := s.clone()
	next.MessageFee = int64(fee)
	return next, nil
}

// upgradeGuardianSet takes index u32 | n u8 | n × address 20. It is for our chain or, as chain 0, for all.
func (s *CoreState) upgradeGuardianSet(chain int64, rest []byte, now time.Time) (*CoreState, error) {
	if len(rest) < 5 {
		return nil, truncated()
	}
	index, count, rest := int64(binary.BigEndian.Uint32(rest)), int(rest[4]), rest[5:]
	if len(rest) < count*20 {
		return nil, truncated()
	}
	switch {
	case chain != 0 && chain != s.ChainID:
		return nil, rule(RuleGovernanceForOtherChain, "governance VAA is for a different chain")
	case len(rest) > count*20:
		return nil, rule(RuleGovernanceTrailingBytes, "trailing bytes in governance payload")
	case count == 0:
		return nil, rule(RuleGovernanceEmptySet, "new guardian set is empty")
	case s.GuardianSetIndex == math.MaxInt64 || index != s.GuardianSetIndex+1:
		return nil, rule(RuleGovernanceNotNextSet, "new guardian set index must be the current one plus 1")
	}
	keys := make([]string, count)
	for i := range keys {
		keys[i] = hex.EncodeToString(rest[i*20 : (i+1)*20])
	}
	next := s.clone()
	if old, ok := next.GuardianSets[s.GuardianSetIndex]; ok {
		expiration := now.UTC().Truncate(time.Microsecond).Add(guardianSetGrace)
		old.Expiration = &expiration
		next.GuardianSets[s.GuardianSetIndex] = old
	}
	next.GuardianSets[index] = GuardianSet{Keys: keys}
	next.GuardianSetIndex = index
	return next, nil
}

// clone copies the state; the guardian sets' keys are shared, nothing changes them.
func (s *CoreState) clone() *CoreState {
	next := *s
	next.GuardianSets = maps.Clone(s.GuardianSets)
	if next.GuardianSets == nil {
		next.GuardianSets = map[int64]GuardianSet{}
	}
	next.ConsumedGovernance = slices.Clone(s.ConsumedGovernance)
	return &next
}
