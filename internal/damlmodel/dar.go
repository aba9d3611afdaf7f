package damlmodel

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxFile bounds what one file in a DAR unpacks to. Daml's standard library has some 2 MB.
const maxFile = 16 << 20

// Package is the main package of a DAR.
type Package struct {
	// ID is 64 hex digits: the SHA-256 of the package's bytes, which FromDAR checks.
	ID            string
	Name, Version string
	// LF is the version of Daml-LF, as "2.3".
	LF    string
	Model Model
}

// FromDAR decodes an archive's main package. It fails on anything but a zip file with a manifest and an archive whose hash is
// that of its content, in a flat Daml-LF 2.
func FromDAR(dar []byte) (Package, error) {
	archive, err := mainArchive(dar)
	if err != nil {
		return Package{}, fmt.Errorf("reading a DAR: %w", err)
	}
	p, err := fromArchive(archive)
	if err != nil {
		return Package{}, fmt.Errorf("reading a DAR's main package: %w", err)
	}
	return p, nil
}

// mainArchive is the file in the zip that the manifest calls the main one.
func mainArchive(dar []byte) ([]byte, error) {
	z, err := zip.NewReader(bytes.NewReader(dar), int64(len(dar)))
	if err != nil {
		return nil, fmt.Errorf("opening the zip file: %w", err)
	}
	manifest, err := readFile(z, "META-INF/MANIFEST.MF")
	if err != nil {
		return nil, err
	}
	// A line of a manifest goes on in the next one if that begins with a space.
	text := strings.ReplaceAll(strings.ReplaceAll(string(manifest), "\r\n", "\n"), "\n ", "")
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "Main-Dalf:"); ok {
			return readFile(z, strings.TrimSpace(name))
		}
	}
	return nil, errors.New("the manifest names no main package")
}

func readFile(z *zip.Reader, name string) ([]byte, error) {
	f, err := z.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", name, err)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, err)
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("reading %q: more than %d bytes", name, maxFile)
	}
	return content, nil
}

// fromArchive decodes an Archive message: payload = 3, hash = 4; the payload's minor = 3, daml_lf_2 = 4.
func fromArchive(archive []byte) (Package, error) {
	outer, err := parse(archive)
	if err != nil {
		return Package{}, err
	}
	payload, hash := outer.bytes(3), string(outer.bytes(4))
	sum := sha256.Sum256(payload)
	if got := hex.EncodeToString(sum[:]); got != hash {
		return Package{}, fmt.Errorf("the archive says that its hash is %q, and it is %s", clip(hash), got)
	}
	inner, err := parse(payload)
	if err != nil {
		return Package{}, err
	}
	lf, ok := inner.last(4)
	if !ok {
		return Package{}, errors.New("the package is not of Daml-LF 2")
	}
	p, err := decodePackage(lf.bytes)
	if err != nil {
		return Package{}, err
	}
	p.ID, p.LF = hash, "2."+string(inner.bytes(3))
	return p, nil
}

// message is a protobuf message's fields, in order.
type message []rawField

type rawField struct {
	number protowire.Number
	// value is a varint's, bytes a length-delimited field's. Other wire types have neither.
	value uint64
	bytes []byte
}

func parse(b []byte) (message, error) {
	var out message
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("reading a field's tag: %w", protowire.ParseError(n))
		}
		b = b[n:]
		f := rawField{number: number}
		switch kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return nil, fmt.Errorf("reading field %d: %w", number, protowire.ParseError(n))
		}
		b = b[n:]
		out = append(out, f)
	}
	return out, nil
}

// last is the last field of the number, which is the one that counts.
func (m message) last(number protowire.Number) (rawField, bool) {
	for i := len(m) - 1; i >= 0; i-- {
		if m[i].number == number {
			return m[i], true
		}
	}
	return rawField{}, false
}

func (m message) bytes(number protowire.Number) []byte {
	f, _ := m.last(number)
	return f.bytes
}

func (m message) int(number protowire.Number) uint64 {
	f, _ := m.last(number)
	return f.value
}

// all are the fields of the number, each parsed as a message.
func (m message) all(number protowire.Number) ([]message, error) {
	var out []message
	for _, f := range m {
		if f.number != number {
			continue
		}
		inner, err := parse(f.bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, inner)
	}
	return out, nil
}

// clip keeps foreign text short enough for an error.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
