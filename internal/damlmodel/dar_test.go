package damlmodel

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/daml"
)

// encode is parse's inverse for messages of varints and bytes.
func encode(m message) []byte {
	var b []byte
	for _, f := range m {
		if f.bytes != nil {
			b = protowire.AppendTag(b, f.number, protowire.BytesType)
			b = protowire.AppendBytes(b, f.bytes)
		} else {
			b = protowire.AppendTag(b, f.number, protowire.VarintType)
			b = protowire.AppendVarint(b, f.value)
		}
	}
	return b
}

// edited is the archive with its package changed, and the hash that goes with it.
func edited(t *testing.T, archive []byte, edit func(*lfPackage, message) message) []byte {
	t.Helper()
	outer := parsed(t, archive)
	payload := parsed(t, outer.bytes(3))
	body := parsed(t, payload.bytes(4))
	names := &lfPackage{}
	for _, f := range body {
		if f.number == 2 {
			names.strings = append(names.strings, string(f.bytes))
		}
	}
	for _, d := range list(t, body, 3) {
		name, err := names.dottedName(d)
		if err != nil {
			t.Fatal(err)
		}
		names.names = append(names.names, name)
	}
	newPayload := encode(replaced(payload, 4, encode(edit(names, body))))
	sum := sha256.Sum256(newPayload)
	return encode(replaced(replaced(outer, 3, newPayload), 4, []byte(hex.EncodeToString(sum[:]))))
}

func parsed(t *testing.T, b []byte) message {
	t.Helper()
	m, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func list(t *testing.T, m message, number protowire.Number) []message {
	t.Helper()
	out, err := m.all(number)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func replaced(m message, number protowire.Number, b []byte) message {
	out := slices.Clone(m)
	for i := range out {
		if out[i].number == number {
			out[i].bytes = b
		}
	}
	return out
}

// within edits the one message of the number for which is says so.
func within(t *testing.T, m message, number protowire.Number, is func(message) bool, edit func(message) message) message {
	t.Helper()
	out := slices.Clone(m)
	for i, f := range out {
		if f.number != number {
			continue
		}
		if inner := parsed(t, f.bytes); is(inner) {
			out[i].bytes = encode(edit(inner))
			return out
		}
	}
	t.Fatalf("no field %d is the wanted one", number)
	return nil
}

func any1(message) bool { return true }

// TestAChangedArchiveIsSeen changes declarations inside an archive.
func TestAChangedArchiveIsSeen(t *testing.T) {
	archive, err := mainArchive(daml.WormholeCore())
	if err != nil {
		t.Fatal(err)
	}
	original, err := fromArchive(archive)
	if err != nil {
		t.Fatal(err)
	}
	// node edits the fields of ReplayNode, and choice the choice ConsumeDigest.
	node := func(edit func(fields message) message) func(*lfPackage, message) message {
		return func(p *lfPackage, body message) message {
			return within(t, body, 1, func(m message) bool { return p.names[m.int(1)] == "Wormhole.Core.Replay" }, func(m message) message {
				return within(t, m, 4, func(d message) bool { return p.names[d.int(2)] == "ReplayNode" }, func(d message) message {
					return within(t, d, 5, any1, edit)
				})
			})
		}
	}
	choice := func(edit func(*lfPackage, message) message) func(*lfPackage, message) message {
		return func(p *lfPackage, body message) message {
			return within(t, body, 1, func(m message) bool { return p.names[m.int(1)] == "Wormhole.Core.Replay" }, func(m message) message {
				return within(t, m, 6, func(d message) bool { return p.names[d.int(1)] == "ReplayNode" }, func(d message) message {
					return within(t, d, 6, func(c message) bool { return p.strings[c.int(2)] == "ConsumeDigest" }, func(c message) message { return edit(p, c) })
				})
			})
		}
	}
	const record = "record Wormhole.Core.Replay:ReplayNode: field "
	for _, c := range []struct {
		change string
		edit   func(*lfPackage, message) message
		want   string
	}{
		{"a field renamed", func(p *lfPackage, body message) message {
			renamed := node(func(fields message) message {
				return within(t, fields, 1, func(f message) bool { return p.strings[f.int(3)] == "prefix" }, func(f message) message {
					f = slices.Clone(f)
					for i := range f {
						if f[i].number == 3 {
							f[i].value = uint64(len(p.strings))
						}
					}
					return f
				})
			})(p, body)
			return append(renamed, rawField{number: 2, bytes: []byte("path")})
		}, record + "3 is prefix : Text in before, path : Text in after"},
		{"fields reordered", node(func(fields message) message {
			fields = slices.Clone(fields)
			fields[0], fields[1] = fields[1], fields[0]
			return fields
		}), record + "1 is consumer : Party in before, operator : Party in after"},
		{"a field retyped", node(func(fields message) message {
			fields = slices.Clone(fields)
			text, number := parsed(t, fields[2].bytes), parsed(t, fields[3].bytes)
			fields[3].bytes = encode(replaced(number, 2, text.bytes(2)))
			return fields
		}), record + "4 is splitThreshold : Int in before, splitThreshold : Text in after"},
		{"a field dropped", node(func(fields message) message { return fields[:4] }),
			record + "5 is consumed : Set Text in before, missing in after"},
		{"a choice made nonconsuming", choice(func(_ *lfPackage, c message) message {
			return slices.DeleteFunc(slices.Clone(c), func(f rawField) bool { return f.number == 3 })
		}), "choice Wormhole.Core.Replay:ReplayNode.ConsumeDigest: consuming is true in before, false in after"},
		{"a result retyped", choice(func(_ *lfPackage, c message) message {
			return replaced(c, 8, parsed(t, c.bytes(6)).bytes(2))
		}), "choice Wormhole.Core.Replay:ReplayNode.ConsumeDigest: the result is ContractId Wormhole.Core.Replay:ReplayNode in before, Wormhole.Core.Replay:ConsumeDigest in after"},
	} {
		changed, err := fromArchive(edited(t, archive, c.edit))
		if err != nil {
			t.Errorf("%s: %v", c.change, err)
			continue
		}
		got := Compare("before", original.Model, "after", changed.Model)
		if !slices.Contains(got, c.want) {
			t.Errorf("%s: %q is not among what was found:\n%s", c.change, c.want, strings.Join(got, "\n"))
		}
	}
	same, err := fromArchive(edited(t, archive, func(_ *lfPackage, body message) message { return body }))
	if err != nil || same.ID != original.ID {
		t.Errorf("an archive written again has id %s, want %s; %v", same.ID, original.ID, err)
	}
}

func TestFromDARRefuses(t *testing.T) {
	archive, err := mainArchive(daml.WormholeCore())
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(archive)
	flipped[len(flipped)/2] ^= 1
	for _, c := range []struct {
		name string
		dar  []byte
		want string
	}{
		{"nothing", nil, "opening the zip file"},
		{"no manifest", zipped(t, "a", nil), "META-INF/MANIFEST.MF"},
		{"a manifest without a main package", zipped(t, "META-INF/MANIFEST.MF", []byte("Manifest-Version: 1.0\n")), "names no main package"},
		{"a main package that is not there", zipped(t, "META-INF/MANIFEST.MF", []byte("Main-Dalf: a.dalf\n")), `opening "a.dalf"`},
		{"a changed byte", zipped(t, "META-INF/MANIFEST.MF", []byte("Main-Dalf: a.d\n alf\n"), "a.dalf", flipped), "the archive says that its hash is"},
		{"another LF", zipped(t, "META-INF/MANIFEST.MF", []byte("Main-Dalf: a\n"), "a", sealed(message{{number: 2, bytes: []byte{0x0a, 0}}})), "not of Daml-LF 2"},
		{"an empty package", zipped(t, "META-INF/MANIFEST.MF", []byte("Main-Dalf: a\n"), "a", sealed(message{{number: 4, bytes: []byte{}}})), "the package's name: there is no string 0"},
	} {
		_, err := FromDAR(c.dar)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// sealed is an archive of a payload.
func sealed(payload message) []byte {
	b := encode(payload)
	sum := sha256.Sum256(b)
	return encode(message{{number: 3, bytes: b}, {number: 4, bytes: []byte(hex.EncodeToString(sum[:]))}})
}

// zipped is a zip file of names and contents in turn.
func zipped(t *testing.T, name string, content []byte, more ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for all := append([]any{name, content}, more...); len(all) > 0; all = all[2:] {
		w, err := z.Create(all[0].(string))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(all[1].([]byte)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestTypesThatReferToEachOther are tables of types that have no end, or one that is far away.
func TestTypesThatReferToEachOther(t *testing.T) {
	optional := func(inner message) message {
		return message{{number: 3, bytes: encode(message{{number: 1, value: 9}, {number: 2, bytes: encode(inner)}})}}
	}
	interned := func(i int) message { return message{{number: 8, value: uint64(i)}} }
	pair := func(a, b message) message {
		return message{{number: 3, bytes: encode(message{{number: 1, value: 11}, {number: 2, bytes: encode(a)}, {number: 2, bytes: encode(b)}})}}
	}
	doubling := []message{{{number: 3, bytes: encode(message{{number: 1, value: 7}})}}}
	for i := range 60 {
		doubling = append(doubling, pair(interned(i), interned(i)))
	}
	for name, p := range map[string]*lfPackage{
		"a circle": {types: []message{interned(0)}},
		"a spiral": {types: []message{optional(interned(0))}},
		"a tree":   {types: doubling},
		"nowhere":  {},
	} {
		got, err := p.typeText(interned(max(0, len(p.types)-1)), nil, 0)
		if err == nil {
			t.Errorf("%s: got %d characters, want an error", name, len(got))
		}
	}
}

func FuzzFromArchive(f *testing.F) {
	for _, d := range daml.DARs() {
		archive, err := mainArchive(d.Bytes())
		if err != nil {
			f.Fatal(err)
		}
		outer, err := parse(archive)
		if err != nil {
			f.Fatal(err)
		}
		payload, err := parse(outer.bytes(3))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload.bytes(4))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := fromArchive(sealed(message{{number: 3, bytes: []byte("3")}, {number: 4, bytes: body}}))
		if err != nil {
			return
		}
		p.Model.Reachable().WithoutContractTypes()
		if found := Compare("a", p.Model, "b", p.Model.Clone()); len(found) > 0 {
			t.Errorf("a model differs from itself: %v", found)
		}
	})
}

func FuzzFromDAR(f *testing.F) {
	f.Add(daml.WormholeCore())
	f.Add([]byte("PK\x05\x06"))
	f.Fuzz(func(t *testing.T, dar []byte) {
		if p, err := FromDAR(dar); err == nil && len(p.ID) != 64 {
			t.Errorf("a package with the id %q", p.ID)
		}
	})
}
