package devnet

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// TestMakeRedeemGovern makes a devnet, redeems as somebody who is a stakeholder of nothing, upgrades the guardian set, and redeems
// again: what the devnet makes works on a participant.
func TestMakeRedeemGovern(t *testing.T) {
	sim := ledgersim.New(ledgersim.Options{})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := submit.New(conn, "devnet-test")
	w, err := Make(t.Context(), client, Options{Thresholds: []int64{4, 16}})
	if err != nil {
		t.Fatal(err)
	}
	user, err := client.AllocateParty(t.Context(), "user")
	if err != nil {
		t.Fatal(err)
	}
	app, coreState := w.Apps[0], w.CoreState
	redeem := func() {
		t.Helper()
		vaa, err := w.VAA(app, []byte("hello"))
		if err != nil {
			t.Fatal(err)
		}
		at := sim.LedgerEnd()
		node := sim.Covering(ledgersim.Scope{Consumer: app.Consumer, Operator: w.Operator}, vaa.Digest(), at)
		core := sim.ActiveAt(coreState, at)
		if len(node) != 1 || len(core) != 1 {
			t.Fatalf("at offset %d: %d covering nodes and %d CoreStates", at, len(node), len(core))
		}
		_, err = client.Do(t.Context(), []string{user},
			[]submit.Disclosure{submit.Disclose(app.Integrator.Contract), submit.Disclose(core[0]), submit.Disclose(node[0])},
			submit.Redeem(submit.Redemption{
				Integrator: app.Integrator.ContractID, CoreState: coreState, ReplayNode: node[0].ContractID, Redeemer: user,
				EncodedVAA: vaa.EncodedHex(), PubKeys: wormhole.PubKeys(guardians()),
			}))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(sim.Consumed(ledgersim.Scope{Consumer: app.Consumer, Operator: w.Operator}, vaa.Digest(), sim.LedgerEnd())); got != 1 {
			t.Fatalf("the digest was consumed %d times", got)
		}
	}
	redeem()
	for _, make := range []func() (*wormhole.VAA, error){func() (*wormhole.VAA, error) { return w.FeeVAA(7) }, w.UpgradeVAA} {
		vaa, err := make()
		if err != nil {
			t.Fatal(err)
		}
		if coreState, _, err = w.Govern(t.Context(), client, coreState, vaa); err != nil {
			t.Fatal(err)
		}
	}
	w.Upgraded()
	redeem()
	if state, ok := sim.ActiveAt(coreState, sim.LedgerEnd())[0].Payload.(*wormhole.CoreState); !ok || state.MessageFee != 7 || state.GuardianSetIndex != 1 {
		t.Errorf("got %+v, want fee 7 and guardian set 1", state)
	}
}
