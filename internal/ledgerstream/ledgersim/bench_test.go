package ledgersim_test

import (
	"context"
	"errors"
	"io"
	"testing"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
)

// BenchmarkGenerate makes a trie with 67 digests a node, as 10 million digests on 150,000 nodes have.
func BenchmarkGenerate(b *testing.B) {
	for range b.N {
		sim := ledgersim.New(ledgersim.Options{})
		if _, err := sim.Generate(generation(10_000)); err != nil {
			b.Fatal(err)
		}
		sim.Stop()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/10_000, "µs/node")
}

func generation(nodes int) ledgersim.Generation {
	scope := ledgersim.Scope{Consumer: "consumer::1220aa", Operator: "operator::1220aa"}
	return ledgersim.Generation{Scope: scope, Nodes: nodes, Digests: nodes * 67}
}

// BenchmarkSnapshot reads such a trie with blobs.
func BenchmarkSnapshot(b *testing.B) {
	sim := ledgersim.New(ledgersim.Options{})
	defer sim.Stop()
	end, err := sim.Generate(generation(10_000))
	if err != nil {
		b.Fatal(err)
	}
	address, err := sim.Start()
	if err != nil {
		b.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	format := &v2.EventFormat{Verbose: true, FiltersByParty: map[string]*v2.Filters{"operator::1220aa": {Cumulative: []*v2.CumulativeFilter{{
		IdentifierFilter: &v2.CumulativeFilter_WildcardFilter{WildcardFilter: &v2.WildcardFilter{IncludeCreatedEventBlob: true}},
	}}}}}
	b.ResetTimer()
	for range b.N {
		stream, err := v2.NewStateServiceClient(conn).GetActiveContracts(context.Background(), &v2.GetActiveContractsRequest{ActiveAtOffset: end, EventFormat: format})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := stream.Recv(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/10_000, "µs/node")
}
