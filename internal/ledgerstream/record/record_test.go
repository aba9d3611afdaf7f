package record_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect is a simulated participant, and a connection to it that is recorded.
func connect(t *testing.T, options record.Options) (context.Context, *ledgersim.Sim, *record.Recorder, *grpc.ClientConn) {
	t.Helper()
	sim := ledgersim.New(ledgersim.Options{Packages: []ledgersim.Package{}})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	options.Target = address
	recorder := record.New(options)
	conn, err := grpc.NewClient(address, append(recorder.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(func() {
		cancel()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		sim.Stop()
	})
	return ctx, sim, recorder, conn
}

// tell is a small story: packages, parties, a root, consumes until it splits, refusals. It returns what the participant answered to the last
// refusal.
func tell(t *testing.T, ctx context.Context, conn *grpc.ClientConn) error {
	t.Helper()
	c := submit.New(conn, "recorded")
	dar, err := ledgersim.DAR(ledgersim.WormholeCore010)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.UploadDAR(record.Note(ctx, "the model"), dar); err != nil {
		t.Fatal(err)
	}
	var parties []string
	for _, hint := range []string{"operator-1", "consumer-1"} {
		party, err := c.AllocateParty(ctx, hint)
		if err != nil {
			t.Fatal(err)
		}
		parties = append(parties, party)
	}
	made, err := c.Do(record.Note(ctx, "create the root"), parties, nil, submit.Create(&wormhole.ReplayNode{Operator: parties[0], Consumer: parties[1], SplitThreshold: 1}))
	if err != nil {
		t.Fatal(err)
	}
	root, node := made.Created[0], made.Created[0]
	for i := range byte(2) {
		consumed, err := c.Do(record.Note(ctx, "consume %d", i), parties[1:], nil, submit.ConsumeDigest(node.ContractID, wormhole.Digest{i}.String()))
		if err != nil {
			t.Fatal(err)
		}
		node = consumed.Created[0]
	}
	_, err = c.Do(record.Note(ctx, "a stale node"), parties[1:], []submit.Disclosure{submit.Disclose(root.Contract)}, submit.ConsumeDigest(root.ContractID, wormhole.Digest{9}.String()))
	if err == nil {
		t.Fatal("a stale node was consumed on")
	}
	return err
}

func TestAnotherReaderReadsIt(t *testing.T) {
	ctx, sim, recorder, conn := connect(t, record.Options{Name: "90-small", About: "A small story.", Authorized: true})
	refusal := tell(t, metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret", "x-other", "kept"), conn)
	operator := sim.AllocateParty("operator-1")
	events := &v2.EventFormat{Verbose: true, FiltersByParty: map[string]*v2.Filters{operator: {Cumulative: []*v2.CumulativeFilter{{
		IdentifierFilter: &v2.CumulativeFilter_WildcardFilter{WildcardFilter: &v2.WildcardFilter{IncludeCreatedEventBlob: true}},
	}}}}}
	entries := drain(t, func() (grpc.ServerStreamingClient[v2.GetActiveContractsResponse], error) {
		return v2.NewStateServiceClient(conn).GetActiveContracts(ctx, &v2.GetActiveContractsRequest{ActiveAtOffset: sim.LedgerEnd(), EventFormat: events})
	})
	updates := drain(t, func() (grpc.ServerStreamingClient[v2.GetUpdatesResponse], error) {
		end := sim.LedgerEnd()
		return v2.NewUpdateServiceClient(conn).GetUpdates(ctx, &v2.GetUpdatesRequest{EndInclusive: &end, UpdateFormat: &v2.UpdateFormat{
			IncludeTransactions: &v2.TransactionFormat{EventFormat: events, TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA},
		}})
	})
	recorder.Fact("operator", operator)
	dir := t.TempDir()
	if err := recorder.Write(dir); err != nil {
		t.Fatal(err)
	}

	content, err := os.ReadFile(filepath.Join(dir, record.CallsFile))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("secret")) {
		t.Error("the token is in the recording")
	}
	recording, err := replay.Load(os.DirFS(dir), record.CallsFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(recording.Calls) != recorder.Calls() {
		t.Errorf("%d calls were read, %d written", len(recording.Calls), recorder.Calls())
	}
	if recording.ParticipantID() != sim.ParticipantID() || recording.Parties()["operator"] != operator {
		t.Errorf("read of participant %s with parties %v", recording.ParticipantID(), recording.Parties())
	}
	snapshots, err := recording.Snapshots()
	if err != nil || len(snapshots) != 1 || len(snapshots[0].Entries) != len(entries) || len(entries) != 16 || !snapshots[0].Format.Blobs {
		t.Errorf("snapshots %+v, %v; received were %d entries", snapshots, err, len(entries))
	}
	streams, err := recording.Streams()
	if err != nil || len(streams) != 1 || len(streams[0].Updates) != len(updates) || streams[0].Last() != updates[len(updates)-1].GetTransaction().GetOffset() {
		t.Errorf("streams %+v, %v; received were %d updates", streams, err, len(updates))
	}
	for _, c := range recording.Calls {
		checkCall(t, c, refusal)
	}
	facts, err := os.ReadFile(filepath.Join(dir, record.FactsFile))
	if err != nil || !strings.Contains(string(facts), operator) {
		t.Errorf("facts %s, %v", facts, err)
	}
	readme, err := os.ReadFile(filepath.Join(dir, record.ReadmeFile))
	if err != nil || !strings.Contains(string(readme), "A small story.") || !strings.Contains(string(readme), "1 of them not OK") {
		t.Errorf("readme %s, %v", readme, err)
	}
	asCollection(t, content)
}

// checkCall checks a call of the story.
func checkCall(t *testing.T, c *replay.Call, refusal error) {
	t.Helper()
	for _, r := range c.Responses {
		if c.Method != v2.CommandService_SubmitAndWaitForTransaction_FullMethodName {
			continue
		}
		var answer v2.SubmitAndWaitForTransactionResponse
		if err := r.Into(&answer); err != nil || answer.GetTransaction().GetUpdateId() == "" {
			t.Errorf("call %d: %v, %v", c.N, &answer, err)
		}
	}
	switch {
	case c.Method == admin.PackageManagementService_UploadDarFile_FullMethodName:
		var request admin.UploadDarFileRequest
		if err := c.Request(&request); err != nil || len(request.GetDarFile()) > 0 || !strings.Contains(c.RequestNote, "dar_file left out") {
			t.Errorf("the upload is recorded as %s, %q, %v", c.RequestJSON, c.RequestNote, err)
		}
	case c.Note == "a stale node":
		got, want := status.Convert(c.Status.Err()), status.Convert(errors.Unwrap(unwrapped(t, refusal)))
		if !proto.Equal(got.Proto(), want.Proto()) || got.Code() != codes.NotFound || len(got.Details()) < 3 {
			t.Errorf("the refusal is recorded as %v, was %v", got.Proto(), want.Proto())
		}
		info, ok := got.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != submit.ReasonInactive {
			t.Errorf("its first detail is %v", got.Details()[0])
		}
	}
}

func unwrapped(t *testing.T, err error) *submit.Rejection {
	t.Helper()
	var r *submit.Rejection
	if !errors.As(err, &r) {
		t.Fatalf("%v is no rejection", err)
	}
	return r
}

// asCollection reads the lines as one of several recordings, compressed, as the recordings of the simulated participant's conformance are.
func asCollection(t *testing.T, lines []byte) {
	t.Helper()
	dir := t.TempDir()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(lines); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "90-small.jsonl.gz"), packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := replay.LoadAll(os.DirFS(dir))
	if err != nil || len(all) != 1 || all[0].Name != "90-small" {
		t.Errorf("read as %v, %v", all, err)
	}
}

func drain[M any](t *testing.T, open func() (grpc.ServerStreamingClient[M], error)) (all []*M) {
	t.Helper()
	stream, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// TestWhatIsLeftOut: responses beyond the bound, long texts, streams that the client ends itself or that are still open.
func TestWhatIsLeftOut(t *testing.T) {
	ctx, sim, recorder, conn := connect(t, record.Options{Name: "91-left-out", MaxResponses: 2})
	tell(t, ctx, conn)
	operator := sim.AllocateParty("operator-1")
	all := &v2.UpdateFormat{IncludeTransactions: &v2.TransactionFormat{
		EventFormat:      &v2.EventFormat{FiltersByParty: map[string]*v2.Filters{operator: {}}},
		TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA,
	}}
	tailing, cancel := context.WithCancel(ctx)
	tail, err := v2.NewUpdateServiceClient(conn).GetUpdates(tailing, &v2.GetUpdatesRequest{UpdateFormat: all})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := tail.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	for {
		if _, err := tail.Recv(); err != nil {
			break
		}
	}
	open, err := v2.NewUpdateServiceClient(conn).GetUpdates(ctx, &v2.GetUpdatesRequest{BeginExclusive: sim.LedgerEnd(), UpdateFormat: all})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 9<<10)
	_, err = v2.NewCommandServiceClient(conn).SubmitAndWait(ctx, &v2.SubmitAndWaitRequest{Commands: &v2.Commands{WorkflowId: long}})
	if err == nil {
		t.Fatal("a submission without a user was taken")
	}
	dir := t.TempDir()
	if err := recorder.Write(dir); err != nil {
		t.Fatal(err)
	}
	recording, err := replay.Load(os.DirFS(dir), record.CallsFile)
	if err != nil {
		t.Fatal(err)
	}
	calls := recording.Calls[len(recording.Calls)-3:]
	got := []string{calls[0].Capped[:4], calls[0].Status.EndedByClient, calls[1].Status.EndedByClient, calls[2].RequestNote[:len("workflow_id left out: 9216 bytes")]}
	want := []string{"2 of", "context canceled", "the call was still open when the recording was written", "workflow_id left out: 9216 bytes"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was left out:\n%s", diff)
	}
	if streams, err := recording.Streams(); err != nil || len(streams) != 0 {
		t.Errorf("a stream that is not whole was taken for one: %v, %v", streams, err)
	}
	sim.Terminate()
	if _, err := open.Recv(); err == nil {
		t.Error("a stream goes on after the participant ended it")
	}
	if err := recorder.Write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := replay.Load(os.DirFS(dir), record.CallsFile)
	if err != nil {
		t.Fatal(err)
	}
	if ended := again.Calls[calls[1].N-1].Status; ended.Code != codes.Canceled || ended.EndedByClient != "" {
		t.Errorf("the participant's own end is recorded as %+v", ended)
	}
}

// TestUnknownFields: what a newer participant sends and the stubs do not know is in the bytes, and named.
func TestUnknownFields(t *testing.T) {
	ctx, sim, recorder, conn := connect(t, record.Options{Name: "92-unknown", Compress: true})
	sim.Inject(ledgersim.UnknownUpdate)
	end := sim.LedgerEnd()
	operator := sim.AllocateParty("operator-1")
	got := drain(t, func() (grpc.ServerStreamingClient[v2.GetUpdatesResponse], error) {
		return v2.NewUpdateServiceClient(conn).GetUpdates(ctx, &v2.GetUpdatesRequest{EndInclusive: &end, UpdateFormat: &v2.UpdateFormat{
			IncludeTransactions: &v2.TransactionFormat{
				EventFormat:      &v2.EventFormat{FiltersByParty: map[string]*v2.Filters{operator: {}}},
				TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA,
			},
		}})
	})
	dir := t.TempDir()
	if err := recorder.Write(dir); err != nil {
		t.Fatal(err)
	}
	if recording, err := replay.Load(os.DirFS(dir), recorder.CallsFile()); err != nil || len(recording.Calls) != 1 {
		t.Errorf("read as %v, %v", recording, err)
	}
	packed, err := os.Open(filepath.Join(dir, recorder.CallsFile()))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Responses []struct {
			RawB64      []byte   `json:"raw_b64"`
			StubUnknown []string `json:"stub_unknown"`
		}
	}
	if err := json.Unmarshal(content, &line); err != nil {
		t.Fatal(err)
	}
	last := line.Responses[len(line.Responses)-1]
	if want := []string{"com.daml.ledger.api.v2.GetUpdatesResponse.1000"}; !cmp.Equal(last.StubUnknown, want) {
		t.Errorf("unknown fields %v, want %v", last.StubUnknown, want)
	}
	if !bytes.Contains(last.RawB64, []byte("from the future")) || len(got) != len(line.Responses) {
		t.Errorf("%d responses, the last %q", len(line.Responses), last.RawB64)
	}
}
