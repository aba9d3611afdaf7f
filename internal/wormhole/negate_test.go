package wormhole_test

import "math/big"

// negateS is n - s on secp256k1.
func negateS(s [32]byte) [32]byte {
	n, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	var out [32]byte
	n.Sub(n, new(big.Int).SetBytes(s[:])).FillBytes(out[:])
	return out
}
