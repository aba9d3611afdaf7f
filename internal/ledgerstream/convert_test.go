package ledgerstream

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"testing"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

//go:embed testdata/responses.jsonl.gz
var recordedResponses []byte

// recorded is one message as it came from a participant.
type recorded struct {
	Scenario string
	Call     int
	Method   string
	Raw      []byte
}

func loadRecorded(t testing.TB) []recorded {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(recordedResponses))
	if err != nil {
		t.Fatal(err)
	}
	var out []recorded
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// testConverter keeps every served template of wormhole-core, read as any party.
func testConverter(metrics *Metrics) *converter {
	return newConverter(Config{AnyParty: true}.withDefaults().fullFilter(), "sandbox::1220", metrics)
}

// Every recorded message converts; every contract in it that came with a blob is what its blob and its id say.
func TestConvertsRecordedMessages(t *testing.T) {
	kinds := map[string]int{}
	ignored := map[string]int{}
	metrics := &Metrics{
		Update:  func(kind string) { kinds[kind]++ },
		Ignored: func(what string) { ignored[what]++ },
	}
	c := testConverter(metrics)
	blobs := map[ledger.BlobCheck]int{}
	check := func(r recorded, contract *ledger.Contract) {
		t.Helper()
		blobs[contract.BlobCheck]++
		switch {
		case contract.BlobCheck == ledger.BlobVerified, contract.BlobCheck == ledger.BlobMissing: // some calls were made without blobs
		case contract.BlobCheck == ledger.BlobUnverifiable && r.Scenario == "10-packages": // 0.2.0, read without labels
		default:
			t.Errorf("%s call %d: contract %s: blob is %s: %s", r.Scenario, r.Call, contract.ContractID, contract.BlobCheck, contract.BlobFault)
		}
		if fault, ok := contract.Payload.(*wormhole.Malformed); ok && r.Scenario != "06-governance-puppets" {
			t.Errorf("%s call %d: contract %s: %s", r.Scenario, r.Call, contract.ContractID, fault.Fault)
		}
		if contract.SynchronizerID == "" || contract.Offset <= 0 || contract.CreatedAt.IsZero() || len(contract.Signatories) == 0 {
			t.Errorf("%s call %d: contract lacks what every one has: %+v", r.Scenario, r.Call, contract)
		}
	}
	events := map[ledger.EventKind]int{}
	for _, r := range loadRecorded(t) {
		switch r.Method {
		case "GetUpdates":
			var response ledgerapi.GetUpdatesResponse
			if err := proto.Unmarshal(r.Raw, &response); err != nil {
				t.Fatal(err)
			}
			m, err := c.response(&response)
			if err != nil {
				t.Errorf("%s call %d: %v", r.Scenario, r.Call, err)
				continue
			}
			for _, e := range m.update.Events {
				events[e.Kind]++
				if e.Contract != nil {
					check(r, e.Contract)
				}
			}
		case "GetActiveContracts":
			var response ledgerapi.GetActiveContractsResponse
			if err := proto.Unmarshal(r.Raw, &response); err != nil {
				t.Fatal(err)
			}
			contract, flying, err := c.entry(&response, 1)
			switch {
			case err != nil:
				t.Errorf("%s call %d: %v", r.Scenario, r.Call, err)
			case contract != nil:
				check(r, contract)
			case flying != nil:
				check(r, &flying.Contract)
				if flying.Source == "" || flying.Target == "" || flying.ReassignmentCounter != flying.Contract.ReassignmentCounter+1 {
					t.Errorf("%s call %d: in flight %+v", r.Scenario, r.Call, flying)
				}
			}
		}
	}
	t.Logf("messages %v, events %v, blobs %v, ignored %v", kinds, events, blobs, ignored)
	for _, kind := range []string{"transaction", "reassignment", "topology", "checkpoint"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s among the recorded messages", kind)
		}
	}
	for _, kind := range []ledger.EventKind{ledger.Created, ledger.Archived, ledger.Assigned, ledger.Unassigned} {
		if events[kind] == 0 {
			t.Errorf("no %s event among the recorded messages", kind)
		}
	}
	if blobs[ledger.BlobVerified] < 290 {
		t.Errorf("%d blobs verified", blobs[ledger.BlobVerified])
	}
}

// What a created event must have, and what is wrong if it has not.
func TestCreatedEventFaults(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*ledgerapi.CreatedEvent)
		field string
	}{
		"no contract id":         {func(e *ledgerapi.CreatedEvent) { e.ContractId = "" }, "contract_id"},
		"contract id not hex":    {func(e *ledgerapi.CreatedEvent) { e.ContractId = "xy" }, "contract_id"},
		"contract id upper case": {func(e *ledgerapi.CreatedEvent) { e.ContractId = "00AB" }, "contract_id"},
		"no package id":          {func(e *ledgerapi.CreatedEvent) { e.TemplateId.PackageId = "" }, "template_id"},
		"no creation time":       {func(e *ledgerapi.CreatedEvent) { e.CreatedAt = nil }, "created_at"},
		"impossible time":        {func(e *ledgerapi.CreatedEvent) { e.CreatedAt.Nanos = -1 }, "created_at"},
		"no arguments":           {func(e *ledgerapi.CreatedEvent) { e.CreateArguments = nil }, "create_arguments"},
		"a field without value": {func(e *ledgerapi.CreatedEvent) {
			e.CreateArguments.Fields[2].Value = nil
		}, "create_arguments"},
		"a field of another type": {func(e *ledgerapi.CreatedEvent) {
			e.CreateArguments.Fields[0].Value = text("consumer")
		}, "create_arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			e := nodeEvent(cid(1), "")
			c.spoil(e)
			_, err := testConverter(&Metrics{}).response(tx(15, &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: e}}))
			var fault *DecodeError
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a DecodeError", err)
			}
			if fault.Field != c.field || fault.Offset != 15 {
				t.Errorf("fault in %s at %d, want %s at 15: %v", fault.Field, fault.Offset, c.field, err)
			}
		})
	}
}

// A contract without a blob, or with a wrong one, is taken in and marked. (B01)
func TestBlobIsMarked(t *testing.T) {
	for blob, want := range map[string]ledger.BlobCheck{"": ledger.BlobMissing, "nonsense": ledger.BlobMismatch} {
		e := nodeEvent(cid(1), "")
		e.CreatedEventBlob = []byte(blob)
		m, err := testConverter(&Metrics{}).response(tx(15, &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: e}}))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.update.Events[0].Contract; got.BlobCheck != want || got.BlobFault == "" {
			t.Errorf("blob %q: %s (%s), want %s", blob, got.BlobCheck, got.BlobFault, want)
		}
	}
}

// A response of a snapshot with nothing but 3.5's continuation token (field 5) is nothing; one with another kind of entry halts.
func TestSnapshotEntries(t *testing.T) {
	c := testConverter(&Metrics{})
	var token, newer ledgerapi.GetActiveContractsResponse
	for raw, m := range map[string]*ledgerapi.GetActiveContractsResponse{"\x2a\x01x": &token, "\x32\x01x": &newer} {
		if err := proto.Unmarshal([]byte(raw), m); err != nil {
			t.Fatal(err)
		}
	}
	if contract, flying, err := c.entry(&token, 9); contract != nil || flying != nil || err != nil {
		t.Errorf("a token alone: %v, %v, %v", contract, flying, err)
	}
	if _, _, err := c.entry(&newer, 9); !errors.Is(err, ErrUnknownKind) {
		t.Errorf("another kind of entry: %v", err)
	}
	incomplete := &ledgerapi.GetActiveContractsResponse{
		ContractEntry: &ledgerapi.GetActiveContractsResponse_IncompleteAssigned{IncompleteAssigned: &ledgerapi.IncompleteAssigned{
			AssignedEvent: &ledgerapi.AssignedEvent{CreatedEvent: nodeEvent(cid(1), "")},
		}},
	}
	if contract, flying, err := c.entry(incomplete, 9); contract != nil || flying != nil || err != nil {
		t.Errorf("an incomplete assignment: %v, %v, %v", contract, flying, err)
	}
}

// FuzzConvert feeds arbitrary bytes through both decoders: no panic, and whatever is passed on is complete.
func FuzzConvert(f *testing.F) {
	for i, r := range loadRecorded(f) {
		if i%7 == 0 {
			f.Add(r.Raw)
		}
	}
	for _, u := range []*ledgerapi.GetUpdatesResponse{
		tx(1), checkpointAt(3), topologyAt(4, hostingEvent("newer", operator, "x")), topologyAt(4, hostingEvent("onboarding", operator, "x")),
	} {
		raw, err := proto.Marshal(u)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	c := testConverter(&Metrics{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var update ledgerapi.GetUpdatesResponse
		if proto.Unmarshal(raw, &update) == nil {
			m, err := c.response(&update)
			var fault *DecodeError
			if err != nil && !errors.As(err, &fault) {
				t.Errorf("error of another type: %v", err)
			}
			if err == nil && m.kind != nothing && m.kind != checkpoint && m.offset <= 0 {
				t.Errorf("an update at %d", m.offset)
			}
			for _, e := range m.update.Events {
				if e.ContractID == "" || (e.Contract != nil && (e.Contract.Payload == nil || e.Contract.BlobCheck == ledger.BlobUnchecked)) {
					t.Errorf("incomplete event %+v", e)
				}
			}
		}
		var entry ledgerapi.GetActiveContractsResponse
		if proto.Unmarshal(raw, &entry) == nil {
			contract, _, err := c.entry(&entry, 5)
			if err == nil && contract != nil && (contract.Payload == nil || contract.BlobCheck == ledger.BlobUnchecked) {
				t.Errorf("incomplete contract %+v", contract)
			}
		}
	})
}

func BenchmarkConvert(b *testing.B) {
	var responses []*ledgerapi.GetActiveContractsResponse
	var size int64
	for _, r := range loadRecorded(b) {
		if r.Method != "GetActiveContracts" {
			continue
		}
		m := &ledgerapi.GetActiveContractsResponse{}
		if err := proto.Unmarshal(r.Raw, m); err != nil {
			b.Fatal(err)
		}
		size += int64(len(r.Raw))
		responses = append(responses, m)
	}
	c := testConverter(&Metrics{})
	b.SetBytes(size / int64(len(responses)))
	for i := 0; b.Loop(); i++ {
		if _, _, err := c.entry(responses[i%len(responses)], 1); err != nil {
			b.Fatal(err)
		}
	}
}
