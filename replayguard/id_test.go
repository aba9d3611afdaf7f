package replayguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// G04: no two subjects run together.
func TestSubjectsDoNotRunTogether(t *testing.T) {
	text := func(s string) *string { return &s }
	subjects := []Subject{
		{Operator: "a", Consumer: "bc"},
		{Operator: "ab", Consumer: "c"},
		{Operator: "abc"},
		{Consumer: "abc"},
		{Namespace: text("abc")},
		{Operator: "a", Consumer: "b", Namespace: text("c")},
		{Operator: "a", Consumer: "bc", Namespace: text("")},
		{},
		{Namespace: text("")},
		{Namespace: text("\x00")},
		{Operator: "\x00"},
		{Digest: [32]byte{0: 1}},
		{Digest: [32]byte{31: 1}},
		{Namespace: text("\x00"), Digest: [32]byte{31: 1}},
	}
	seen := map[ID]int{}
	for i, s := range subjects {
		if other, ok := seen[s.ID()]; ok {
			t.Errorf("subjects %d and %d have one id", other, i)
		}
		seen[s.ID()] = i
	}
}

// TestSubjectIDIsStable: ids are stored, and so are a promise.
func TestSubjectIDIsStable(t *testing.T) {
	namespace := "main"
	s := Subject{Operator: "operator::1220aa", Consumer: "consumer::1220bb", Namespace: &namespace, Digest: [32]byte{0: 0xab, 31: 0xcd}}
	const want = "e43ca0fc2b0dce3c4890111429570a9251e87023b19cd29b39abae0640791cda"
	if got := s.ID().String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzSubject: an encoding that can be read back belongs to one subject.
func FuzzSubject(f *testing.F) {
	f.Add("a", "bc", true, "", []byte{1})
	f.Add("", "", false, "", []byte{})
	f.Add("operator::1220aa", "consumer::1220bb", true, "main", []byte(strings.Repeat("\xff", 32)))
	f.Add("\x00\x00\x00\x00\x00\x00\x00\x01a", "\x00", true, "\x01", []byte("digest"))
	f.Fuzz(func(t *testing.T, operator, consumer string, hasNamespace bool, namespace string, digest []byte) {
		s := Subject{Operator: operator, Consumer: consumer}
		copy(s.Digest[:], digest)
		if hasNamespace {
			s.Namespace = &namespace
		}
		got, err := decodeSubject(s.encode())
		if err != nil {
			t.Fatal(err)
		}
		if got.Operator != s.Operator || got.Consumer != s.Consumer || got.Digest != s.Digest || (got.Namespace == nil) != (s.Namespace == nil) {
			t.Fatalf("%+v is read back as %+v", s, got)
		}
		if s.Namespace != nil && *got.Namespace != *s.Namespace {
			t.Fatalf("namespace %q is read back as %q", *s.Namespace, *got.Namespace)
		}
	})
}

func decodeSubject(b []byte) (s Subject, err error) {
	rest, ok := strings.CutPrefix(string(b), subjectVersion)
	text := func() (part string) {
		if len(rest) < 8 {
			err = errors.New("no length")
			return ""
		}
		n := binary.BigEndian.Uint64([]byte(rest[:8]))
		if n > uint64(len(rest)-8) {
			err = fmt.Errorf("length %d of %d", n, len(rest)-8)
			return ""
		}
		part, rest = rest[8:8+n], rest[8+n:]
		return part
	}
	if !ok {
		return s, errors.New("another version")
	}
	s.Operator, s.Consumer = text(), text()
	if err != nil || rest == "" {
		return s, fmt.Errorf("no namespace: %w", err)
	}
	present := rest[0]
	rest = rest[1:]
	if present == 1 {
		namespace := text()
		s.Namespace = &namespace
	}
	if copy(s.Digest[:], rest) != 32 || len(rest) != 32 || present > 1 {
		return s, fmt.Errorf("%d bytes for the digest", len(rest))
	}
	return s, err
}

func TestParseDigest(t *testing.T) {
	digits := strings.Repeat("0a1B", 16)
	want, err := ParseDigest(digits)
	if err != nil {
		t.Fatal(err)
	}
	if want[0] != 0x0a || want[1] != 0x1b {
		t.Errorf("got %x", want)
	}
	for _, spelling := range []string{strings.ToUpper(digits), strings.ToLower(digits), "0x" + digits, "0X" + digits, " \t0x" + digits + "\n"} {
		if got, err := ParseDigest(spelling); err != nil || got != want {
			t.Errorf("%q: %x, %v", spelling, got, err)
		}
	}
	for _, bad := range []string{"", "0x", digits[1:], digits + "0", "0x0x" + digits[4:], digits[:62] + "zz", digits[:32] + " " + digits[33:], "x" + digits[1:], digits[:60] + "é "} {
		if got, err := ParseDigest(bad); err == nil || got != [32]byte{} {
			t.Errorf("%q is accepted as %x", bad, got)
		}
	}
}

func FuzzParseDigest(f *testing.F) {
	f.Add(strings.Repeat("0a1B", 16))
	f.Add("0x" + strings.Repeat("F", 64))
	f.Add(" 0X")
	f.Fuzz(func(t *testing.T, s string) {
		digest, err := ParseDigest(s)
		if err != nil {
			return
		}
		again, err := ParseDigest(fmt.Sprintf("%x", digest))
		if err != nil || again != digest {
			t.Fatalf("%q is %x, which is %x, %v", s, digest, again, err)
		}
		plain := strings.ToLower(strings.TrimSpace(s))
		if strings.TrimPrefix(plain, "0x") != fmt.Sprintf("%x", digest) {
			t.Fatalf("%q is %x", s, digest)
		}
	})
}

func TestKey(t *testing.T) {
	if NewKey("") != (Key{}) {
		t.Error("no text makes a key")
	}
	if NewKey("a") == NewKey("b") || NewKey("a") != NewKey(string([]byte{'a'})) || NewKey("a") == (Key{}) {
		t.Error("keys do not tell texts apart")
	}
}
