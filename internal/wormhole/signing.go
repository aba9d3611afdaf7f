package wormhole

import (
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// GuardianKey is a guardian's private key, for test networks: the simulated ledger, the demo and the tests sign with it. The
// service itself never signs.
type GuardianKey struct{ private *secp256k1.PrivateKey }

// devnetGuardian is the private key of the one guardian of Wormhole's development networks. It is public, printed in
// Wormhole's own repository, and guards nothing.
const devnetGuardian = "cfb12303a19cde580bb4dd771639b0d26bc68353645571a8cff516ab2ee113a0"

// DevnetGuardian is the well-known guardian of Wormhole's development networks, of address
// befa429d57cd18b7f8a4d91a2da9ab4af05d0fbe.
func DevnetGuardian() GuardianKey {
	raw, err := hex.DecodeString(devnetGuardian)
	if err != nil {
		panic("wormhole: devnet guardian: " + err.Error())
	}
	return GuardianKey{secp256k1.PrivKeyFromBytes(raw)}
}

// TestGuardian is a key made from a seed: the same seed gives the same key. Anyone who knows the seed has the key.
func TestGuardian(seed string) GuardianKey {
	return GuardianKey{secp256k1.PrivKeyFromBytes(keccak256([]byte("disclosured test guardian " + seed)))}
}

// PublicKey is the key's public part, uncompressed, 65 bytes.
func (k GuardianKey) PublicKey() []byte { return k.private.PubKey().SerializeUncompressed() }

// Address is the guardian's address as guardian sets hold it: 20 bytes in lowercase hex.
func (k GuardianKey) Address() string { return GuardianAddress(k.PublicKey()) }

// SignVAA makes a VAA of the body, signed by the guardians in ascending order of their index. For test networks.
func SignVAA(body VAABody, setIndex uint32, guardians map[uint8]GuardianKey) *VAA {
	digest := body.Digest()
	vaa := &VAA{GuardianSetIndex: setIndex, VAABody: body, Signatures: make([]Signature, 0, len(guardians))}
	for index, key := range guardians {
		compact := ecdsa.SignCompact(key.private, digest[:], false)
		vaa.Signatures = append(vaa.Signatures, Signature{
			GuardianIndex: index,
			R:             [32]byte(compact[1:33]),
			S:             [32]byte(compact[33:]),
			V:             compact[0] - 27,
		})
	}
	slices.SortFunc(vaa.Signatures, func(a, b Signature) int { return cmp.Compare(a.GuardianIndex, b.GuardianIndex) })
	return vaa
}

// PubKeys are the choices' pubKeys argument for these guardians, in ascending order of index.
func PubKeys(guardians map[uint8]GuardianKey) []PubKey {
	keys := make([]PubKey, 0, len(guardians))
	for index, key := range guardians {
		keys = append(keys, PubKey{Index: int64(index), Key: hex.EncodeToString(key.PublicKey())})
	}
	slices.SortFunc(keys, func(a, b PubKey) int { return cmp.Compare(a.Index, b.Index) })
	return keys
}
