package replay_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
	"github.com/disclosured/disclosured/internal/ledgerstream/replay/recordings"
)

func all(t *testing.T) []*replay.Recording {
	t.Helper()
	out, err := recordings.All()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEveryRecordingHasItsParts(t *testing.T) {
	calls, snapshots, streams := 0, 0, 0
	for _, r := range all(t) {
		calls += len(r.Calls)
		taken, err := r.Snapshots()
		if err != nil {
			t.Fatal(err)
		}
		snapshots += len(taken)
		for _, s := range taken {
			for i, raw := range s.Entries {
				var entry v2.GetActiveContractsResponse
				if err := proto.Unmarshal(raw, &entry); err != nil || entry.GetContractEntry() == nil && len(entry.ProtoReflect().GetUnknown()) == 0 {
					t.Errorf("%s call %d: entry %d: %v, %v", r.Name, s.Call.N, i, &entry, err)
				}
			}
		}
		opened, err := r.Streams()
		if err != nil {
			t.Fatal(err)
		}
		streams += len(opened)
		for _, s := range opened {
			last := s.Begin
			for _, u := range s.Updates {
				if u.Offset < last {
					t.Errorf("%s call %d: offset %d after %d", r.Name, s.Call.N, u.Offset, last)
				}
				last = u.Offset
			}
		}
		if id := r.ParticipantID(); !strings.HasPrefix(id, "sandbox::1220") {
			t.Errorf("%s: participant %q", r.Name, id)
		}
	}
	if calls != 787 || snapshots != 60 || streams != 34 {
		t.Errorf("%d calls, %d snapshots, %d streams; want 787, 60, 34", calls, snapshots, streams)
	}
}

// play starts a server and connects to it.
func play(t *testing.T, script replay.Script) (context.Context, *grpc.ClientConn) {
	t.Helper()
	server := replay.NewServer(script)
	address, err := server.Start()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(func() {
		cancel()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
	})
	return ctx, conn
}

// collect receives until the stream ends.
func collect[M proto.Message](t *testing.T, stream interface{ Recv() (M, error) }) (out [][]byte, err error) {
	t.Helper()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		raw, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
}

func TestServerGivesWhatWasRecorded(t *testing.T) {
	recording, err := recordings.Get("02-consume-split")
	if err != nil {
		t.Fatal(err)
	}
	streams, err := recording.Streams()
	if err != nil {
		t.Fatal(err)
	}
	bounded := streams[0]
	ctx, conn := play(t, replay.PlayStream(bounded, nil))
	end, err := v2.NewStateServiceClient(conn).GetLedgerEnd(ctx, &v2.GetLedgerEndRequest{})
	if err != nil || end.GetOffset() != bounded.Begin {
		t.Fatalf("ledger end %v, %v, want %d", end, err, bounded.Begin)
	}
	upTo := bounded.End
	stream, err := v2.NewUpdateServiceClient(conn).GetUpdates(ctx, &v2.GetUpdatesRequest{EndInclusive: &upTo})
	if err != nil {
		t.Fatal(err)
	}
	for i := range bounded.Updates {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var want v2.GetUpdatesResponse
		if err := proto.Unmarshal(bounded.Updates[i].Raw, &want); err != nil {
			t.Fatal(err)
		}
		// Unknown fields are compared too: the bytes were not touched.
		if !proto.Equal(m, &want) {
			t.Fatalf("update %d differs", i)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want the end", err)
	}
}

func TestServerMovesOnAfterTheSnapshot(t *testing.T) {
	recording, err := recordings.Get("13-shutdown")
	if err != nil {
		t.Fatal(err)
	}
	streams, err := recording.Streams()
	if err != nil {
		t.Fatal(err)
	}
	tail := streams[0]
	script := replay.PlayStream(tail, nil)
	script.Ends = []replay.Status{tail.Call.Status}
	ctx, conn := play(t, script)
	state, updates := v2.NewStateServiceClient(conn), v2.NewUpdateServiceClient(conn)
	if end, err := state.GetLedgerEnd(ctx, &v2.GetLedgerEndRequest{}); err != nil || end.GetOffset() != tail.Begin {
		t.Fatalf("ledger end %v, %v, want %d", end, err, tail.Begin)
	}
	snapshot, err := state.GetActiveContracts(ctx, &v2.GetActiveContractsRequest{ActiveAtOffset: tail.Begin})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := collect(t, snapshot); err != nil || len(entries) != 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if end, err := state.GetLedgerEnd(ctx, &v2.GetLedgerEndRequest{}); err != nil || end.GetOffset() != tail.Last() {
		t.Fatalf("ledger end %v, %v, want %d", end, err, tail.Last())
	}
	stream, err := updates.GetUpdates(ctx, &v2.GetUpdatesRequest{BeginExclusive: tail.Begin})
	if err != nil {
		t.Fatal(err)
	}
	got, err := collect(t, stream)
	if len(got) != len(tail.Updates) || status.Code(err) != codes.Canceled {
		t.Fatalf("%d updates, ended by %v; want %d, ended by Canceled as recorded", len(got), err, len(tail.Updates))
	}
}

func TestLoadRefuses(t *testing.T) {
	files := fstest.MapFS{
		"empty.jsonl":    {Data: []byte("\n")},
		"broken.jsonl":   {Data: []byte("{\"n\":1}\n{")},
		"notgz.jsonl.gz": {Data: []byte("plain")},
		"other.txt":      {Data: []byte("{}")},
		"status.jsonl":   {Data: []byte(`{"n":1,"status":{"raw_b64":"%"}}`)},
	}
	for name := range files {
		if r, err := replay.Load(files, name); err == nil {
			t.Errorf("%s: loaded %v", name, r)
		}
	}
	if _, err := replay.Load(files, "absent.jsonl"); err == nil {
		t.Error("absent.jsonl: loaded")
	}
}
