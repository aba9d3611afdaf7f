package replayguard

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ID is what is admitted once: a hash of the identity of what is submitted. Two ids are equal exactly if their identities
// are.
type ID [32]byte

// String is the id in 64 lowercase hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Subject is the identity of a redemption: which digest, in which replay scope.
type Subject struct {
	// Operator and Consumer are party ids, as the ledger spells them.
	Operator, Consumer string
	// Namespace is nil where the contract's package version has none, which is another scope than the empty namespace.
	Namespace *string
	// Digest is the VAA's digest. It is bytes and not text, so that no spelling makes a second id; see ParseDigest.
	Digest [32]byte
}

// ID is the subject's id: SHA-256 over an encoding that no other subject has.
func (s Subject) ID() ID { return sha256.Sum256(s.encode()) }

// subjectVersion begins each encoding. Another encoding needs another version, and then has other ids.
const subjectVersion = "replayguard subject 1\x00"

// encode writes each text after its length, so that no two subjects run together: ("a", "bc") and ("ab", "c") differ.
func (s Subject) encode() []byte {
	size := len(subjectVersion) + 3*8 + 1 + len(s.Operator) + len(s.Consumer) + len(s.Digest)
	if s.Namespace != nil {
		size += len(*s.Namespace)
	}
	b := append(make([]byte, 0, size), subjectVersion...)
	b = appendText(b, s.Operator)
	b = appendText(b, s.Consumer)
	if s.Namespace == nil {
		b = append(b, 0)
	} else {
		b = appendText(append(b, 1), *s.Namespace)
	}
	return append(b, s.Digest[:]...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}

// ParseDigest reads a digest from 64 hex digits in any case, with or without 0x, with or without white space around.
// Everything else is an error, so each digest that is accepted is one value, however it was spelled.
func ParseDigest(s string) (digest [32]byte, err error) {
	digits := strings.TrimSpace(s)
	if len(digits) >= 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X') {
		digits = digits[2:]
	}
	if len(digits) != hex.EncodedLen(len(digest)) {
		return digest, fmt.Errorf("replayguard: digest: want %d hex digits, got %d", hex.EncodedLen(len(digest)), len(digits))
	}
	if _, err := hex.Decode(digest[:], []byte(digits)); err != nil {
		var invalid hex.InvalidByteError
		if errors.As(err, &invalid) {
			return [32]byte{}, errors.New("replayguard: digest: a character is not a hex digit")
		}
		return [32]byte{}, fmt.Errorf("replayguard: digest: %w", err)
	}
	return digest, nil
}

// Key is a holder's idempotency key: by it the holder that asks again is known from others that ask. The zero Key is none.
type Key [32]byte

// NewKey makes a key of the text that a caller chose. The empty text makes none.
func NewKey(text string) Key {
	if text == "" {
		return Key{}
	}
	return sha256.Sum256([]byte(text))
}
