package api_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// One caller, one call at a time, over a loopback socket, against 4,096 nodes; with the 99th percentile. A mainnet VAA has 13 signatures,
// and recovering their keys is most of its call.
func BenchmarkPrepareRedeem(b *testing.B) {
	t := &testing.T{}
	signers := map[uint8]wormhole.GuardianKey{}
	var set wormhole.GuardianSet
	for i := range uint8(19) {
		key := wormhole.TestGuardian(fmt.Sprint(i))
		set.Keys = append(set.Keys, key.Address())
		if i < 13 {
			signers[i] = key
		}
	}
	contracts := []ledger.Contract{contract("core", core(map[int64]wormhole.GuardianSet{0: set}))}
	for i := range 4096 {
		c := contract(fmt.Sprintf("n%d", i), node(t, fmt.Sprintf("%03x", i)))
		c.Blob = make([]byte, 10<<10)
		contracts = append(contracts, c)
	}
	signed := wormhole.SignVAA(wormhole.VAABody{Sequence: 1, Payload: []byte("payload")}, 0, signers)
	w := newWorldTB(b, func(_ *api.Config, d *api.Deps) { d.Log = slog.New(slog.DiscardHandler) })
	w.seed(contracts...)
	batch := &disclosurev1.BatchPrepareRedeemRequest{}
	for i := range 100 {
		batch.Items = append(batch.Items, prepareDigest(digest(fmt.Sprintf("%03x", i*40)).String()))
	}
	for name, req := range map[string]proto.Message{"digest": prepareDigest(digest("abc").String()), "vaa13": prepareVAA(signed.EncodedHex()), "batch100": batch} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := w.ask(b.Context(), req); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
