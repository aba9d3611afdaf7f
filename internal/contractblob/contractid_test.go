package contractblob_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/disclosured/disclosured/internal/contractblob"
)

var (
	someDiscriminator = strings.Repeat("d1", 32)
	someUnicum        = strings.Repeat("0c", 32)
	someID            = "00" + someDiscriminator + "ca121220" + someUnicum
)

func TestParseContractID(t *testing.T) {
	for version, prefix := range map[contractblob.IDVersion]string{contractblob.V10: "ca10", contractblob.V11: "ca11", contractblob.V12: "ca12"} {
		text := "00" + someDiscriminator + prefix + "1220" + someUnicum
		id, err := contractblob.ParseContractID(text)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		discriminator, suffix := id.Discriminator(), id.Suffix()
		if id.Version() != version || id.String() != text || id.IsZero() || hex.EncodeToString(id.Bytes()) != text ||
			hex.EncodeToString(discriminator[:]) != someDiscriminator || hex.EncodeToString(suffix[:]) != prefix+"1220"+someUnicum {
			t.Errorf("%s: parsed as %s, version %s, discriminator %x, suffix %x", text, id, id.Version(), discriminator, suffix)
		}
		again, err := contractblob.ContractIDFromBytes(id.Bytes())
		if err != nil || again != id {
			t.Errorf("%s: from its bytes: %v, %v", text, again, err)
		}
	}
	var none contractblob.ContractID
	if !none.IsZero() || none.String() != "" || none.Version() != 0 {
		t.Errorf("the zero value: %q, version %s", none, none.Version())
	}
}

func TestParseContractIDRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		kind       error
		words      string
	}{
		{"nothing", "", contractblob.ErrMalformed, "empty"},
		{"upper case", strings.ToUpper(someID), contractblob.ErrMalformed, "upper-case hex digit at character 3"},
		{"0x", "0x" + someID, contractblob.ErrMalformed, "character 2 is not a hex digit"},
		{"white space", someID + "\n", contractblob.ErrMalformed, "character 139"},
		{"odd", someID[:137], contractblob.ErrMalformed, "odd"},
		{"cut off", someID[:136], contractblob.ErrMalformed, "68 bytes, want 69"},
		{"too long", someID + "00", contractblob.ErrMalformed, "70 bytes, want 69"},
		{"far too long", strings.Repeat("00", 1<<20), contractblob.ErrMalformed, "characters"},
		{"relative", "00" + someDiscriminator, contractblob.ErrUnsupported, "relative"},
		{"a byte of a suffix", "00" + someDiscriminator + "ca", contractblob.ErrMalformed, "34 bytes"},
		{"short", "00", contractblob.ErrMalformed, "1 bytes"},
		{"second generation", "01" + someID[2:], contractblob.ErrUnsupported, "second generation"},
		{"another start", "02" + someID[2:], contractblob.ErrMalformed, "starts with 02"},
		{"later version", "00" + someDiscriminator + "ca131220" + someUnicum, contractblob.ErrUnsupported, "ca13"},
		{"earlier version", "00" + someDiscriminator + "ca091220" + someUnicum, contractblob.ErrUnsupported, "ca09"},
		{"another mark", "00" + someDiscriminator + "cb121220" + someUnicum, contractblob.ErrUnsupported, "cb12"},
		{"another hash", "00" + someDiscriminator + "ca121320" + someUnicum, contractblob.ErrMalformed, "want 1220"},
	} {
		id, err := contractblob.ParseContractID(c.text)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.kind, c.words)
		}
		if !id.IsZero() {
			t.Errorf("%s: an error and the id %s", c.name, id)
		}
	}
}

func FuzzParseContractID(f *testing.F) {
	f.Add(someID)
	f.Add(strings.ToUpper(someID))
	f.Add("00" + someDiscriminator)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := contractblob.ParseContractID(text)
		if err != nil {
			if !errors.Is(err, contractblob.ErrMalformed) && !errors.Is(err, contractblob.ErrUnsupported) {
				t.Errorf("%q: an error of no kind: %v", text, err)
			}
			return
		}
		if id.String() != text {
			t.Errorf("%q is read as %q", text, id)
		}
	})
}
