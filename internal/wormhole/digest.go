package wormhole

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// DigestNibbles is the length of a digest in hex digits.
const DigestNibbles = 64

// Digest is a VAA's digest: keccak256(keccak256(body)), 32 bytes. Every Digest is well formed; the zero value is the digest
// of 32 zero bytes.
type Digest [32]byte

// ParseDigest reads a digest from hex, in any case, with or without 0x. Everything else is refused with what was wrong:
// white space, other lengths, other characters.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits := trim0x(s)
	if len(digits) != DigestNibbles {
		return d, fmt.Errorf("digest: want %d hex digits, got %d", DigestNibbles, len(digits))
	}
	if err := checkHex(digits); err != nil {
		return d, fmt.Errorf("digest: %w", err)
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return d, fmt.Errorf("digest: %w", err)
	}
	return d, nil
}

// String is the digest in 64 lowercase hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Nibble returns the i-th hex digit's value, i in 0..63.
func (d Digest) Nibble(i int) byte {
	if i%2 == 0 {
		return d[i/2] >> 4
	}
	return d[i/2] & 0x0f
}

// trim0x removes one leading 0x or 0X.
func trim0x(s string) string {
	if len(s) >= 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return s[2:]
	}
	return s
}

// checkHex says which character of s is not a hex digit.
func checkHex(s string) error {
	at := strings.IndexFunc(s, func(r rune) bool {
		return !('0' <= r && r <= '9' || 'a' <= r && r <= 'f' || 'A' <= r && r <= 'F')
	})
	if at >= 0 {
		return fmt.Errorf("character %d is not a hex digit", at+1)
	}
	return nil
}

// MaxPrefixNibbles is the greatest length of a replay node's prefix.
const MaxPrefixNibbles = DigestNibbles - 1

// Prefix is a replay node's prefix: 0 to 63 hex digits. Every Prefix is well formed; the zero value is a root's, "".
type Prefix struct{ nibbles string } // lowercase hex

// ErrPrefixTooLong is wrapped by ParsePrefix for more than 63 digits.
var ErrPrefixTooLong = errors.New("a prefix has at most 63 hex digits")

// ParsePrefix reads a prefix from hex, in any case, with or without 0x.
func ParsePrefix(s string) (Prefix, error) {
	digits := trim0x(s)
	if len(digits) > MaxPrefixNibbles {
		return Prefix{}, fmt.Errorf("prefix: %w, got %d", ErrPrefixTooLong, len(digits))
	}
	if err := checkHex(digits); err != nil {
		return Prefix{}, fmt.Errorf("prefix: %w", err)
	}
	return Prefix{strings.ToLower(digits)}, nil
}

// String is the prefix in lowercase hex digits.
func (p Prefix) String() string { return p.nibbles }

// Len is the number of hex digits, 0..63.
func (p Prefix) Len() int { return len(p.nibbles) }

// Covers reports whether the prefix is a prefix of the digest.
func (p Prefix) Covers(d Digest) bool {
	for i := range len(p.nibbles) {
		if hexDigit(d.Nibble(i)) != p.nibbles[i] {
			return false
		}
	}
	return true
}

// CoversPrefix reports whether p is a prefix of q, or equal to it.
func (p Prefix) CoversPrefix(q Prefix) bool { return strings.HasPrefix(q.nibbles, p.nibbles) }

// Child is the prefix one digit longer, for a digit's value in 0..15. The child of a prefix of 63 digits does not exist; asking
// for it is a programmer's mistake and panics.
func (p Prefix) Child(nibble byte) Prefix {
	if len(p.nibbles) >= MaxPrefixNibbles {
		panic("wormhole: child of a prefix of 63 digits")
	}
	return Prefix{p.nibbles + string(hexDigit(nibble))}
}

// Prefix returns the digest's first n digits, n in 0..63.
func (d Digest) Prefix(n int) Prefix { return Prefix{d.String()[:n]} }

func hexDigit(nibble byte) byte { return "0123456789abcdef"[nibble&0x0f] }
