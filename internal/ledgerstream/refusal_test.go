package ledgerstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// unreadable is a created event whose prefix is a number.
func unreadable(cid string) *ledgerapi.Event {
	e := nodeEvent(cid, "")
	e.CreateArguments.Fields[2].Value = &ledgerapi.Value{Sum: &ledgerapi.Value_Int64{Int64: 7}}
	return &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: e}}
}

// A26: an update that can't be decoded halts at its offset. What is before it is applied; what is after it is not, not by the
// next process either.
func TestPoisonUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		var halts []string
		r := start(t, testConfig(), p, sink, WithMetrics(Metrics{Halt: func(reason string) { halts = append(halts, reason) }}))
		r.await(t, "live", proven(12))
		p.add(tx(14, create(cid(2))), tx(15, unreadable(cid(3))), tx(16, create(cid(4))))
		st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
		if st.HaltedAt != 15 {
			t.Errorf("halted at %d, want 15", st.HaltedAt)
		}
		for _, part := range []string{"offset 15", cid(3), "Wormhole.Core.Replay:ReplayNode", "prefix"} {
			if !strings.Contains(st.Detail, part) {
				t.Errorf("detail doesn't name %q: %s", part, st.Detail)
			}
		}
		<-time.After(10 * time.Minute)
		if st := r.Status(); st.State != StateHalted || st.ProvenOffset > 14 {
			t.Errorf("state %s, proven at %d after ten minutes", st.State, st.ProvenOffset)
		}
		wantContracts(t, sink, cid(1), cid(2))
		_ = r.stop()
		if len(halts) < 2 || halts[0] != "undecodable" {
			t.Errorf("halts counted: %v", halts)
		}

		again := start(t, testConfig(), p, sink)
		again.await(t, "halted again", func(st Status) bool { return st.State == StateHalted && st.HaltedAt == 15 })
		wantContracts(t, sink, cid(1), cid(2))
		// A version that can read it: here, an update that can be read.
		p.change(func() { p.log[2] = tx(15, create(cid(3))) })
		st = again.await(t, "mended", proven(18))
		if st.HaltedAt != 0 {
			t.Errorf("still halted at %d", st.HaltedAt)
		}
		wantContracts(t, sink, cid(1), cid(2), cid(3), cid(4))
	})
}

// A snapshot with a contract that can't be decoded is no snapshot.
func TestPoisonSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1)), unreadable(cid(2))))
		r := start(t, testConfig(), p, &memorySink{})
		st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
		if st.HaltedAt != 1 || !strings.Contains(st.Detail, cid(2)) {
			t.Errorf("halted at %d: %s", st.HaltedAt, st.Detail)
		}
		if got := r.sink.reasons(); len(got) != 0 {
			t.Errorf("seeds %v", got)
		}
	})
}

// Newer kinds of updates and events may matter: they halt. Empty ones don't.
func TestUnknownKinds(t *testing.T) {
	newer := protowire.AppendBytes(protowire.AppendTag(nil, 90, protowire.BytesType), []byte("new"))
	unknownEvent := &ledgerapi.Event{}
	unknownEvent.ProtoReflect().SetUnknown(newer)
	for name, event := range map[string]*ledgerapi.Event{"event": unknownEvent, "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))))
				r := start(t, testConfig(), p, &memorySink{})
				r.await(t, "live", proven(12))
				p.add(tx(13, event, create(cid(2))))
				if name == "nothing" {
					r.await(t, "going on", proven(15))
					return
				}
				st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
				if st.HaltedAt != 13 || !strings.Contains(st.Detail, "90") {
					t.Errorf("halted at %d: %s", st.HaltedAt, st.Detail)
				}
			})
		})
	}
	t.Run("update", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newParticipant()
			p.onTail = func(_ int, _ *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
				u := &ledgerapi.GetUpdatesResponse{}
				u.ProtoReflect().SetUnknown(newer)
				_ = s.Send(u)
				<-s.Context().Done()
				return s.Context().Err()
			}
			r := start(t, testConfig(), p, &memorySink{})
			st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
			if st.HaltedAt != 0 || !strings.Contains(st.Detail, "upgrade") {
				t.Errorf("halted at %d: %s", st.HaltedAt, st.Detail)
			}
		})
	})
}

// A21: a transaction of 6 MiB passes; one over the limit halts and tells the offset before it and the size.
func TestOversizedUpdate(t *testing.T) {
	big := func(n int) *ledgerapi.Event {
		e := nodeEvent(cid(2), "")
		e.CreatedEventBlob = make([]byte, n)
		return &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: e}}
	}
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		conn := p.serve(t, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20)))
		f := New(testConfig(), conn, sink)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		r := &running{Follower: f, p: p, sink: sink}
		r.await(t, "live", proven(12))
		p.add(tx(13, big(6<<20)))
		r.await(t, "6 MiB", proven(15))
		p.add(tx(16, big(9<<20)), tx(19, create(cid(3))))
		st := r.await(t, "halted", func(st Status) bool { return st.State == StateHalted })
		// The live stream, or the proof, met it first: with the update before it applied, or the ledger end proven after that.
		if !strings.Contains(st.Detail, "after offset 13") && !strings.Contains(st.Detail, "after offset 15") {
			t.Errorf("detail doesn't tell the offset: %s", st.Detail)
		}
		for _, part := range []string{fmt.Sprint(8 << 20), "MaxReceiveBytes"} {
			if !strings.Contains(st.Detail, part) {
				t.Errorf("detail doesn't tell %q: %s", part, st.Detail)
			}
		}
		wantContracts(t, sink, cid(1), cid(2))
	})
}

// What only an operator can mend is waited for: not live, tried again slowly, told what to do, and gone on with when it is mended.
func TestWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		advice string
	}{
		"unauthenticated":   {status.Error(codes.Unauthenticated, "An error occurred"), "access token"},
		"permission denied": {status.Error(codes.PermissionDenied, "An error occurred"), "CanReadAs"},
		"unimplemented":     {status.Error(codes.Unimplemented, ""), "Ledger API"},
		"no package":        {apiError(codes.NotFound, "PACKAGE_NAMES_NOT_FOUND", -1), "upload"},
		"no template":       {apiError(codes.NotFound, "NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME", -1), "upload"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newParticipant()
				p.add(tx(10, create(cid(1))))
				mended := false
				p.onSnapshot = func(int, *ledgerapi.GetActiveContractsRequest, ledgerapi.StateService_GetActiveContractsServer) error {
					p.mu.Lock()
					defer p.mu.Unlock()
					if mended {
						return errDefault
					}
					return c.err
				}
				r := start(t, testConfig(), p, &memorySink{})
				st := r.await(t, "waiting", func(st Status) bool { return st.State == StateWaiting })
				if !strings.Contains(st.Detail, c.advice) {
					t.Errorf("detail doesn't advise on %q: %s", c.advice, st.Detail)
				}
				<-time.After(10 * time.Minute)
				if n := p.counted("snapshot"); n < 25 || n > 60 {
					t.Errorf("%d tries in ten minutes", n)
				}
				if st := r.Status(); st.State != StateWaiting {
					t.Errorf("state %s", st.State)
				}
				p.change(func() { mended = true })
				r.await(t, "mended", proven(12))
			})
		})
	}
}

// A18, A20: a package that the participant doesn't have is waited for by name, also where everything else is there; package ids in
// the configuration are refused, by us and where a participant refuses them.
func TestUnknownPackage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		cfg := testConfig()
		cfg.Packages = []string{"wormhole-core", "no-such-package"}
		r := start(t, cfg, p, &memorySink{})
		st := r.await(t, "waiting", func(st Status) bool { return st.State == StateWaiting })
		if !strings.Contains(st.Detail, "PACKAGE_NAMES_NOT_FOUND") {
			t.Errorf("detail %q", st.Detail)
		}
		if got := r.sink.reasons(); len(got) != 0 {
			t.Errorf("seeds %v", got)
		}
	})
	cfg := testConfig()
	cfg.Packages = []string{packageID}
	var fault *ConfigError
	if err := cfg.Validate(); !errors.As(err, &fault) || fault.Setting != "Packages" {
		t.Errorf("a package id in the configuration: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		p.onSnapshot = func(int, *ledgerapi.GetActiveContractsRequest, ledgerapi.StateService_GetActiveContractsServer) error {
			return apiError(codes.InvalidArgument, "INVALID_FIELD", -1)
		}
		err := New(testConfig(), p.serve(t), &memorySink{}).Run(t.Context())
		var fault *ConfigError
		if !errors.As(err, &fault) || !strings.Contains(fault.Setting, "Packages") {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A18: events carry package ids, of several versions, and all are taken; what was not asked for is not.
func TestPackageVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		r := start(t, testConfig(), p, &memorySink{})
		r.await(t, "live", proven(12))
		second, other := nodeEvent(cid(2), ""), nodeEvent(cid(3), "")
		second.TemplateId.PackageId = "cceb6c9f"
		other.PackageName = "another"
		p.add(tx(13, &ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: second}},
			&ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: other}}))
		st := r.await(t, "followed", proven(15))
		wantContracts(t, r.sink, cid(1), cid(2))
		if diff := cmp.Diff(map[string][]string{"wormhole-core": {packageID, "cceb6c9f"}}, st.Packages); diff != "" {
			t.Errorf("packages (-want +got):\n%s", diff)
		}
	})
}

// A template that no version of the package has is left out, and once it is there the index is built anew with it.
func TestTemplateThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.lacking = []string{wormhole.EmitterTemplate.QualifiedName()}
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live without it", proven(12))
		p.change(func() { p.lacking = nil })
		r.await(t, "built anew", func(st Status) bool { return st.Reseeds == 2 && st.State == StateLive })
		if diff := cmp.Diff([]ledger.SeedReason{ledger.SeedFirst, ledger.SeedConfigChanged}, sink.reasons()); diff != "" {
			t.Errorf("seeds (-want +got):\n%s", diff)
		}
		if sink.seeds[0].Filter == sink.seeds[1].Filter {
			t.Error("the two filters have one identity")
		}
		_ = r.stop()

		// Other parties: another index. The same ones in another order: the same.
		cfg := Config{Parties: []string{consumer, operator}}
		again := start(t, cfg, p, sink)
		again.await(t, "built anew", proven(12))
		_ = again.stop()
		slices.Reverse(cfg.Parties)
		once := start(t, cfg, p, sink)
		once.await(t, "taken up", proven(12))
		if got := len(sink.reasons()); got != 3 {
			t.Errorf("%d seeds, want 3", got)
		}
	})
}

func hostingEvent(kind, party, participantID string) *ledgerapi.TopologyEvent {
	added := &ledgerapi.ParticipantAuthorizationAdded{PartyId: party, ParticipantId: participantID}
	switch kind {
	case "added":
		return &ledgerapi.TopologyEvent{Event: &ledgerapi.TopologyEvent_ParticipantAuthorizationAdded{ParticipantAuthorizationAdded: added}}
	case "revoked":
		return &ledgerapi.TopologyEvent{Event: &ledgerapi.TopologyEvent_ParticipantAuthorizationRevoked{
			ParticipantAuthorizationRevoked: &ledgerapi.ParticipantAuthorizationRevoked{PartyId: party, ParticipantId: participantID},
		}}
	case "changed":
		return &ledgerapi.TopologyEvent{Event: &ledgerapi.TopologyEvent_ParticipantAuthorizationChanged{
			ParticipantAuthorizationChanged: &ledgerapi.ParticipantAuthorizationChanged{PartyId: party, ParticipantId: participantID},
		}}
	}
	e := &ledgerapi.TopologyEvent{}
	if kind == "onboarding" {
		raw, err := proto.Marshal(added)
		if err != nil {
			panic(err)
		}
		e.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), raw))
	}
	if kind == "newer" {
		e.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1))
	}
	return e
}

// A read party that comes or goes calls for a snapshot; other topology does not, and moves the offset.
func TestHosting(t *testing.T) {
	const here, elsewhere = "participant::1220aa", "another::1220ff"
	for _, c := range []struct {
		kind, participant string
		party, any        bool // whether reading as parties, as any party, calls for a snapshot
	}{
		{"added", here, true, false},
		{"onboarding", here, true, false},
		{"revoked", here, true, true},
		{"changed", here, false, false},
		{"newer", here, true, true},
		{"empty", here, true, true},
		{"added", elsewhere, false, false},
		{"onboarding", elsewhere, false, false},
		{"revoked", elsewhere, false, false},
	} {
		for _, anyParty := range []bool{false, true} {
			want, cfg := c.party, testConfig()
			if anyParty {
				want, cfg = c.any, Config{AnyParty: true}
			}
			t.Run(fmt.Sprintf("%s here=%t any=%t", c.kind, c.participant == here, anyParty), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newParticipant()
					p.add(tx(10, create(cid(1))))
					sink := &memorySink{}
					r := start(t, cfg, p, sink)
					r.await(t, "live", proven(12))
					p.add(tx(13, create(cid(2))), topologyAt(16, hostingEvent(c.kind, operator, c.participant)), tx(19, create(cid(3))))
					r.await(t, "followed", proven(21))
					wantContracts(t, sink, cid(1), cid(2), cid(3))
					seeds := []ledger.SeedReason{ledger.SeedFirst}
					if want {
						seeds = append(seeds, ledger.SeedRightsChanged)
					}
					if diff := cmp.Diff(seeds, sink.reasons()); diff != "" {
						t.Errorf("seeds (-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// The index stays before the topology transaction until the new generation is there: a process that dies in between meets it again.
func TestHostingIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live", proven(12))
		sink.mu.Lock()
		sink.onCommit = func() error { return errors.New("the database is away") }
		sink.mu.Unlock()
		p.add(topologyAt(16, hostingEvent("revoked", operator, p.id)))
		r.await(t, "tried", func(st Status) bool { return st.Reconnects >= 2 })
		_ = r.stop()
		if got := sink.offset(); got >= 16 {
			t.Fatalf("the index moved to %d", got)
		}
		sink.onCommit = nil
		again := start(t, testConfig(), p, sink)
		again.await(t, "built anew", func(st Status) bool { return st.Reseeds == 1 && proven(18)(st) })
		if got := sink.reasons(); got[len(got)-1] != ledger.SeedRightsChanged {
			t.Errorf("seeds %v", got)
		}
	})
}

// A19: an operator's request reads the active contracts anew, while the old index serves on. One that comes while a snapshot is read
// gets a snapshot of its own.
func TestRequestReseed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		sink := &memorySink{}
		r := start(t, testConfig(), p, sink)
		r.await(t, "live", proven(12))
		again := true
		p.change(func() {
			p.onSnapshot = func(int, *ledgerapi.GetActiveContractsRequest, ledgerapi.StateService_GetActiveContractsServer) error {
				if again {
					again = false
					r.RequestReseed(ledger.SeedRequested)
				}
				return errDefault
			}
		})
		r.RequestReseed(ledger.SeedRequested)
		r.await(t, "both", func(st Status) bool { return st.Reseeds == 3 && st.State == StateLive })
		want := []ledger.SeedReason{ledger.SeedFirst, ledger.SeedRequested, ledger.SeedRequested}
		if diff := cmp.Diff(want, sink.reasons()); diff != "" {
			t.Errorf("seeds (-want +got):\n%s", diff)
		}
		<-time.After(time.Minute)
		if st := r.Status(); st.Reseeds != 3 || st.State != StateLive {
			t.Errorf("%d reseeds, state %s, a minute later", st.Reseeds, st.State)
		}
	})
}

// A stream whose offsets don't ascend is not believed.
func TestOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		p.onTail = func(n int, _ *ledgerapi.GetUpdatesRequest, s ledgerapi.UpdateService_GetUpdatesServer) error {
			if n > 1 {
				return errDefault
			}
			p.add(tx(14, create(cid(2))), tx(17, create(cid(3))))
			for _, u := range []*ledgerapi.GetUpdatesResponse{tx(17, create(cid(3))), tx(14, create(cid(2)))} {
				if err := s.Send(u); err != nil {
					return err
				}
			}
			<-s.Context().Done()
			return s.Context().Err()
		}
		r := start(t, testConfig(), p, &memorySink{})
		st := r.await(t, "ended", func(st Status) bool { return st.Reconnects == 1 })
		if !strings.Contains(st.Detail, "out of order") {
			t.Errorf("detail %q", st.Detail)
		}
	})
}

// A15, A17, A29: what repair commands and other shapes bring is tolerated: archives of the unknown, exercises without an argument, creates
// that are no delta.
func TestToleratesOddEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParticipant()
		p.add(tx(10, create(cid(1))))
		var mu sync.Mutex
		counts := map[string]int{}
		r := start(t, testConfig(), p, &memorySink{}, WithMetrics(Metrics{Ignored: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			counts[what]++
		}}))
		r.await(t, "live", proven(12))
		transient := nodeEvent(cid(5), "")
		transient.AcsDelta = false
		template := nodeEvent(cid(1), "").TemplateId
		p.add(tx(13,
			archive(cid(88)),
			&ledgerapi.Event{Event: &ledgerapi.Event_Exercised{Exercised: &ledgerapi.ExercisedEvent{
				ContractId: cid(89), TemplateId: template, PackageName: "wormhole-core",
			}}},
			&ledgerapi.Event{Event: &ledgerapi.Event_Exercised{Exercised: &ledgerapi.ExercisedEvent{
				ContractId: cid(1), TemplateId: template, PackageName: "wormhole-core", Consuming: true, AcsDelta: true,
			}}},
			&ledgerapi.Event{Event: &ledgerapi.Event_Created{Created: transient}},
			create(cid(2)),
		))
		r.await(t, "followed", proven(15))
		wantContracts(t, r.sink, cid(2))
		if r.sink.unknown != 1 {
			t.Errorf("%d archives of the unknown were passed on, want 1", r.sink.unknown)
		}
		_ = r.stop()
		for _, what := range []string{IgnoredExercise, IgnoredNotDelta} {
			if counts[what] == 0 {
				t.Errorf("%s not counted: %v", what, counts)
			}
		}
	})
}
