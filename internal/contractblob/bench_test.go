package contractblob_test

import (
	"crypto/sha256"
	"testing"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// fullNode is a recorded replay node with 128 digests: the largest that the model's default threshold allows.
func fullNode(b *testing.B) *recording {
	for _, r := range recordings(b) {
		if r.Scenario != "08-threshold-128" || !r.labelled() || len(r.Blob) < 10_000 {
			continue
		}
		return r
	}
	b.Fatal("no full node among the recordings")
	return nil
}

// The floor: whoever verifies a contract id hashes about as many bytes as its blob has.
func BenchmarkSHA256(b *testing.B) {
	blob := fullNode(b).Blob
	b.SetBytes(int64(len(blob)))
	for b.Loop() {
		sha256.Sum256(blob)
	}
}

func BenchmarkDecode(b *testing.B) {
	blob := fullNode(b).Blob
	b.SetBytes(int64(len(blob)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := contractblob.Decode(blob); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecompute(b *testing.B) {
	r := fullNode(b)
	c, err := contractblob.Decode(r.Blob)
	if err != nil {
		b.Fatal(err)
	}
	typed := r.facts(b).Argument
	b.SetBytes(int64(len(r.Blob)))
	b.ReportAllocs()
	for b.Loop() {
		if err := contractblob.Recompute(c, typed); err != nil {
			b.Fatal(err)
		}
	}
}

// What is done at ingest, with an event that has names and labels.
func BenchmarkCheck(b *testing.B) {
	r := fullNode(b)
	facts := r.facts(b)
	b.SetBytes(int64(len(r.Blob)))
	b.ReportAllocs()
	for b.Loop() {
		if result, err := contractblob.Check(r.Blob, facts, nil); result != contractblob.Verified {
			b.Fatal(err)
		}
	}
}

// The same with an event that has none.
func BenchmarkCheckBySchema(b *testing.B) {
	r := fullNode(b)
	facts := r.facts(b)
	facts.Argument = unlabelled(facts.Argument).(damlvalue.Record)
	schemas := wormhole.Schemas(facts.TemplateID.QualifiedName())
	b.SetBytes(int64(len(r.Blob)))
	b.ReportAllocs()
	for b.Loop() {
		if result, err := contractblob.Check(r.Blob, facts, schemas); result != contractblob.Verified {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	c, err := contractblob.Decode(fullNode(b).Blob)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := contractblob.Encode(c); err != nil {
			b.Fatal(err)
		}
	}
}
