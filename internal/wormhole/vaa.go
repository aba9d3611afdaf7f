package wormhole

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/sha3"
)

// VAA is a Wormhole message that guardians have signed, version 1. Its encoding, big-endian:
//
//	version u8 = 1 | guardian set index u32 | n u8 | n × (guardian index u8, r 32, s 32, v u8) | body
type VAA struct {
	GuardianSetIndex uint32
	// Signatures are at most 255. A set's VAA has them in strictly ascending order of guardian index; that is a rule of
	// verification, not of the encoding.
	Signatures []Signature
	VAABody
}

// VAABody is what the guardians sign. Its encoding, big-endian:
//
//	timestamp u32 | nonce u32 | emitter chain u16 | emitter address 32 | sequence u64 | consistency level u8 | payload
type VAABody struct {
	// Timestamp is in seconds since 1970-01-01T00:00:00Z.
	Timestamp        uint32
	Nonce            uint32
	EmitterChain     uint16
	EmitterAddress   [32]byte
	Sequence         uint64
	ConsistencyLevel uint8
	// Payload is the rest, of any length.
	Payload []byte
}

// Signature is one guardian's signature of the digest.
type Signature struct {
	GuardianIndex uint8
	R, S          [32]byte
	// V is the recovery id: 0 or 1 as a rule, 27 or 28 from some tools. The ledger ignores it.
	V uint8
}

// MaxVAATextBytes bounds the text of a VAA, in any spelling: 1 MiB. The largest VAA on mainnet has some 2 KB; a ledger command
// with a VAA beyond this would exceed the participant's own message limits long before.
const MaxVAATextBytes = 1 << 20

const (
	vaaVersion     = 1
	headerBytes    = 1 + 4 + 1
	signatureBytes = 1 + 32 + 32 + 1
	bodyHeadBytes  = 4 + 4 + 2 + 32 + 8 + 1
)

// ParseVAA reads a VAA's encoding. It refuses, with the ledger's words (*Rule), another version (RuleVAAVersion) and an
// encoding that ends too early (RuleVAATruncated). The result shares no memory with the input.
func ParseVAA(encoded []byte) (*VAA, error) {
	if len(encoded) < 1 {
		return nil, truncated()
	}
	if encoded[0] != vaaVersion {
		return nil, numbered(RuleVAAVersion, "unsupported VAA version: ", int64(encoded[0]))
	}
	if len(encoded) < headerBytes {
		return nil, truncated()
	}
	vaa := &VAA{GuardianSetIndex: binary.BigEndian.Uint32(encoded[1:])}
	count := int(encoded[5])
	rest := encoded[headerBytes:]
	if len(rest) < count*signatureBytes+bodyHeadBytes {
		return nil, truncated()
	}
	vaa.Signatures = make([]Signature, count)
	for i := range vaa.Signatures {
		sig := rest[:signatureBytes]
		rest = rest[signatureBytes:]
		vaa.Signatures[i] = Signature{GuardianIndex: sig[0], R: [32]byte(sig[1:33]), S: [32]byte(sig[33:65]), V: sig[65]}
	}
	vaa.VAABody = VAABody{
		Timestamp:        binary.BigEndian.Uint32(rest),
		Nonce:            binary.BigEndian.Uint32(rest[4:]),
		EmitterChain:     binary.BigEndian.Uint16(rest[8:]),
		EmitterAddress:   [32]byte(rest[10:42]),
		Sequence:         binary.BigEndian.Uint64(rest[42:]),
		ConsistencyLevel: rest[50],
		Payload:          append([]byte{}, rest[bodyHeadBytes:]...),
	}
	return vaa, nil
}

func truncated() *Rule { return rule(RuleVAATruncated, "unexpected end of bytes") }

// Encode is the body's encoding.
func (b *VAABody) Encode() []byte {
	out := make([]byte, 0, bodyHeadBytes+len(b.Payload))
	out = binary.BigEndian.AppendUint32(out, b.Timestamp)
	out = binary.BigEndian.AppendUint32(out, b.Nonce)
	out = binary.BigEndian.AppendUint16(out, b.EmitterChain)
	out = append(out, b.EmitterAddress[:]...)
	out = binary.BigEndian.AppendUint64(out, b.Sequence)
	out = append(out, b.ConsistencyLevel)
	return append(out, b.Payload...)
}

// Digest is keccak256(keccak256(body)): what the guardians sign and what a replay node stores.
func (b *VAABody) Digest() Digest { return Digest(keccak256(keccak256(b.Encode()))) }

// Encode is the VAA's encoding: what ParseVAA read. A VAA made by hand must not have more than 255 signatures; those beyond are
// left out.
func (v *VAA) Encode() []byte {
	signatures := v.Signatures[:min(len(v.Signatures), 255)]
	out := make([]byte, 0, headerBytes+len(signatures)*signatureBytes+bodyHeadBytes+len(v.Payload))
	out = append(out, vaaVersion)
	out = binary.BigEndian.AppendUint32(out, v.GuardianSetIndex)
	out = append(out, byte(len(signatures)))
	for _, sig := range signatures {
		out = append(out, sig.GuardianIndex)
		out = append(out, sig.R[:]...)
		out = append(out, sig.S[:]...)
		out = append(out, sig.V)
	}
	return append(out, v.VAABody.Encode()...)
}

// EncodedHex is the encoding in lowercase hex, as the choices take it.
func (v *VAA) EncodedHex() string { return hex.EncodeToString(v.Encode()) }

func keccak256(data []byte) []byte {
	h := sha3.NewLegacyKeccak256()
	h.Write(data)
	return h.Sum(nil)
}

// DecodeVAAText reads a VAA's bytes from the spellings that tools use: hex in any case, with or without 0x, and base64,
// standard or URL-safe, with or without padding. It says what was wrong otherwise. Text in hex digits only is hex: the base64
// of a version 1 VAA begins with "A" and a letter that is no hex digit, for every guardian set index below 2,684,354,560.
func DecodeVAAText(text string) ([]byte, error) {
	switch {
	case text == "":
		return nil, errors.New("VAA: empty text")
	case len(text) > MaxVAATextBytes:
		return nil, fmt.Errorf("VAA: text of %d bytes, at most %d are accepted", len(text), MaxVAATextBytes)
	case strings.ContainsAny(text, " \t\r\n"):
		return nil, errors.New("VAA: white space in the text")
	}
	digits := trim0x(text)
	if prefixed := len(digits) != len(text); prefixed || checkHex(digits) == nil {
		if err := checkHex(digits); err != nil {
			return nil, fmt.Errorf("VAA: after 0x: %w", err)
		}
		if digits == "" {
			return nil, errors.New("VAA: no digits after 0x")
		}
		if len(digits)%2 != 0 {
			return nil, fmt.Errorf("VAA: odd number of hex digits: %d", len(digits))
		}
		decoded, err := hex.DecodeString(digits)
		if err != nil {
			return nil, fmt.Errorf("VAA: %w", err)
		}
		return decoded, nil
	}
	return decodeBase64(text)
}

func decodeBase64(text string) ([]byte, error) {
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		if strings.ContainsAny(text, "+/") {
			return nil, errors.New("VAA: neither hex nor base64: standard and URL-safe characters mixed")
		}
		encoding = base64.RawURLEncoding
	}
	unpadded := strings.TrimRight(text, "=")
	if padding := len(text) - len(unpadded); padding > 0 && (padding > 2 || len(text)%4 != 0) {
		return nil, errors.New("VAA: neither hex nor base64: wrong padding")
	}
	decoded, err := encoding.Strict().DecodeString(unpadded)
	if err != nil {
		return nil, fmt.Errorf("VAA: neither hex nor base64: %w", err)
	}
	return decoded, nil
}
