package wormhole_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/wormhole"
)

type mainnet struct {
	GuardianSets map[string][]string `json:"guardian_sets"`
	VAAs         []struct {
		Name             string   `json:"name"`
		VAA              string   `json:"vaa"`
		Digest           string   `json:"digest"`
		GuardianSetIndex uint32   `json:"guardian_set_index"`
		PubKeys          [][2]any `json:"pub_keys"`
		Timestamp        uint32   `json:"timestamp"`
		Nonce            uint32   `json:"nonce"`
		EmitterChain     uint16   `json:"emitter_chain"`
		EmitterAddress   string   `json:"emitter_address"`
		Sequence         uint64   `json:"sequence,string"`
		ConsistencyLevel uint8    `json:"consistency_level"`
		Payload          string   `json:"payload"`
	} `json:"vaas"`
}

// TestMainnetVAAs reads real VAAs: fields, digest, recovered keys, verification against the real guardian sets.
func TestMainnetVAAs(t *testing.T) {
	var data mainnet
	readJSON(t, "mainnet-vaas.json.gz", &data)
	if len(data.VAAs) != 43 || len(data.GuardianSets) != 8 {
		t.Fatalf("got %d VAAs and %d guardian sets, want 43 and 8", len(data.VAAs), len(data.GuardianSets))
	}
	state := &wormhole.CoreState{GuardianSets: map[int64]wormhole.GuardianSet{}}
	for index, keys := range data.GuardianSets {
		i, err := strconv.ParseInt(index, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		state.GuardianSets[i] = wormhole.GuardianSet{Keys: keys}
	}
	for _, want := range data.VAAs {
		t.Run(want.Name, func(t *testing.T) {
			raw, err := wormhole.DecodeVAAText(want.VAA)
			if err != nil {
				t.Fatal(err)
			}
			vaa, err := wormhole.ParseVAA(raw)
			if err != nil {
				t.Fatal(err)
			}
			if got := vaa.Digest().String(); got != want.Digest {
				t.Errorf("digest %s, want %s", got, want.Digest)
			}
			if got := vaa.EncodedHex(); got != strings.ToLower(want.VAA) {
				t.Errorf("encoded again it is %s", got)
			}
			wantBody := wormhole.VAABody{
				Timestamp: want.Timestamp, Nonce: want.Nonce, EmitterChain: want.EmitterChain, Sequence: want.Sequence,
				ConsistencyLevel: want.ConsistencyLevel, EmitterAddress: [32]byte(unhex(t, want.EmitterAddress)), Payload: unhex(t, want.Payload),
			}
			if diff := cmp.Diff(wantBody, vaa.VAABody); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			if vaa.GuardianSetIndex != want.GuardianSetIndex {
				t.Errorf("guardian set %d, want %d", vaa.GuardianSetIndex, want.GuardianSetIndex)
			}
			set := state.GuardianSets[int64(vaa.GuardianSetIndex)]
			keys, err := vaa.RecoverKeys(&set)
			if err != nil {
				t.Errorf("recover keys: %v", err)
			}
			var wantKeys []wormhole.PubKey
			for _, k := range want.PubKeys {
				wantKeys = append(wantKeys, wormhole.PubKey{Index: int64(k[0].(float64)), Key: k[1].(string)})
			}
			if diff := cmp.Diff(wantKeys, keys); diff != "" {
				t.Errorf("recovered keys (-want +got):\n%s", diff)
			}
			byV, err := vaa.RecoverKeys(nil)
			if err != nil {
				t.Errorf("recover keys without a set: %v", err)
			}
			if diff := cmp.Diff(keys, byV); diff != "" {
				t.Errorf("v gives other keys (-with set +without):\n%s", diff)
			}
			if err := set.VerifySignatures(vaa, keys); err != nil {
				t.Errorf("verify signatures: %v", err)
			}
			// Governance VAAs have random sequences of 64 bits. Daml's Int has 63, so that the model refuses half of them.
			err = state.Verify(vaa, keys, time.Unix(int64(want.Timestamp), 0))
			if tooLarge := want.Sequence > math.MaxInt64; tooLarge != errors.Is(err, wormhole.RuleNumberTooLarge) || (err != nil) != tooLarge {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

func TestParseVAARefusesEveryTruncation(t *testing.T) {
	whole := sampleVAA(t).Encode()
	// The payload is the rest: only what comes before it can be missing.
	head := len(whole) - len(sampleVAA(t).Payload)
	for n := range head {
		_, err := wormhole.ParseVAA(whole[:n])
		if !errors.Is(err, wormhole.RuleVAATruncated) || err.Error() != "unexpected end of bytes" {
			t.Fatalf("%d of %d bytes: got %v", n, head, err)
		}
	}
	if _, err := wormhole.ParseVAA(whole[:head]); err != nil {
		t.Errorf("a VAA without payload: %v", err)
	}
}

func TestParseVAARefusesOtherVersions(t *testing.T) {
	for version := range 256 {
		encoded := append([]byte{byte(version)}, sampleVAA(t).Encode()[1:]...)
		_, err := wormhole.ParseVAA(encoded)
		switch {
		case version == 1 && err != nil:
			t.Errorf("version 1: %v", err)
		case version != 1 && (!errors.Is(err, wormhole.RuleVAAVersion) || err.Error() != "unsupported VAA version: "+strconv.Itoa(version)):
			t.Errorf("version %d: got %v", version, err)
		}
	}
}

func TestParseVAASharesNoMemory(t *testing.T) {
	encoded := sampleVAA(t).Encode()
	vaa, err := wormhole.ParseVAA(encoded)
	if err != nil {
		t.Fatal(err)
	}
	clear(encoded)
	if diff := cmp.Diff(sampleVAA(t), vaa); diff != "" {
		t.Errorf("changing the input changed the VAA:\n%s", diff)
	}
}

func TestDecodeVAAText(t *testing.T) {
	raw := sampleVAA(t).Encode()
	for name, text := range map[string]string{
		"hex":                     hex.EncodeToString(raw),
		"uppercase hex":           strings.ToUpper(hex.EncodeToString(raw)),
		"0x":                      "0x" + hex.EncodeToString(raw),
		"0X, uppercase":           "0X" + strings.ToUpper(hex.EncodeToString(raw)),
		"base64":                  base64.StdEncoding.EncodeToString(raw),
		"base64 without padding":  base64.RawStdEncoding.EncodeToString(raw),
		"URL base64":              base64.URLEncoding.EncodeToString(raw),
		"URL base64, no padding":  base64.RawURLEncoding.EncodeToString(raw),
		"base64 of one more byte": base64.StdEncoding.EncodeToString(append(bytes.Clone(raw), 7)),
	} {
		got, err := wormhole.DecodeVAAText(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.HasPrefix(got, raw) {
			t.Errorf("%s: got %x", name, got)
		}
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "VAA: empty text"},
		"only 0x":           {"0x", "VAA: no digits after 0x"},
		"odd":               {"01a", "VAA: odd number of hex digits: 3"},
		"not hex after 0x":  {"0x01zz", "VAA: after 0x: character 3 is not a hex digit"},
		"white space":       {"01 02", "VAA: white space in the text"},
		"newline":           {"0102\n", "VAA: white space in the text"},
		"neither":           {"AQ!=", "VAA: neither hex nor base64: illegal base64 data at input byte 2"},
		"mixed alphabets":   {"AQ+_", "VAA: neither hex nor base64: standard and URL-safe characters mixed"},
		"too much padding":  {"AQ===", "VAA: neither hex nor base64: wrong padding"},
		"stray bits":        {"AR==", "VAA: neither hex nor base64: illegal base64 data at input byte 0"},
		"too long":          {strings.Repeat("0", wormhole.MaxVAATextBytes+1), "VAA: text of 1048577 bytes, at most 1048576 are accepted"},
		"base64 one letter": {"Q", "VAA: neither hex nor base64: illegal base64 data at input byte 0"},
	} {
		_, err := wormhole.DecodeVAAText(c.text)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func TestVAARoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vaa := drawVAA(t)
		got, err := wormhole.ParseVAA(vaa.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(vaa, got); diff != "" {
			t.Fatalf("parse(encode(vaa)) (-want +got):\n%s", diff)
		}
	})
}

func FuzzParseVAA(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 255})
	f.Add(sampleVAA(f).Encode())
	f.Fuzz(func(t *testing.T, encoded []byte) {
		vaa, err := wormhole.ParseVAA(encoded)
		if err != nil {
			if wormhole.RuleOf(err) == nil {
				t.Fatalf("%v is not in the ledger's words", err)
			}
			return
		}
		if got := vaa.Encode(); !bytes.Equal(got, encoded) {
			t.Fatalf("encoded again:\n%x\nwant\n%x", got, encoded)
		}
		keys, _ := vaa.RecoverKeys(nil)
		if len(keys) > len(vaa.Signatures) {
			t.Fatalf("%d keys from %d signatures", len(keys), len(vaa.Signatures))
		}
	})
}

func FuzzDecodeVAAText(f *testing.F) {
	raw := sampleVAA(f).Encode()
	f.Add(hex.EncodeToString(raw))
	f.Add("0x" + hex.EncodeToString(raw))
	f.Add(base64.StdEncoding.EncodeToString(raw))
	f.Fuzz(func(t *testing.T, text string) {
		decoded, err := wormhole.DecodeVAAText(text)
		if err == nil && len(decoded) == 0 {
			t.Fatalf("%q decodes to nothing", text)
		}
	})
}

func drawVAA(t *rapid.T) *wormhole.VAA {
	vaa := &wormhole.VAA{
		GuardianSetIndex: rapid.Uint32().Draw(t, "set"),
		Signatures:       make([]wormhole.Signature, rapid.IntRange(0, 30).Draw(t, "signatures")),
		VAABody: wormhole.VAABody{
			Timestamp:        rapid.Uint32().Draw(t, "timestamp"),
			Nonce:            rapid.Uint32().Draw(t, "nonce"),
			EmitterChain:     rapid.Uint16().Draw(t, "chain"),
			EmitterAddress:   draw32(t, "address"),
			Sequence:         rapid.Uint64().Draw(t, "sequence"),
			ConsistencyLevel: rapid.Uint8().Draw(t, "level"),
			Payload:          append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload")...),
		},
	}
	for i := range vaa.Signatures {
		vaa.Signatures[i] = wormhole.Signature{GuardianIndex: rapid.Uint8().Draw(t, "index"), R: draw32(t, "r"), S: draw32(t, "s"), V: rapid.Uint8().Draw(t, "v")}
	}
	return vaa
}

func draw32(t *rapid.T, label string) [32]byte {
	return [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, label))
}

// sampleVAA is a VAA of the development networks' guardian.
func sampleVAA(t testing.TB) *wormhole.VAA {
	t.Helper()
	return wormhole.SignVAA(sampleBody(1), 2, map[uint8]wormhole.GuardianKey{0: wormhole.DevnetGuardian()})
}

func sampleBody(sequence uint64) wormhole.VAABody {
	body := wormhole.VAABody{Timestamp: 1_700_000_000, Nonce: 7, EmitterChain: 2, Sequence: sequence, ConsistencyLevel: 1, Payload: []byte("hello")}
	copy(body.EmitterAddress[12:], bytes.Repeat([]byte{0x22}, 20))
	return body
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
