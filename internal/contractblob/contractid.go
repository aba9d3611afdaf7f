package contractblob

import (
	"encoding/hex"
	"fmt"
)

// IDVersion is the version of a contract id's suffix, which chooses the contract hash.
type IDVersion uint8

const (
	// V10 is that of Canton up to 3.2.
	V10 IDVersion = 0x10
	// V11 is that of Canton 3.3.
	V11 IDVersion = 0x11
	// V12 is that of Canton 3.4 and later.
	V12 IDVersion = 0x12
)

// String is "V10", "V11" or "V12"; other versions are named by their bytes.
func (v IDVersion) String() string {
	switch v {
	case V10:
		return "V10"
	case V11:
		return "V11"
	case V12:
		return "V12"
	default:
		return fmt.Sprintf("ca%02x", uint8(v))
	}
}

// The layout of a contract id.
const (
	contractIDBytes    = 1 + discriminatorBytes + SuffixBytes
	discriminatorBytes = 32
	unicumBytes        = 32
	// SuffixBytes is the length of a suffix: two bytes of version, two of multihash header, the unicum.
	SuffixBytes = 2 + 2 + unicumBytes

	suffixAt = 1 + discriminatorBytes
	unicumAt = suffixAt + 4

	idVersionMark   = 0xca // the first byte of a suffix's version
	multihashSHA256 = 0x12
)

// ContractID is the id of a contract as it is on a ledger: 69 bytes, with a suffix of a known version. Every ContractID that
// this package gives is well formed; the zero value is no id at all. ContractIDs can be compared with ==.
type ContractID struct{ raw [contractIDBytes]byte }

// ParseContractID reads a contract id in its one canonical form, 138 lowercase hex digits. Its errors wrap ErrUnsupported for
// ids of other kinds: a relative or local one (without a suffix, as inside of a transaction that is not yet on a ledger), one of the
// second generation (01…), one with a suffix of an unknown version. All others wrap ErrMalformed.
func ParseContractID(s string) (ContractID, error) {
	// Longer ids of other kinds exist, up to 127 bytes. Nothing beyond that is looked at.
	if len(s) > 2*maxAnyContractIDBytes {
		return ContractID{}, fmt.Errorf("contract id: %w: %d characters, want %d", ErrMalformed, len(s), 2*contractIDBytes)
	}
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f':
		case 'A' <= c && c <= 'F':
			return ContractID{}, fmt.Errorf("contract id: %w: upper-case hex digit at character %d, want lower case", ErrMalformed, i+1)
		default:
			return ContractID{}, fmt.Errorf("contract id: %w: character %d is not a hex digit", ErrMalformed, i+1)
		}
	}
	if len(s)%2 != 0 {
		return ContractID{}, fmt.Errorf("contract id: %w: %d hex digits, an odd number", ErrMalformed, len(s))
	}
	var raw [maxAnyContractIDBytes]byte
	n, err := hex.Decode(raw[:], []byte(s))
	if err != nil {
		return ContractID{}, fmt.Errorf("contract id: %w: %w", ErrMalformed, err)
	}
	return ContractIDFromBytes(raw[:n])
}

// maxAnyContractIDBytes is the greatest length of a contract id of any kind (Canton's limit: 1 + 32 + 94).
const maxAnyContractIDBytes = 127

// ContractIDFromBytes is ParseContractID for the id's bytes.
func ContractIDFromBytes(raw []byte) (ContractID, error) {
	var id ContractID
	switch {
	case len(raw) == 0:
		return id, fmt.Errorf("contract id: %w: empty", ErrMalformed)
	case raw[0] == 0x01:
		return id, fmt.Errorf("contract id: %w: an id of the second generation (01…)", ErrUnsupported)
	case raw[0] != 0x00:
		return id, fmt.Errorf("contract id: %w: starts with %02x, want 00", ErrMalformed, raw[0])
	case len(raw) == suffixAt:
		return id, fmt.Errorf("contract id: %w: a relative id, without a suffix", ErrUnsupported)
	case len(raw) < suffixAt+2:
		return id, fmt.Errorf("contract id: %w: %d bytes, want %d", ErrMalformed, len(raw), contractIDBytes)
	}
	if mark, version := raw[suffixAt], IDVersion(raw[suffixAt+1]); mark != idVersionMark || version < V10 || version > V12 {
		return id, fmt.Errorf("contract id: %w: suffix of version %x, known are ca10 to ca12", ErrUnsupported, raw[suffixAt:suffixAt+2])
	}
	if len(raw) != contractIDBytes {
		return id, fmt.Errorf("contract id: %w: %d bytes, want %d", ErrMalformed, len(raw), contractIDBytes)
	}
	if raw[suffixAt+2] != multihashSHA256 || raw[suffixAt+3] != unicumBytes {
		return id, fmt.Errorf("contract id: %w: suffix's hash starts with %x, want 1220 (SHA-256)", ErrMalformed, raw[suffixAt+2:suffixAt+4])
	}
	copy(id.raw[:], raw)
	return id, nil
}

// newContractID joins a discriminator and a suffix made by Suffix.
func newContractID(discriminator [discriminatorBytes]byte, suffix [SuffixBytes]byte) ContractID {
	var id ContractID
	copy(id.raw[1:], discriminator[:])
	copy(id.raw[suffixAt:], suffix[:])
	return id
}

// String is the id in its canonical form, 138 lowercase hex digits; "" for the zero value.
func (id ContractID) String() string {
	if id.IsZero() {
		return ""
	}
	var digits [2 * contractIDBytes]byte
	hex.Encode(digits[:], id.raw[:])
	return string(digits[:])
}

// is reports whether s is the id's canonical form.
func (id *ContractID) is(s string) bool {
	var digits [2 * contractIDBytes]byte
	hex.Encode(digits[:], id.raw[:])
	return string(digits[:]) == s
}

// Bytes is a copy of the id's 69 bytes.
func (id ContractID) Bytes() []byte { return append([]byte(nil), id.raw[:]...) }

// IsZero reports whether this is no id at all.
func (id ContractID) IsZero() bool { return id == ContractID{} }

// Version is the version of the id's suffix; 0 for the zero value.
func (id ContractID) Version() IDVersion { return IDVersion(id.raw[suffixAt+1]) }

// Discriminator is the id's 32 bytes before the suffix, which no hash covers.
func (id ContractID) Discriminator() [32]byte { return [32]byte(id.raw[1:suffixAt]) }

// Suffix is the id's last 36 bytes: version, multihash header and unicum.
func (id ContractID) Suffix() [SuffixBytes]byte { return [SuffixBytes]byte(id.raw[suffixAt:]) }
