package wormhole

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// PubKey is one element of the choices' pubKeys argument: a guardian's index and its public key. Daml can check a signature
// and can't recover its key, so the submitter supplies the keys.
type PubKey struct {
	// Index is the guardian's index in its set, 0..254.
	Index int64
	// Key is the uncompressed key, 65 bytes beginning with 04, in lowercase hex. Text, because the ledger takes text and
	// refuses a key in any other spelling; Verify does the same.
	Key string
}

// Quorum is the number of signatures that a set of n guardians needs: floor(2n/3) + 1.
func Quorum(n int) int { return n*2/3 + 1 }

// GuardianAddress is the address of a public key, in lowercase hex: the last 20 bytes of the keccak256 of its 64 bytes
// without the leading 04. It is "" for anything but an uncompressed key of 65 bytes; whether the point is on the curve is not
// looked at.
func GuardianAddress(pub []byte) string {
	if len(pub) != 65 || pub[0] != 0x04 {
		return ""
	}
	return hex.EncodeToString(keccak256(pub[1:])[12:])
}

// addressOfText is GuardianAddress of a key in lowercase hex, "" for any other text, as the model's addressOf.
func addressOfText(key string) string {
	if len(key) != 130 || !isLowerHex(key) {
		return ""
	}
	pub, err := hex.DecodeString(key)
	if err != nil {
		return ""
	}
	return GuardianAddress(pub)
}

// RecoverKeys recovers the signing guardians' keys from the signatures, in the order of the signatures: the pubKeys argument
// for this VAA.
//
// With a set, the key wanted is the one of the guardian's address. v's recovery id is tried first and then every other, because
// the ledger does not look at v and a VAA whose v is wrong is good. Where none fits (signed by another key, or a damaged
// signature) the key that v gives is returned all the same: the ledger's verdict on it is what a submitter would get. Without
// a set only v counts.
//
// The error joins one error for each signature for which the wanted key was not found; the keys are useful even then. A
// signature from which no key at all can be recovered has no entry.
func (v *VAA) RecoverKeys(set *GuardianSet) ([]PubKey, error) {
	digest := v.Digest()
	keys := make([]PubKey, 0, len(v.Signatures))
	var faults []error
	for i := range v.Signatures {
		sig := &v.Signatures[i]
		var address string
		if set != nil {
			if int(sig.GuardianIndex) >= len(set.Keys) {
				faults = append(faults, fmt.Errorf("recover key of guardian %d: the set has %d guardians", sig.GuardianIndex, len(set.Keys)))
			} else {
				address = set.Keys[sig.GuardianIndex]
			}
		}
		key, err := sig.recover(digest, address)
		if err != nil {
			faults = append(faults, fmt.Errorf("recover key of guardian %d: %w", sig.GuardianIndex, err))
		}
		if key != nil {
			keys = append(keys, PubKey{Index: int64(sig.GuardianIndex), Key: hex.EncodeToString(key)})
		}
	}
	return keys, errors.Join(faults...)
}

// recover returns the key of the address, or with an error the key that v gives, if any. An empty address asks for v's key.
func (s *Signature) recover(digest Digest, address string) ([]byte, error) {
	id := s.V
	if id >= 27 {
		id -= 27
	}
	byV, err := s.recoverBy(id, digest)
	if err == nil && (address == "" || GuardianAddress(byV) == address) {
		return byV, nil
	}
	if address == "" {
		return nil, err
	}
	for other := range byte(4) {
		if other == id {
			continue
		}
		if key, err := s.recoverBy(other, digest); err == nil && GuardianAddress(key) == address {
			return key, nil
		}
	}
	return byV, errors.New("no recovery id gives the guardian's key")
}

// recoverBy recovers with one recovery id, 0..3.
func (s *Signature) recoverBy(id byte, digest Digest) ([]byte, error) {
	if id > 3 {
		return nil, fmt.Errorf("recovery id %d is out of range", s.V)
	}
	var compact [65]byte
	compact[0] = 27 + id
	copy(compact[1:33], s.R[:])
	copy(compact[33:], s.S[:])
	key, _, err := ecdsa.RecoverCompact(compact[:], digest[:])
	if err != nil {
		return nil, err
	}
	return key.SerializeUncompressed(), nil
}

// validBy reports whether the signature of the digest is valid under the key. As on the ledger, s may be in the upper half.
func (s *Signature) validBy(pub []byte, digest Digest) bool {
	key, err := secp256k1.ParsePubKey(pub)
	if err != nil {
		return false
	}
	var r, sc secp256k1.ModNScalar
	if r.SetBytes(&s.R) != 0 || sc.SetBytes(&s.S) != 0 || r.IsZero() || sc.IsZero() {
		return false
	}
	return ecdsa.NewSignature(&r, &sc).Verify(digest[:], key)
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}
