package wormhole

import (
	"encoding/hex"
	"fmt"
	"math"
	"time"
)

// Expiry is the rule by which a guardian set's expiration time is read.
type Expiry uint8

const (
	// ActiveBefore: active while now < expiration. The genuine package's rule, and the zero value.
	ActiveBefore Expiry = iota
	// ActiveUntil: active while now <= expiration. The rule of wormhole-core 0.1.0 in this repository, which a simulated
	// ledger keeps.
	ActiveUntil
)

// Active reports whether the set verifies at now.
func (g *GuardianSet) Active(now time.Time, expiry Expiry) bool {
	if g.Expiration == nil {
		return true
	}
	if expiry == ActiveUntil {
		return !now.After(*g.Expiration)
	}
	return now.Before(*g.Expiration)
}

// Verify checks the VAA against the guardian set that it names, by the genuine package's expiry rule: the ledger's checks, in
// its order. The error is a *Rule with the ledger's message, nil if the VAA is good.
func (s *CoreState) Verify(v *VAA, keys []PubKey, now time.Time) error {
	return s.verify(v, keys, now, ActiveBefore)
}

// VerifyEncoded is ParseAndVerifyVAA: it takes the choice's own arguments, so that what is wrong with the text is found too.
// The error is a *Rule.
func (s *CoreState) VerifyEncoded(encodedVAA string, keys []PubKey, now time.Time, expiry Expiry) (*VAA, error) {
	v, err := parseEncoded(encodedVAA)
	if err != nil {
		return nil, err
	}
	if err := s.verify(v, keys, now, expiry); err != nil {
		return nil, err
	}
	return v, nil
}

// VerifyAndConsume is VerifyAndConsumeVAA: verify, bind the node to the consumer and to the state's operator, consume the
// digest. The error is a *Rule.
func (s *CoreState) VerifyAndConsume(encodedVAA string, keys []PubKey, consumer string, node *ReplayNode, now time.Time, expiry Expiry) (*VAA, ConsumeResult, error) {
	v, err := s.VerifyEncoded(encodedVAA, keys, now, expiry)
	if err != nil {
		return nil, ConsumeResult{}, err
	}
	if node.Consumer != consumer {
		return nil, ConsumeResult{}, rule(RuleOtherConsumer, "replay node belongs to a different consumer")
	}
	if node.Operator != s.Operator {
		return nil, ConsumeResult{}, rule(RuleOtherOperator, "replay node belongs to a different operator")
	}
	result, err := node.Consume(v.Digest().String())
	if err != nil {
		return nil, ConsumeResult{}, err
	}
	return v, result, nil
}

// parseEncoded is the model's parseVAA.
func parseEncoded(encoded string) (*VAA, error) {
	if len(encoded)%2 != 0 || !isLowerHex(encoded) {
		return nil, rule(RuleVAANotHex, "VAA must be bytes of lowercase hex")
	}
	raw, err := hex.DecodeString(encoded)
	if err != nil {
		return nil, rule(RuleVAANotHex, "VAA must be bytes of lowercase hex")
	}
	return ParseVAA(raw)
}

func (s *CoreState) verify(v *VAA, keys []PubKey, now time.Time, expiry Expiry) error {
	return s.VerifyWith(v, now, expiry, func(set *GuardianSet) error { return set.VerifySignatures(v, keys) })
}

// VerifyWith is Verify with its last check and only costly one, that of the signatures against the named set, left to the caller, who may
// have made it before. signatures is called once if the checks before it pass; its error is returned as it is.
func (s *CoreState) VerifyWith(v *VAA, now time.Time, expiry Expiry, signatures func(*GuardianSet) error) error {
	// The ledger's numbers are 63 bits; the sequence is the only one of a VAA that has more, and it is read while parsing.
	if v.Sequence > math.MaxInt64 {
		return numberTooLarge()
	}
	set, ok := s.GuardianSets[int64(v.GuardianSetIndex)]
	if !ok {
		return rule(RuleUnknownGuardianSet, "unknown guardian set index")
	}
	if !set.Active(now, expiry) {
		return rule(RuleGuardianSetExpired, "guardian set has expired")
	}
	return signatures(&set)
}

// VerifySignatures checks the VAA's signatures against the set whatever its index, expiry and sequence: quorum, and then for
// each signature the order, the guardian's index, its key, its address, the signature itself. The error is a *Rule.
func (g *GuardianSet) VerifySignatures(v *VAA, keys []PubKey) error {
	return g.verifySignatures(v, func(sig *Signature, _ Digest) (string, error) {
		index := int64(sig.GuardianIndex)
		key, ok := keyOf(index, keys)
		if !ok {
			return "", numbered(RulePublicKeyMissing, "missing public key for guardian index: ", index)
		}
		if addressOfText(key) != g.Keys[index] {
			return "", numbered(RulePublicKeyMismatch, "public key does not match guardian address at index ", index)
		}
		return key, nil
	})
}

// RecoverSignatures is VerifySignatures with the guardians' own keys, which it recovers: a verdict on the VAA that depends on nobody's keys.
// A signature from which the guardian's key can't be recovered is not the guardian's, so that the ledger, given that key, calls
// it invalid. The keys, in the order of the signatures, are the pubKeys with which the ledger accepts the VAA; nil with an error, which is a
// *Rule. What it does is bounded by the set's size, whatever signatures the VAA claims to have.
func (g *GuardianSet) RecoverSignatures(v *VAA) ([]PubKey, error) {
	var keys []PubKey
	err := g.verifySignatures(v, func(sig *Signature, digest Digest) (string, error) {
		index := int64(sig.GuardianIndex)
		recovered, err := sig.recover(digest, g.Keys[index])
		if err != nil || GuardianAddress(recovered) != g.Keys[index] { // no key has the address "", which recover takes for any
			return "", invalidSignature(index)
		}
		key := hex.EncodeToString(recovered)
		keys = append(keys, PubKey{Index: index, Key: key})
		return key, nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// verifySignatures makes the checks with the keys that keyFor gives for a signature whose index is in the set.
func (g *GuardianSet) verifySignatures(v *VAA, keyFor func(*Signature, Digest) (string, error)) error {
	if have, need := len(v.Signatures), Quorum(len(g.Keys)); have < need {
		return &Rule{Code: RuleNoQuorum, Message: fmt.Sprintf("no quorum: have %d, need %d", have, need), Have: have, Need: need}
	}
	digest := v.Digest()
	last := int64(-1)
	for i := range v.Signatures {
		sig := &v.Signatures[i]
		index := int64(sig.GuardianIndex)
		if index <= last {
			return &Rule{Code: RuleSignaturesNotAscending, Message: "signature indices not strictly ascending", Number: index}
		}
		last = index
		if index >= int64(len(g.Keys)) {
			return numbered(RuleGuardianOutOfRange, "guardian index out of range: ", index)
		}
		key, err := keyFor(sig, digest)
		if err != nil {
			return err
		}
		pub, err := hex.DecodeString(key)
		if err != nil || !sig.validBy(pub, digest) {
			return invalidSignature(index)
		}
	}
	return nil
}

func invalidSignature(index int64) *Rule {
	return numbered(RuleInvalidSignature, "invalid signature for guardian index ", index)
}

// keyOf is the first key given for the index.
func keyOf(index int64, keys []PubKey) (string, bool) {
	for _, k := range keys {
		if k.Index == index {
			return k.Key, true
		}
	}
	return "", false
}

func numberTooLarge() *Rule { return rule(RuleNumberTooLarge, "number exceeds 63 bits") }
