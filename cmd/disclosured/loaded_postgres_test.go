package main

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/index/postgres"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// What a participant gave and a database gives back passes the check; the same with one column edited, or a row less, is not
// served.
func TestAnEditedDatabaseIsNotServed(t *testing.T) {
	ctx := t.Context()
	sim := ledgersim.New(ledgersim.Options{})
	address, err := sim.StartOn("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Stop()
	world, err := makeWorld(ctx, address, []int64{4})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	config := followWorld(address, world)
	policy, err := policyOf(config)
	if err != nil {
		t.Fatal(err)
	}
	participant, err := dialParticipant(config, log)
	if err != nil {
		t.Fatal(err)
	}
	defer participant.Close()
	prober := ledgerstream.NewProber(streamConfig(config), participant)
	peer, err := prober.Identify(ctx)
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Database(t)
	store, err := postgres.Open(ctx, postgres.Config{URL: url, Migrate: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	lease, err := store.AcquireLease(ctx, postgres.LeaseOptions{Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(ctx)
	open := func() *index.Index {
		t.Helper()
		x, err := index.Open(ctx, policy, store, index.Options{Logger: log, CheckLoaded: checkLoaded})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	seed, err := open().BeginSeed(ctx, ledger.SeedStart{ParticipantID: peer.ParticipantID, Offset: peer.LedgerEnd, Reason: ledger.SeedFirst})
	if err != nil {
		t.Fatal(err)
	}
	err = prober.ReadActive(ctx, peer, peer.LedgerEnd, nil, func(active []ledger.Contract, _ []ledger.InFlight) error { return seed.Add(ctx, active) })
	if err == nil {
		err = seed.Commit(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	x := open()
	if x.View() == nil || x.View().Stats().Contracts < 4 {
		t.Fatalf("what was written does not pass: view %v", x.View())
	}

	db, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	do := func(sql string) {
		t.Helper()
		if _, err := db.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do(`CREATE TABLE as_written AS TABLE disclosured.contract`)
	for _, edit := range []string{
		`UPDATE disclosured.contract SET consumed = decode(repeat('ab', 32), 'hex'), consumed_count = 1 WHERE kind = 'replay_node'`,
		`UPDATE disclosured.contract SET payload = jsonb_set(payload, '{guardianSetIndex}', '7') WHERE kind = 'core_state'`,
		`UPDATE disclosured.contract SET signatories = array_append(signatories, 'x') WHERE kind = 'emitter_registry'`,
		`DELETE FROM disclosured.contract WHERE kind = 'emitter_registry'`,
		`DELETE FROM disclosured.contract`,
		`UPDATE disclosured.contract SET blob_check = 0 WHERE kind = 'replay_node'`,
		`UPDATE disclosured.contract SET blob_check = 2 WHERE kind = 'replay_node'`,
		`UPDATE disclosured.contract SET blob_check = 3`,
		`UPDATE disclosured.contract SET blob_check = 3, blob_fault = 'contract does not match' WHERE kind = 'core_state'`,
		`UPDATE disclosured.contract SET blob_check = 4 WHERE kind = 'emitter_registry'`,
	} {
		tag, err := db.Exec(ctx, edit)
		if err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %d rows, %v", edit, tag.RowsAffected(), err)
		}
		x := open()
		pos, ok, err := x.Position(ctx)
		if x.View() != nil || !ok || err != nil || pos.Reseed != ledger.SeedDamaged {
			t.Errorf("after %s: view %v, position %+v, %v, %v", edit, x.View() != nil, pos, ok, err)
		}
		do(`DELETE FROM disclosured.contract`)
		do(`INSERT INTO disclosured.contract SELECT * FROM as_written`)
		if open().View() == nil {
			t.Fatalf("what was put back as it was written does not pass, after %s", edit)
		}
	}
}
