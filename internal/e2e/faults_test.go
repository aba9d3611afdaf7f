package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver"
)

// TestFaults does to the service what the world does, one thing each, and keeps what was seen in docs/faults.md.
func TestFaults(t *testing.T) {
	var mu sync.Mutex
	rows := map[string]faultRow{}
	t.Run("each", func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				row := runFault(t, f)
				mu.Lock()
				defer mu.Unlock()
				rows[f.name] = row
			})
		}
	})
	if t.Failed() || len(rows) < len(faults) {
		return // some were not asked for, or have failed
	}
	var ordered []faultRow
	for _, f := range faults {
		ordered = append(ordered, rows[f.name])
	}
	compareTable(t, ordered)
}

const (
	getUpdates   = "/com.daml.ledger.api.v2.UpdateService/GetUpdates"
	getLedgerEnd = "/com.daml.ledger.api.v2.StateService/GetLedgerEnd"
	getContracts = "/com.daml.ledger.api.v2.StateService/GetActiveContracts"
)

func reconnects(reason string) string {
	return fmt.Sprintf("disclosured_stream_reconnects_total{reason=%q}", reason)
}

var faults = []fault{
	{
		name: "the participant drops all connections, five times",
		happen: func(r *faultRun) {
			// Which of the two is seen first is chance.
			lost := func(m map[string]float64) float64 {
				return m[reconnects("unavailable")] + m[reconnects("connection_lost")]
			}
			for range 5 {
				r.metricsFromHere()
				r.follows()
				r.w.sim.DropConnections()
				until(r, patience, "a reconnect", func() error {
					if lost(r.svc.metrics()) <= lost(r.before) {
						return errNotYet
					}
					return nil
				})
				r.svc.waitState(patience, "live")
				r.advances()
			}
			r.row.seen = []string{"reconnecting", "live"}
			r.row.told = []string{"`" + reconnects("unavailable") + "` or `connection_lost`"}
			r.row.answer = []string{"nothing, while the last proof is within the bound"}
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "the participant ends its streams with OK, ten times (A01)",
		happen: func(r *faultRun) {
			for range 10 {
				r.metricsFromHere()
				r.follows()
				r.w.sim.EndStreams(nil)
				until(r, patience, "a reconnect", func() error {
					if r.svc.metrics()[reconnects("eof")] <= r.before[reconnects("eof")] {
						return errNotYet
					}
					return nil
				})
				r.svc.waitState(patience, "live")
				r.advances()
			}
			r.row.seen = []string{"reconnecting", "live"}
			r.row.told = []string{"`" + reconnects("eof") + "`"}
			r.row.answer = []string{"nothing, while the last proof is within the bound"}
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "the participant gets SIGTERM: its streams end as Canceled",
		happen: func(r *faultRun) {
			r.follows()
			r.w.sim.Terminate()
			r.shows(reconnects("canceled"))
			r.row.seen = []string{"reconnecting", "live"}
			r.row.answer = []string{"nothing, while the last proof is within the bound"}
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "the participant accepts calls and answers none",
		happen: func(r *faultRun) {
			release := r.w.sim.Hang()
			r.is("reconnecting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("deadline_exceeded"))
			release()
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "a black hole between service and participant: no packet passes, no connection ends (A23)",
		happen: func(r *faultRun) {
			r.proxy.swallow()
			r.is("reconnecting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("deadline_exceeded"), "disclosured_stream_proof_age_seconds")
			r.proxy.heal(true)
			r.recovers("a new connection, goes on at its own offset; nothing lost")
		},
	},
	{
		name: "the update stream is silent, calls are answered",
		happen: func(r *faultRun) {
			r.w.sim.Silence(true)
			r.stays("live")
			r.shows("disclosured_stream_applied_updates_total")
			r.w.sim.Silence(false)
			r.recovers("bounded reads had brought everything")
		},
	},
	{
		name: "the update stream brings checkpoints alone",
		happen: func(r *faultRun) {
			r.load.stop()
			r.advances()
			r.w.sim.CheckpointsOnly(true)
			for range 5 {
				r.w.sim.AdvanceLedgerEnd(10)
				r.w.sim.EmitCheckpoint()
				r.advances()
			}
			r.is("live", "ready", "OK")
			r.shows(`disclosured_stream_updates_total{kind="checkpoint"}`)
			r.w.sim.CheckpointsOnly(false)
			r.recovers("the index stands at the ledger end")
		},
	},
	{
		name: "the ledger end runs ahead: thousands of offsets with nothing for us",
		happen: func(r *faultRun) {
			for range 5 {
				r.w.sim.AdvanceLedgerEnd(1000)
				r.advances()
			}
			r.stays("live")
			r.shows("disclosured_stream_proven_offset")
			r.recovers("the index stands at the ledger end, by proof")
		},
	},
	{
		name: "the ledger end can't be read",
		happen: func(r *faultRun) {
			release := r.w.sim.Hang(getLedgerEnd)
			r.is("reconnecting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("deadline_exceeded"))
			release()
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "the ledger end is ahead and what is up to it can't be read (E06)",
		happen: func(r *faultRun) {
			release := r.w.sim.Hang(getUpdates)
			r.w.sim.Terminate() // the streams that are open
			r.w.sim.AdvanceLedgerEnd(10)
			r.svc.waitNotReady(patience, "STALE")
			r.svc.live()
			r.row.seen = []string{"reconnecting"}
			r.row.answer = []string{"/readyz 503 STALE, calls STALE"}
			r.staleAnswers()
			r.shows("disclosured_stream_proof_age_seconds")
			release()
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "pruned past the index, live",
		happen: func(r *faultRun) {
			release := r.w.sim.Hang(getUpdates)
			r.w.sim.Terminate()
			r.svc.waitNotReady(patience, "STALE")
			r.j.prune()
			release()
			r.reseeded("pruned")
			r.row.seen = []string{"reconnecting", "snapshot", "live"}
			r.row.answer = []string{"/readyz 503 STALE until the new index is in place"}
			r.recovers("built anew at the ledger end; what ended in the gap is GONE, what was consumed in it is consumed, by an unknown update")
		},
	},
	{
		name:     "pruned past the index while the service is down (A04)",
		database: true,
		happen: func(r *faultRun) {
			r.svc.stop()
			r.grows(20)
			r.j.prune()
			r.start()
			r.before = nil
			r.row.seen = []string{"snapshot", "live"}
			r.row.answer = []string{"/readyz 503 until the new index is in place"}
			r.reseeded("pruned")
			r.recovers("built anew at the ledger end; what ended in the gap is GONE, what was consumed in it is consumed, by an unknown update")
		},
	},
	{
		name:     "another participant behind the same address (A06)",
		settings: settings{"participant.read_as": "[]", "participant.read_as_any_party": "true"},
		happen: func(r *faultRun) {
			other := newWorld(r, ledgersim.Options{Name: "other", Seed: 7}, 3)
			r.j.expect("UNKNOWN_SCOPE", "CORE_STATE_MISSING")
			r.load.stop()
			r.j.become(other, false, func() { r.proxy.retarget(other.address) })
			r.reseeded("another_participant")
			r.row.seen = []string{"reconnecting", "snapshot", "live"}
			r.row.answer = []string{"/readyz 503 NOT_READY from the moment that it is known, then the other's contracts"}
			until(r, patience, "the index is the other's", func() error {
				info, err := r.svc.info()
				if err != nil {
					return err
				}
				if at := info.GetAnswer().GetPosition(); at.GetParticipantId() != other.sim.ParticipantID() || !info.Ready {
					return fmt.Errorf("it is at %v", at)
				}
				return nil
			})
			// The anchors are parties of the first: nothing of the other is authentic, and nothing is served.
			if _, err := r.j.equalsLedger(r.svc.api); err != nil {
				r.Error(err)
			}
			if got := r.prepare(false); got != "UNKNOWN_SCOPE" {
				r.Errorf("the answer is %s", got)
			}
			r.row.after = []string{"built anew from the other's ledger, without the former history; only contracts of the configured anchors are served"}
		},
	},
	{
		name: "another participant that hosts the same parties, under other offsets (A06)",
		happen: func(r *faultRun) {
			r.load.stop()
			r.j.become(r.w, true, func() { r.w.sim.BecomeSibling(1000) })
			r.reseeded("another_participant")
			r.loadAgain()
			r.row.seen = []string{"reconnecting", "snapshot", "live"}
			r.row.answer = []string{"/readyz 503 NOT_READY from the moment that it is known until the new index is in place"}
			r.recovers("built anew; history begins there")
		},
	},
	{
		name: "another participant behind the same address, and participant.id names the first",
		configure: func(w *world) settings {
			return settings{"participant.id": fmt.Sprintf("%q", w.sim.ParticipantID())}
		},
		happen: func(r *faultRun) {
			other := newWorld(r, ledgersim.Options{Name: "other", Seed: 7}, 3)
			r.proxy.retarget(other.address)
			r.is("reconnecting", "NOT_READY", "NOT_READY")
			r.shows(reconnects("sink"))
			detail := r.svc.waitState(patience, "reconnecting")
			checkMentions(r.T, "the detail", detail, "participant.id", r.w.sim.ParticipantID(), other.sim.ParticipantID())
			r.proxy.retarget(r.w.address)
			r.recovers("refused, whatever it offers; once the first is back it is followed again")
		},
	},
	{
		name: "the participant is restored to an earlier state",
		happen: func(r *faultRun) {
			r.grows(60)
			r.load.stop()
			r.advances()
			release := r.w.sim.Hang(getContracts)
			r.j.become(r.w, true, func() { r.w.sim.RestoreTo(r.w.sim.LedgerEnd() - 20) })
			r.replaced("rewound", release)
			r.loadAgain()
			r.row.seen = []string{"reconnecting", "snapshot", "live"}
			r.row.answer = []string{"as before until it is known, at most for the bound; then /readyz 503 NOT_READY, calls NOT_READY, also with allow_stale, until the new index is in place"}
			r.recovers("built anew; history begins there (A27: the updates after the restored end apply)")
		},
	},
	{
		name: "the participant is restored to a state after our last update and grows past the index while the service can't reach it",
		happen: func(r *faultRun) {
			r.grows(60)
			r.load.stop()
			r.advances()
			r.w.sim.AdvanceLedgerEnd(100) // nothing of ours
			r.advances()
			r.proxy.swallow()
			r.j.become(r.w, true, func() { r.w.sim.RestoreTo(r.w.sim.LedgerEnd() - 50) })
			r.loadAgain()
			r.grows(20)
			r.w.sim.AdvanceLedgerEnd(100)
			release := r.w.sim.Hang(getContracts)
			r.svc.waitNotReady(patience, "STALE")
			r.proxy.heal(true)
			r.replaced("diverged", release)
			r.row.seen = []string{"reconnecting", "snapshot", "live"}
			r.row.answer = []string{"/readyz 503 STALE, calls STALE while it is away; then NOT_READY, also with allow_stale, until the new index is in place"}
			r.recovers("built anew: there are updates of ours between the last one and the place of the index; history begins there")
		},
	},
	{
		name:     "the participant is restored to an earlier state and grows past the index while the service is down",
		database: true,
		happen: func(r *faultRun) {
			r.grows(60)
			r.load.stop()
			r.advances()
			r.svc.stop()
			r.j.become(r.w, true, func() { r.w.sim.RestoreTo(r.w.sim.LedgerEnd() - 20) })
			r.loadAgain()
			r.grows(60)
			r.start()
			r.before = nil
			r.reseeded("diverged")
			r.row.seen = []string{"snapshot", "live"}
			r.row.answer = []string{"/readyz 503 until the new index is in place"}
			r.recovers("built anew: the update that the index applied last is not at its offset any more; history begins there")
		},
	},
	{
		name:     "an update beyond participant.max_message_bytes (A21)",
		database: true,
		settings: settings{"participant.max_message_bytes": "1048576"},
		happen: func(r *faultRun) {
			r.load.stop()
			r.advances()
			r.j.expect("HALTED")
			before := r.w.makeBig(2 << 20)
			r.is("halted", "HALTED", "HALTED")
			r.staleAnswers()
			r.shows(`disclosured_stream_halts_total{reason="oversized"}`, "disclosured_stream_halted_after_offset")
			detail := r.svc.waitState(patience, "halted")
			checkMentions(r.T, "the detail", detail, "1048576", "larger")
			var after int64
			if _, err := fmt.Sscanf(detail, "after offset %d", &after); err != nil || after > before {
				r.Errorf("the detail does not say after which offset, which is not past %d: %s", before, detail)
			}
			r.svc.stop()
			r.settings["participant.max_message_bytes"] = "16777216"
			r.start()
			r.recovers("never skipped; after a restart with a larger limit it passes")
		},
	},
	{
		name: "an update that is no protobuf: INTERNAL at the same place, again and again (A16)",
		happen: func(r *faultRun) {
			at := r.w.sim.Inject(ledgersim.BrokenBytes)
			r.is("reconnecting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("internal"), "disclosured_stream_stuck_at_offset")
			r.stopsAt(0, at)
			r.w.sim.Mend(at)
			r.recovers("tried again at growing intervals, never skipped; goes on once it can be read")
		},
	},
	{
		name: "an update of an unknown kind",
		happen: func(r *faultRun) {
			r.j.expect("HALTED")
			at := r.w.sim.Inject(ledgersim.UnknownUpdate)
			r.is("halted", "HALTED", "HALTED")
			r.staleAnswers()
			r.shows(`disclosured_stream_halts_total{reason="unknown_kind"}`)
			r.stopsAt(0, at) // an update that can't be read does not tell its offset
			r.w.sim.Mend(at)
			r.recovers("the same")
		},
	},
	{
		name: "an event of an unknown kind in a transaction",
		happen: func(r *faultRun) {
			r.j.expect("HALTED")
			at := r.w.sim.Inject(ledgersim.UnknownEvent)
			r.is("halted", "HALTED", "HALTED")
			r.staleAnswers()
			r.shows(`disclosured_stream_halts_total{reason="unknown_kind"}`)
			r.stopsAt(at, at)
			r.w.sim.Mend(at)
			r.recovers("the same")
		},
	},
	{
		name: "a contract of an unknown shape (A26)",
		happen: func(r *faultRun) {
			r.j.expect("HALTED")
			at := r.w.sim.Inject(ledgersim.WrongShape)
			r.is("halted", "HALTED", "HALTED")
			r.staleAnswers()
			r.shows(`disclosured_stream_halts_total{reason="undecodable"}`)
			r.stopsAt(at, at)
			r.w.sim.Mend(at)
			r.recovers("the same")
		},
	},
	{
		name: "contracts with a wrong blob and without a blob (B01, B09)",
		happen: func(r *faultRun) {
			r.w.sim.Inject(ledgersim.WrongBlob)
			r.w.sim.Inject(ledgersim.MissingBlob)
			r.advances()
			r.is("live", "ready", "OK")
			r.shows(`disclosured_stream_blobs_total{check="mismatch"}`, `disclosured_stream_blobs_total{check="missing"}`)
			r.row.after = append(r.row.after, "such contracts are held and never served")
		},
	},
	{
		name: "contracts of an imported party, as created and as assigned from nowhere",
		happen: func(r *faultRun) {
			r.imports(ledgersim.ImportAsTransaction)
			r.imports(ledgersim.ImportAsAssignment)
			r.stays("live")
			r.shows(`disclosured_index_oddities_total{what="import"}`)
			r.recovers("served like all others")
		},
	},
	{
		name: "a repair purges a contract",
		happen: func(r *faultRun) {
			id := r.imports(ledgersim.ImportAsTransaction)
			r.advances()
			if _, err := r.w.sim.Purge(id); err != nil {
				r.Fatal(err)
			}
			r.advances()
			r.is("live", "ready", "OK")
			r.shows(`disclosured_index_oddities_total{what="purge"}`)
			if _, err := r.j.equalsLedger(r.svc.api); err != nil {
				r.Error(err)
			}
			r.row.after = append(r.row.after, "gone; its trie has a gap, which is a finding")
		},
	},
	{
		name:     "the connections to the database are cut",
		database: true,
		happen: func(r *faultRun) {
			for range 5 {
				r.db.cut()
				r.advances()
			}
			r.row.seen = []string{"live"}
			r.row.answer = []string{"nothing, or /readyz 503 STALE for a moment"}
			r.row.told = []string{"the log; `disclosured_stream_reconnects_total{reason=\"sink\"}` where a commit failed"}
			r.recovers("the place is read again where the outcome of a commit is not known; nothing lost")
		},
	},
	{
		name:     "a black hole between service and database; its connections are lost (D07)",
		database: true,
		settings: settings{"database.max_connections": "4"},
		happen: func(r *faultRun) {
			r.db.swallow()
			r.svc.waitNotReady(patience, "STALE")
			r.svc.live()
			r.askHistoryAtOnce(16)
			r.row.seen = []string{"live or reconnecting"}
			r.row.answer = []string{"/readyz 503 STALE, calls STALE"}
			r.staleAnswers()
			r.shows("disclosured_stream_proof_age_seconds")
			r.db.heal(true)
			r.recoversWithin(10*time.Second, "new connections, within 10 s")
		},
	},
	{
		name:     "a black hole between service and database; packets come late",
		database: true,
		happen: func(r *faultRun) {
			r.db.swallow()
			r.svc.waitNotReady(patience, "STALE")
			r.row.seen = []string{"live or reconnecting"}
			r.row.answer = []string{"/readyz 503 STALE, calls STALE"}
			r.staleAnswers()
			r.shows("disclosured_stream_proof_age_seconds")
			r.db.heal(false)
			r.recoversWithin(10*time.Second, "within 10 s")
		},
	},
	{
		name:      "the database's server is killed and started again",
		database:  true,
		ownServer: true,
		happen: func(r *faultRun) {
			if err := r.server.Kill(); err != nil {
				r.Fatal(err)
			}
			r.svc.waitNotReady(patience, "STALE")
			r.svc.live()
			r.row.seen = []string{"reconnecting"}
			r.row.answer = []string{"/readyz 503 STALE, calls STALE"}
			r.staleAnswers()
			r.shows(reconnects("sink"))
			if err := r.server.Restart(r.Context(), pgserver.Fast); err != nil {
				r.Fatal(err)
			}
			r.recovers("goes on where the database stands; nothing lost")
		},
	},
	{
		name:     "contracts are deleted from the database, or edited, while the service is down",
		database: true,
		happen: func(r *faultRun) {
			for _, damage := range []string{
				`DELETE FROM disclosured.contract WHERE contract_id = (SELECT max(contract_id) FROM disclosured.contract WHERE entity = 'ReplayNode')`,
				`UPDATE disclosured.contract SET consumed = '', consumed_count = 0 WHERE consumed_count > 0`,
				`UPDATE disclosured.contract SET generation = generation + 1`,
			} {
				r.advances()
				r.svc.stop()
				if execute(r.T, r.direct, damage) == 0 {
					r.Fatalf("nothing to damage: %s", damage)
				}
				r.start()
				r.before = nil
				r.row.told = nil
				r.reseeded("damaged")
				r.svc.waitReady()
			}
			r.row.seen = []string{"snapshot", "live"}
			r.row.answer = []string{"/readyz 503 until the new index is in place"}
			r.recovers("built anew at the ledger end, with its history; nothing of what was damaged is served")
		},
	},
	{
		name: "the token expires",
		sim:  ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("secret")}},
		happen: func(r *faultRun) {
			r.load.stop() // whose tokens expire too
			r.w.sim.ExpireTokens()
			r.loadAgain()
			r.is("waiting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("unauthenticated"))
			r.w.grant(r.token)
			r.recovers("the file is read again with each try; goes on at its own offset")
		},
	},
	{
		name: "the reader's rights are taken and given back",
		sim:  ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("secret"), RightsPoll: 100 * time.Millisecond}},
		happen: func(r *faultRun) {
			r.w.sim.SetRights(reader, nil, nil)
			r.is("waiting", "STALE", "STALE")
			r.staleAnswers()
			r.shows(reconnects("permission_denied"))
			r.w.sim.SetRights(reader, []string{r.w.Operator}, nil)
			r.recovers("goes on at its own offset; nothing lost")
		},
	},
	{
		name: "a replay node is reassigned to another synchronizer and back",
		sim:  ledgersim.Options{Synchronizers: 2},
		happen: func(r *faultRun) {
			r.load.stop()
			r.j.expect("IN_FLIGHT", "DIFFERENT_SYNCHRONIZERS")
			r.advances()
			app := r.w.Apps[0]
			here, there := r.w.sim.Synchronizers()[0], r.w.sim.Synchronizers()[1]
			// All nodes of the trie: whatever digest is asked for.
			for _, leg := range [][2]string{{here, there}, {there, here}} {
				var moving []*submit.Reassignment
				for _, node := range r.w.nodes(app) {
					left, err := r.w.client.Unassign(r.Context(), app.Consumer, node, leg[0], leg[1])
					if err != nil {
						r.Fatal(err)
					}
					moving = append(moving, left)
				}
				r.waitFor("live", "ready", "IN_FLIGHT")
				for _, left := range moving {
					if _, err := r.w.client.Assign(r.Context(), app.Consumer, left); err != nil {
						r.Fatal(err)
					}
				}
				if leg[0] == here {
					r.waitFor("live", "ready", "DIFFERENT_SYNCHRONIZERS")
				}
			}
			r.row.seen = []string{"live"}
			r.row.answer = []string{"/readyz 200; calls IN_FLIGHT while it is on its way, DIFFERENT_SYNCHRONIZERS while CoreState is elsewhere"}
			r.shows(`disclosured_stream_updates_total{kind="reassignment"}`)
			r.recovers("served on its synchronizer, with the new reassignment counter")
		},
	},
}
