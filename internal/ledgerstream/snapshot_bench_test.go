package ledgerstream

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// realNode is the created event of a root node that holds n digests, with a contract id and a blob that belong to it.
func realNode(t testing.TB, seed uint64, n int) *ledgerapi.CreatedEvent {
	t.Helper()
	random := func(i uint64) [32]byte {
		return sha256.Sum256(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, seed), i))
	}
	digests := make([]wormhole.Digest, n)
	for i := range digests {
		digests[i] = random(uint64(i))
	}
	template := wormhole.ReplayNodeTemplate
	template.PackageID = packageID
	argument := wormhole.Encode(&wormhole.ReplayNode{
		Consumer: consumer, Operator: operator, SplitThreshold: 128, Consumed: wormhole.NewSuffixSet(digests...),
	})
	c, blob, err := contractblob.NewContract(contractblob.Draft{
		Discriminator: random(1 << 40), Salt: random(1 << 41), CreatedAt: epoch, PackageName: "wormhole-core", TemplateID: template,
		Argument: argument, Signatories: []string{consumer, operator},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &ledgerapi.CreatedEvent{
		Offset: 1, ContractId: c.ContractID.String(), PackageName: "wormhole-core", AcsDelta: true, CreatedEventBlob: blob,
		TemplateId: apivalue.Identifier(template), Signatories: c.Signatories, CreatedAt: timestamppb.New(epoch),
		CreateArguments: apivalue.RecordToProto(argument, true),
	}
}

// BenchmarkSnapshot reads snapshots of nodes of 67 digests each (10 million digests are 150,000 of them) over TCP into a generation
// of an index that keeps them in a map.
func BenchmarkSnapshot(b *testing.B) {
	const nodes = 5000
	entries := make([]*ledgerapi.GetActiveContractsResponse, nodes)
	var size int
	for i := range entries {
		c := realNode(b, uint64(i), 67)
		size += len(c.CreatedEventBlob)
		entries[i] = &ledgerapi.GetActiveContractsResponse{
			ContractEntry: &ledgerapi.GetActiveContractsResponse_ActiveContract{ActiveContract: &ledgerapi.ActiveContract{
				CreatedEvent: c, SynchronizerId: synchronizer,
			}},
		}
	}
	p := newParticipant()
	p.end = 10
	p.onSnapshot = func(_ int, _ *ledgerapi.GetActiveContractsRequest, s ledgerapi.StateService_GetActiveContractsServer) error {
		for _, e := range entries {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
	conn, err := Dial(ConnConfig{Target: p.listen(b), Plaintext: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	f := New(testConfig(), conn, &memorySink{})
	b.ReportAllocs()
	for b.Loop() {
		s := &session{f: f, filter: f.cfg.fullFilter(), participantID: p.id}
		s.convert = newConverter(s.filter, p.id, &f.metrics)
		g := &memorySeed{active: make(map[string]ledger.Contract)}
		n, end := s.fill(b.Context(), g, 10)
		if end != nil || n.contracts != nodes {
			b.Fatalf("%d contracts: %v", n.contracts, end)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*nodes), "µs/contract")
	b.Logf("blobs of %d bytes", size/nodes)
}
