package api_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Bug D10: whatever callers send, the number of metric series stays as it is. (50,000 calls with DISCLOSURED_SOAK=1, else 3,000.)
func TestD10MetricSeriesAreBounded(t *testing.T) {
	w := populated(t)
	call := func(rng *rand.Rand) {
		var d wormhole.Digest
		for i := range d {
			d[i] = byte(rng.Uint32())
		}
		name := fmt.Sprintf("party-%d::1220", rng.Uint64())
		requests := []func() error{
			func() error {
				_, err := w.client.PrepareRedeem(context.Background(), prepareDigest(d.String()))
				return err
			},
			func() error {
				_, err := w.client.GetCoveringNode(context.Background(), &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: name}, Digest: d.String()})
				return err
			},
			func() error {
				_, err := w.client.GetContractFate(context.Background(), &disclosurev1.GetContractFateRequest{ContractId: cid(name)})
				return err
			},
			func() error {
				_, err := w.client.GetEmitter(context.Background(), &disclosurev1.GetEmitterRequest{Owner: name, EmitterId: rng.Int64()})
				return err
			},
			func() error {
				_, err := w.client.GetRegistry(context.Background(), &disclosurev1.GetRegistryRequest{Kind: disclosurev1.RegistryKind(rng.IntN(5)), Operator: name})
				return err
			},
			func() error {
				return w.conn.Invoke(context.Background(), "/disclosure.v1.DisclosureService/"+strings.ReplaceAll(name, ":", ""), &disclosurev1.GetServerInfoRequest{}, &disclosurev1.GetServerInfoResponse{})
			},
		}
		_ = requests[rng.IntN(len(requests))]() // errors are among what is counted
	}
	count := soak(3_000, 50_000)
	rounds := func(calls int) {
		var callers sync.WaitGroup
		for c := range uint64(8) {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(c, uint64(calls)))
				for range calls / 8 {
					call(rng)
				}
			})
		}
		callers.Wait()
	}
	series := func() int {
		families, err := w.metrics.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "disclosured_") {
				n += len(f.GetMetric())
			}
		}
		return n
	}
	rounds(1_000) // every method and outcome has its series after that
	before := series()
	rounds(count)
	if after := series(); after != before || before == 0 {
		t.Errorf("%d series after %d calls more, %d before", after, count, before)
	}
}
