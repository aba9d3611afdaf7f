package daml

import (
	"bytes"
	"testing"
)

func TestDefaultDARs(t *testing.T) {
	for name, got := range map[string][]byte{WormholeCorePackage: WormholeCore(), ExampleIntegratorPackage: ExampleIntegrator()} {
		want, err := Find(name, DefaultLF)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: %d bytes, not the DAR of LF %s", name, len(got), DefaultLF)
		}
	}
	if d, err := Find(WormholeCorePackage, "2.1"); err == nil {
		t.Errorf("LF 2.1: got %+v, want an error", d)
	}
	if content := (DAR{}).Bytes(); content != nil {
		t.Errorf("the zero DAR: got %d bytes", len(content))
	}
	for _, d := range DARs() {
		if len(d.Bytes()) == 0 {
			t.Errorf("%s for LF %s is empty", d.Name, d.LF)
		}
	}
}
