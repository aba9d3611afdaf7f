package ledgersim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// reading is what an index asks for as the operator.
func (w *world) reading() *v2.EventFormat {
	return &v2.EventFormat{Verbose: true, FiltersByParty: map[string]*v2.Filters{w.operator: {Cumulative: []*v2.CumulativeFilter{{
		IdentifierFilter: &v2.CumulativeFilter_WildcardFilter{WildcardFilter: &v2.WildcardFilter{IncludeCreatedEventBlob: true}},
	}}}}}
}

func (w *world) format() *v2.UpdateFormat {
	return &v2.UpdateFormat{
		IncludeTransactions:   &v2.TransactionFormat{EventFormat: w.reading(), TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA},
		IncludeReassignments:  w.reading(),
		IncludeTopologyEvents: &v2.TopologyFormat{IncludeParticipantAuthorizationEvents: &v2.ParticipantAuthorizationTopologyFormat{Parties: []string{w.operator}}},
	}
}

// tail opens a stream of updates.
func (w *world) tail(begin int64) grpc.ServerStreamingClient[v2.GetUpdatesResponse] {
	w.t.Helper()
	stream, err := v2.NewUpdateServiceClient(w.conn).GetUpdates(w.ctx, &v2.GetUpdatesRequest{BeginExclusive: begin, UpdateFormat: w.format()})
	if err != nil {
		w.t.Fatal(err)
	}
	return stream
}

// receive takes the next element that is no checkpoint.
func (w *world) receive(stream grpc.ServerStreamingClient[v2.GetUpdatesResponse]) (*v2.GetUpdatesResponse, error) {
	for {
		m, err := stream.Recv()
		if err != nil || m.GetOffsetCheckpoint() == nil {
			return m, err
		}
	}
}

// ends receives until the stream ends.
func (w *world) ends(stream grpc.ServerStreamingClient[v2.GetUpdatesResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func wantCode(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code || detailsOf(st).reason != reason {
		t.Fatalf("got %s %q (%s), want %s %q", st.Code(), detailsOf(st).reason, st.Message(), code, reason)
	}
}

// consume consumes the i-th test digest.
func (w *world) consume(i byte) *submit.Result {
	w.t.Helper()
	d := wormhole.Digest{i, 1}
	result, err := w.client.Do(w.ctx, []string{w.consumer}, nil, submit.ConsumeDigest(w.covering(d).ContractID, d.String()))
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) snapshot(at int64) ([]*v2.GetActiveContractsResponse, error) {
	stream, err := v2.NewStateServiceClient(w.conn).GetActiveContracts(w.ctx, &v2.GetActiveContractsRequest{ActiveAtOffset: at, EventFormat: w.reading()})
	if err != nil {
		return nil, err
	}
	var out []*v2.GetActiveContractsResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

// agree compares what is read over the API with the truth: ids, offsets, and blobs that recompute.
func (w *world) agree(at int64) {
	w.t.Helper()
	entries, err := w.snapshot(at)
	if err != nil {
		w.t.Fatal(err)
	}
	want, got := map[string]int64{}, map[string]int64{}
	for _, c := range w.sim.Active(at) {
		want[c.ContractID+"@"+c.SynchronizerID] = c.Offset
		if result, err := contractblob.Check(c.Blob, contractblob.Facts{
			ContractID: c.ContractID, TemplateID: c.TemplateID, PackageName: c.PackageName, Signatories: c.Signatories, Observers: c.Observers,
			CreatedAt: c.CreatedAt, Argument: wormhole.Encode(c.Payload),
		}, wormhole.Schemas(c.TemplateID.QualifiedName())); result != contractblob.Verified {
			w.t.Errorf("%s: %v", c.ContractID, err)
		}
	}
	for _, e := range entries {
		c := e.GetActiveContract()
		if _, err := wormhole.Decode(apivalue.TypeName(c.GetCreatedEvent().GetTemplateId()), mustRecord(w.t, c.GetCreatedEvent())); err == nil {
			got[c.GetCreatedEvent().GetContractId()+"@"+c.GetSynchronizerId()] = c.GetCreatedEvent().GetOffset()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("active contracts at %d (-truth +read):\n%s", at, diff)
	}
}

func TestFaultsOfTheConnection(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 3}, 4)
	stream := w.tail(w.sim.LedgerEnd())
	if err := w.sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	w.sim.DropConnections()
	wantCode(t, w.ends(stream), codes.Unavailable, "")

	stream = w.tail(w.sim.LedgerEnd())
	if err := w.sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	w.sim.Terminate()
	// What a client sees of SIGTERM: Canceled, though it did not cancel anything.
	if err := w.ends(stream); status.Code(err) != codes.Canceled || w.ctx.Err() != nil {
		t.Fatalf("got %v", err)
	}

	release := w.sim.Hang(v2.StateService_GetLedgerEnd_FullMethodName)
	short, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond)
	defer cancel()
	_, err := v2.NewStateServiceClient(w.conn).GetLedgerEnd(short, &v2.GetLedgerEndRequest{})
	wantCode(t, err, codes.DeadlineExceeded, "")
	if _, err := w.client.ParticipantID(w.ctx); err != nil {
		t.Fatalf("another method hangs too: %v", err)
	}
	release()
	if _, err := w.client.LedgerEnd(w.ctx); err != nil {
		t.Fatal(err)
	}

	w.sim.FailNext(v2.StateService_GetLedgerEnd_FullMethodName, status.Error(codes.Internal, "once"))
	_, err = w.client.LedgerEnd(w.ctx)
	if status.Code(err) != codes.Internal {
		t.Fatalf("got %v", err)
	}
	if _, err := w.client.LedgerEnd(w.ctx); err != nil {
		t.Fatal(err)
	}

	w.sim.LoseAnswers(1)
	before := w.sim.LedgerEnd()
	d := wormhole.Digest{9, 1}
	_, err = w.client.Do(w.ctx, []string{w.consumer}, nil, submit.ConsumeDigest(w.covering(d).ContractID, d.String()))
	if status.Code(err) != codes.Unavailable || w.sim.LedgerEnd() == before || len(w.sim.Consumed(w.scope(), d, w.sim.LedgerEnd())) != 1 {
		t.Fatalf("got %v, ledger end %d after %d: want a commit and a lost answer", err, w.sim.LedgerEnd(), before)
	}
}

func TestSilenceAndCheckpoints(t *testing.T) {
	clock := newClock(time.Unix(1_800_000_000, 0))
	w := newWorld(t, ledgersim.Options{Seed: 4, Clock: clock}, 4)
	stream := w.tail(w.sim.LedgerEnd())
	if err := w.sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	w.sim.Silence(true)
	held := w.consume(1)
	w.sim.Silence(false)
	m, err := w.receive(stream)
	if err != nil || m.GetTransaction().GetOffset() != held.Offset {
		t.Fatalf("got %v, %v, want the update that was held back", m, err)
	}
	w.sim.CheckpointsOnly(true)
	unseen := w.consume(2)
	w.sim.EmitCheckpoint()
	next, err := stream.Recv()
	for err == nil && next.GetOffsetCheckpoint().GetOffset() < unseen.Offset {
		w.sim.EmitCheckpoint()
		next, err = stream.Recv()
	}
	if err != nil || next.GetOffsetCheckpoint().GetOffset() < unseen.Offset {
		t.Fatalf("got %v, %v, want a checkpoint past %d", next, err, unseen.Offset)
	}
	w.sim.CheckpointsOnly(false)
	w.sim.AdvanceLedgerEnd(100)
	end := w.sim.LedgerEnd()
	if got, err := w.client.LedgerEnd(w.ctx); err != nil || got != end || end < unseen.Offset+100 {
		t.Fatalf("ledger end %d, %v, want %d", got, err, end)
	}
	clock.advance(time.Minute)
	if next, err = stream.Recv(); err != nil || next.GetOffsetCheckpoint().GetOffset() != end {
		t.Fatalf("got %v, %v, want a checkpoint at %d after a minute of silence", next, err, end)
	}
}

func TestPruningRestoringAndBecomingAnother(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 5}, 4)
	var results []*submit.Result
	for i := range byte(8) {
		results = append(results, w.consume(i))
	}
	w.agree(w.sim.LedgerEnd())
	mid := results[3].Offset
	truth := w.sim.Active(mid)

	w.sim.PruneTo(mid)
	wantCode(t, w.ends(w.tail(mid-1)), codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED")
	_, err := w.snapshot(mid - 1)
	wantCode(t, err, codes.FailedPrecondition, "PARTICIPANT_PRUNED_DATA_ACCESSED")
	w.agree(mid)
	if diff := cmp.Diff(truth, w.sim.Active(mid), cmp.AllowUnexported(wormhole.SuffixSet{}, wormhole.Prefix{})); diff != "" {
		t.Errorf("pruning changed the truth:\n%s", diff)
	}

	stream := w.tail(w.sim.LedgerEnd())
	if err := w.sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	w.sim.RestoreTo(results[5].Offset + 2)
	wantCode(t, w.ends(stream), codes.Unavailable, "ABORTED_DUE_TO_SHUTDOWN")
	wantCode(t, w.ends(w.tail(results[7].Offset)), codes.OutOfRange, "OFFSET_AFTER_LEDGER_END")
	if len(w.sim.Consumed(w.scope(), wormhole.Digest{7, 1}, w.sim.LedgerEnd())) != 0 {
		t.Error("a consume survived the restore to before it")
	}
	w.agree(w.sim.LedgerEnd())
	again := w.consume(6)
	if again.Offset != results[6].Offset || again.UpdateID == results[6].UpdateID {
		t.Errorf("after the restore: offset %d, update %s; want the offset %d and another update than %s", again.Offset, again.UpdateID, results[6].Offset, results[6].UpdateID)
	}

	participant, end := w.sim.ParticipantID(), w.sim.LedgerEnd()
	w.sim.BecomeSibling(1000)
	if w.sim.ParticipantID() == participant || w.sim.LedgerEnd() != end+1000 {
		t.Errorf("sibling %s at %d", w.sim.ParticipantID(), w.sim.LedgerEnd())
	}
	w.agree(w.sim.LedgerEnd())
	w.consume(7)

	w.sim.BecomeAnotherParticipant()
	if len(w.sim.Active(w.sim.LedgerEnd())) != 0 {
		t.Error("another participant has our contracts")
	}
}

func TestInjections(t *testing.T) {
	for kind, check := range map[ledgersim.Injection]func(m *v2.GetUpdatesResponse, err error) bool{
		ledgersim.BrokenBytes:   func(_ *v2.GetUpdatesResponse, err error) bool { return status.Code(err) == codes.Internal },
		ledgersim.UnknownUpdate: func(m *v2.GetUpdatesResponse, err error) bool { return err == nil && m.GetUpdate() == nil },
		ledgersim.UnknownEvent: func(m *v2.GetUpdatesResponse, err error) bool {
			return err == nil && len(m.GetTransaction().GetEvents()) == 1 && m.GetTransaction().GetEvents()[0].GetEvent() == nil
		},
		ledgersim.EmptyTransaction: func(m *v2.GetUpdatesResponse, err error) bool {
			return err == nil && m.GetTransaction() != nil && len(m.GetTransaction().GetEvents()) == 0
		},
		ledgersim.WrongShape: func(m *v2.GetUpdatesResponse, err error) bool {
			e := m.GetTransaction().GetEvents()[0].GetCreated()
			_, failed := wormhole.Decode(apivalue.TypeName(e.GetTemplateId()), mustRecord(t, e))
			return err == nil && errors.Is(failed, wormhole.ErrShape)
		},
		ledgersim.WrongBlob: func(m *v2.GetUpdatesResponse, err error) bool {
			e := m.GetTransaction().GetEvents()[0].GetCreated()
			result, _ := contractblob.Check(e.GetCreatedEventBlob(), contractblob.Facts{
				ContractID: e.GetContractId(), TemplateID: apivalue.TypeName(e.GetTemplateId()), PackageName: e.GetPackageName(),
				Signatories: e.GetSignatories(), CreatedAt: e.GetCreatedAt().AsTime(), Argument: mustRecord(t, e)}, nil)
			return err == nil && result == contractblob.Mismatch
		},
		ledgersim.MissingBlob: func(m *v2.GetUpdatesResponse, err error) bool {
			return err == nil && len(m.GetTransaction().GetEvents()[0].GetCreated().GetCreatedEventBlob()) == 0
		},
		ledgersim.MissingArguments: func(m *v2.GetUpdatesResponse, err error) bool {
			return err == nil && m.GetTransaction().GetEvents()[0].GetCreated().GetCreateArguments() == nil
		},
	} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			w := newWorld(t, ledgersim.Options{Seed: 6}, 4)
			begin := w.sim.LedgerEnd()
			offset := w.sim.Inject(kind)
			after := w.consume(1)
			if m, err := w.receive(w.tail(begin)); !check(m, err) {
				t.Errorf("got %v, %v", m, err)
			}
			w.sim.Mend(offset)
			if m, err := w.receive(w.tail(begin)); err != nil || m.GetTransaction().GetOffset() != after.Offset {
				t.Errorf("after mending: %v, %v", m, err)
			}
		})
	}
	w := newWorld(t, ledgersim.Options{Seed: 6}, 4)
	begin := w.sim.LedgerEnd()
	w.sim.InjectOversized(5 << 20)
	wantCode(t, w.ends(w.tail(begin)), codes.ResourceExhausted, "")
	w.sim.Topology(ledgersim.TopologyOnboarding, w.operator)
	stream := w.tail(w.sim.LedgerEnd() - 3)
	if m, err := w.receive(stream); err != nil || m.GetTopologyTransaction() == nil {
		t.Errorf("got %v, %v, want a topology transaction", m, err)
	}
}

func mustRecord(t *testing.T, e *v2.CreatedEvent) damlvalue.Record {
	t.Helper()
	r, err := apivalue.RecordFromProto(e.GetCreateArguments())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReassignmentImportAndPurge(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 7, Synchronizers: 2}, 4)
	syncs := w.sim.Synchronizers()
	begin := w.sim.LedgerEnd()
	d := wormhole.Digest{1, 1}
	cid := w.covering(d).ContractID

	unassigned, id, err := w.sim.Unassign(syncs[1], cid)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.sim.ActiveAt(cid, unassigned)) != 0 || len(w.sim.InFlight(unassigned)) != 1 || len(w.sim.ActiveAt(cid, unassigned-1)) != 1 {
		t.Error("the node is not in flight, or was not active before")
	}
	entries, err := w.snapshot(unassigned)
	if err != nil || entries[len(entries)-1].GetIncompleteUnassigned().GetUnassignedEvent().GetContractId() != cid {
		t.Errorf("snapshot in flight: %v, %v", entries[len(entries)-1], err)
	}
	assigned, err := w.sim.Assign(id)
	if err != nil {
		t.Fatal(err)
	}
	if now := w.sim.ActiveAt(cid, assigned); len(now) != 1 || now[0].SynchronizerID != syncs[1] || now[0].ReassignmentCounter != 1 {
		t.Errorf("after assignment: %+v", now)
	}
	w.agree(w.sim.LedgerEnd())

	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	node := &wormhole.ReplayNode{Consumer: w.user, Operator: w.operator, SplitThreshold: 128}
	for _, mode := range []ledgersim.ImportMode{ledgersim.ImportAsTransaction, ledgersim.ImportAsAssignment} {
		offset, ids, err := w.sim.Import(mode, created, node)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.sim.ActiveAt(ids[0], offset); len(got) != 1 || !got[0].CreatedAt.Equal(created) {
			t.Errorf("imported: %+v", got)
		}
		if offset, err = w.sim.Purge(ids[0]); err != nil || len(w.sim.ActiveAt(ids[0], offset)) != 0 || len(w.sim.InFlight(offset)) != 0 {
			t.Errorf("purged at %d, %v", offset, err)
		}
	}
	var kinds []string
	for _, u := range w.sim.Changes(begin, w.sim.LedgerEnd()) {
		for _, e := range u.Events {
			kinds = append(kinds, e.Kind.String())
		}
	}
	if got, want := strings.Join(kinds, " "), "unassigned assigned created unassigned assigned unassigned"; got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	stream := w.tail(begin)
	for range kinds {
		if _, err := w.receive(stream); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTokens(t *testing.T) {
	sim, conn := start(t, ledgersim.Options{Seed: 8, Auth: &ledgersim.AuthOptions{Secret: []byte("s"), RightsPoll: time.Millisecond}})
	operator := sim.AllocateParty("operator")
	sim.SetRights("reader", []string{operator}, nil)
	w := &world{t: t, sim: sim, conn: conn, operator: operator}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+sim.Token("reader", time.Minute)), time.Minute)
	defer cancel()
	stream := w.tail(sim.LedgerEnd())
	if err := sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	sim.SetRights("reader", []string{operator, "other::1220"}, nil)
	wantCode(t, w.ends(stream), codes.Aborted, "STALE_STREAM_AUTHORIZATION")

	stream = w.tail(sim.LedgerEnd())
	if err := sim.AwaitTails(w.ctx, 1); err != nil {
		t.Fatal(err)
	}
	sim.ExpireTokens()
	sim.Topology(ledgersim.TopologyChanged, operator)
	wantCode(t, w.ends(stream), codes.Aborted, "ACCESS_TOKEN_EXPIRED")
	_, err := w.snapshot(sim.LedgerEnd())
	wantCode(t, err, codes.Unauthenticated, "")
}

func TestGenerate(t *testing.T) {
	w := newWorld(t, ledgersim.Options{Seed: 9}, 4)
	begin := w.sim.LedgerEnd()
	scope := ledgersim.Scope{Consumer: w.user, Operator: w.operator}
	end, err := w.sim.Generate(ledgersim.Generation{Scope: scope, Nodes: 300, Digests: 5000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	digests := 0
	var nodes []ledger.Contract
	for _, c := range w.sim.Active(end) {
		if node, ok := c.Payload.(*wormhole.ReplayNode); ok && node.Consumer == w.user {
			digests += node.Consumed.Len()
			nodes = append(nodes, c)
		}
	}
	if len(nodes) < 300 || len(nodes) > 314 || digests != 5000 {
		t.Errorf("%d nodes with %d digests", len(nodes), digests)
	}
	for i := range byte(255) {
		if got := w.sim.Covering(scope, wormhole.Digest{i, i * 7, i * 13}, end); len(got) != 1 {
			t.Fatalf("%d nodes cover a digest", len(got))
		}
	}
	w.agree(end)
	seen := 0
	for _, u := range w.sim.Changes(begin, end) {
		seen += len(u.Events)
	}
	if seen != len(nodes) {
		t.Errorf("%d events for %d nodes", seen, len(nodes))
	}
	// A generated node can be consumed like any other.
	target := nodes[7].Payload.(*wormhole.ReplayNode)
	digest := target.Consumed.At(0)
	digest[31] ^= 1
	if _, err := w.client.Do(w.ctx, []string{w.user}, nil, submit.ConsumeDigest(nodes[7].ContractID, digest.String())); err != nil {
		t.Error(err)
	}
}
