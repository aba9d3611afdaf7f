package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// brokenHistory is an index whose history can't be read, as with a database that is gone.
type brokenHistory struct{ *index.Index }

type noHistory struct{ index.History }

func (brokenHistory) History() index.History { return noHistory{} }

var errGone = errors.New("connection refused to postgres://secret@db")

func (noHistory) Consumed(context.Context, index.Scope, wormhole.Digest, int64) (index.Consume, bool, error) {
	return index.Consume{}, false, errGone
}

func (noHistory) ConsumedAmong(context.Context, []index.ScopedDigest, int64) (map[index.ScopedDigest]index.Consume, error) {
	return nil, errGone
}

func (noHistory) HistorySince(context.Context) (int64, error) { return 0, errGone }

func (b brokenHistory) WaitUpdate(context.Context, string) (*index.View, index.UpdateRef, error) {
	return nil, index.UpdateRef{}, errGone
}

// panicking is an index whose waits panic.
type panicking struct{ *index.Index }

func (panicking) Wait(context.Context, func(*index.View) bool) (*index.View, error) {
	panic("a fault")
}

func nodeIn(t *testing.T, change func(*wormhole.ReplayNode), digests ...wormhole.Digest) *wormhole.ReplayNode {
	t.Helper()
	n := node(t, "", digests...)
	change(n)
	return n
}

// Each condition has its reason, and each reason its condition: a call that meets it, over the wire.
func TestReasons(t *testing.T) {
	ask := prepareDigest(digest("ab").String())
	hasHistory := &disclosurev1.GetContractFateRequest{ContractId: cid("x")}
	unwaiting := durationpb.New(0)
	cases := []struct {
		reason  api.Reason
		name    string
		options []option
		world   func(*world)
		ask     proto.Message
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		// with are metadata that the error must have.
		with map[string]string
		// unplaced errors are decided before there is a view.
		unplaced bool
	}{
		{reason: api.InvalidField, ask: prepareDigest("x"), with: map[string]string{"field": "digest"}, unplaced: true},
		{reason: api.UnknownScope, ask: &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: "nobody::1"}, Subject: ask.Subject}},
		{reason: api.UnknownScope, name: "another operator", ask: &disclosurev1.PrepareRedeemRequest{Scope: &disclosurev1.ScopeSelector{Consumer: consumer, Operator: accomplice}, Subject: ask.Subject}},
		{reason: api.AmbiguousScope, name: "C04 two operators", world: func(w *world) {
			w.apply(created(contract("other", nodeIn(t, func(n *wormhole.ReplayNode) { n.Operator = accomplice }))))
		}, ask: ask, with: map[string]string{"choices": "2", "choice_0": `{"packageName":"wormhole-core","operator":"accomplice::1220bb","withoutNamespace":true}`}},
		{reason: api.AmbiguousScope, name: "absent and empty namespace", world: func(w *world) {
			w.apply(created(contract("other", nodeIn(t, func(n *wormhole.ReplayNode) { n.Namespace = wormhole.Namespace{Present: true} }))))
		}, ask: ask, with: map[string]string{"choices": "2", "choice_1": `{"packageName":"wormhole-core","operator":"operator::1220aa","namespace":""}`}},
		{reason: api.Gap, world: func(w *world) { w.apply(archived("root")) }, ask: ask, with: map[string]string{"prefix": "", "consumer": consumer}},
		{reason: api.Fork, world: func(w *world) { w.apply(created(contract("twin", node(t, "")))) }, ask: ask, with: map[string]string{"contract_ids": "2"}},
		{reason: api.InFlight, world: func(w *world) {
			w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid("root"), Source: sync1, Target: sync2, ReassignmentCounter: 1})
		}, ask: ask, with: map[string]string{"contract_id": cid("root"), "source_synchronizer_id": sync1, "target_synchronizer_id": sync2}},
		{reason: api.CoreStateMissing, world: func(w *world) { w.apply(archived("core")) }, ask: ask},
		{reason: api.CoreStateMissing, name: "a puppet", world: func(w *world) {
			puppet := core(nil)
			puppet.GuardianGovernance = accomplice
			w.apply(archived("core"), created(contract("puppet", puppet)))
		}, ask: &disclosurev1.GetCoreStateRequest{}, with: map[string]string{"puppets": "1"}},
		{reason: api.CoreStateMissing, name: "named", ask: &disclosurev1.GetCoreStateRequest{ContractId: cid("another")}},
		{reason: api.CoreStateDoubled, world: func(w *world) { w.apply(created(contract("core2", core(nil)))) }, ask: ask, with: map[string]string{"contract_ids": "2"}},
		{reason: api.DifferentSynchronizers, name: "B10", world: func(w *world) {
			moved := contract("root", node(t, ""))
			moved.SynchronizerID, moved.ReassignmentCounter = sync2, 1
			w.apply(ledger.Event{Kind: ledger.Unassigned, ContractID: cid("root"), Source: sync1, Target: sync2, ReassignmentCounter: 1})
			w.apply(ledger.Event{Kind: ledger.Assigned, ContractID: cid("root"), Contract: &moved, Source: sync1, Target: sync2, ReassignmentCounter: 1})
		}, ask: ask, with: map[string]string{"core_state_synchronizer_id": sync1, "replay_node_synchronizer_id": sync2}},
		{reason: api.RegistryMissing, ask: &disclosurev1.GetRegistryRequest{Kind: 1}},
		{reason: api.RegistryDoubled, world: func(w *world) {
			w.apply(created(contract("r1", &wormhole.EmitterRegistry{Operator: operator})), created(contract("r2", &wormhole.EmitterRegistry{Operator: accomplice})))
		}, ask: &disclosurev1.GetRegistryRequest{Kind: 2}, with: map[string]string{"contract_ids": "2"}},
		{reason: api.EmitterMissing, ask: &disclosurev1.GetEmitterRequest{Owner: consumer}},
		{reason: api.EmitterDoubled, world: func(w *world) {
			w.apply(created(contract("e1", &wormhole.Emitter{Operator: operator, Owner: consumer})), created(contract("e2", &wormhole.Emitter{Operator: accomplice, Owner: consumer})))
		}, ask: &disclosurev1.GetEmitterRequest{Owner: consumer}},
		{reason: api.OffsetOfAnotherParticipant, ask: readWith(&disclosurev1.ReadOptions{MinOffset: 5, ParticipantId: "other::1220"}), with: map[string]string{"asked_participant_id": "other::1220"}},
		{reason: api.Behind, ask: readWith(&disclosurev1.ReadOptions{MinOffset: 5000, ParticipantId: participant}), with: map[string]string{"wanted_offset": "5000"}},
		{reason: api.Behind, name: "no wait", ask: readWith(&disclosurev1.ReadOptions{MinOffset: 5000, ParticipantId: participant, Wait: unwaiting})},
		{reason: api.UpdateNotSeen, ask: readWith(&disclosurev1.ReadOptions{AfterUpdateId: "1220ab"})},
		{reason: api.Stale, world: func(w *world) { w.setNow(epoch.Add(16 * time.Second)) }, ask: ask, with: map[string]string{"age": "16s", "bound": "15s"}},
		{reason: api.Halted, world: func(w *world) { w.setStatus(func(s *api.Status) { s.State, s.HaltedAt = "halted", 107 }) }, ask: ask, with: map[string]string{"halted_at_offset": "107"}},
		{reason: api.NotReady, name: "never proven", world: func(w *world) { w.setStatus(func(s *api.Status) { s.ProvenAt = time.Time{} }) }, ask: ask},
		{reason: api.NotReady, name: "another participant", world: func(w *world) { w.setStatus(func(s *api.Status) { s.ParticipantID = "other::1220" }) }, ask: ask},
		{reason: api.StoreUnavailable, options: []option{func(_ *api.Config, d *api.Deps) { d.Index = brokenHistory{d.Index.(*index.Index)} }}, ask: hasHistory},
		{reason: api.StoreUnavailable, name: "waiting", options: []option{func(_ *api.Config, d *api.Deps) { d.Index = brokenHistory{d.Index.(*index.Index)} }}, ask: readWith(&disclosurev1.ReadOptions{AfterUpdateId: "12"})},
		{reason: api.PageTokenExpired, ask: &disclosurev1.ListScopesRequest{PageToken: "MSBhYiBjZCAxIDE"}},
		{reason: api.AnswerTooLarge, options: []option{func(c *api.Config, _ *api.Deps) { c.MaxAnswerBytes = 900 }}, ask: batchOf(5), with: map[string]string{"limit_bytes": "900"}},
		{reason: api.AnswerTooLarge, name: "single", options: []option{func(c *api.Config, _ *api.Deps) { c.MaxAnswerBytes = 300 }}, ask: ask, unplaced: true},
		{reason: api.DeadlineExceeded, options: []option{func(c *api.Config, _ *api.Deps) { c.DefaultDeadline = time.Nanosecond }}, ask: batchOf(3)},
		{reason: api.Internal, options: []option{func(_ *api.Config, d *api.Deps) { d.Index = panicking{d.Index.(*index.Index)} }}, ask: readWith(&disclosurev1.ReadOptions{MinOffset: 5000, ParticipantId: participant}), unplaced: true},
	}
	for _, c := range cases {
		t.Run(strings.TrimSuffix(string(c.reason)+"/"+c.name, "/"), func(t *testing.T) {
			w := basic(t, c.options...)
			if c.world != nil {
				c.world(w)
			}
			_, err := w.ask(t.Context(), c.ask)
			info := wantReason(t, err, c.reason)
			checkRow(t, err)
			for key, want := range c.with {
				if got := info.GetMetadata()[key]; got != want {
					t.Errorf("metadata %s = %q, want %q", key, got, want)
				}
			}
			if !c.unplaced {
				pos := w.index.View().Position()
				if info.GetMetadata()["participant_id"] != participant || info.GetMetadata()["offset"] != strconv.FormatInt(pos.Offset, 10) || info.GetMetadata()["update_id"] != pos.UpdateID {
					t.Errorf("position in metadata: %v, want that of %+v", info.GetMetadata(), pos)
				}
			}
			if strings.Contains(status.Convert(err).Message(), "secret") || strings.Contains(status.Convert(err).Message(), "fault") {
				t.Errorf("the inside is told: %v", err)
			}
			checkStatusSize(t, err)
		})
	}
	t.Run("NOT_SEEDED", func(t *testing.T) {
		w := newWorld(t)
		for _, req := range []proto.Message{ask, hasHistory, &disclosurev1.ListScopesRequest{}, &disclosurev1.AuditRequest{}, readWith(&disclosurev1.ReadOptions{AllowStale: true})} {
			_, err := w.ask(t.Context(), req)
			wantReason(t, err, api.NotSeeded)
			checkRow(t, err)
		}
	})
}

// checkRow holds a status to its line in the table.
func checkRow(t *testing.T, err error) {
	t.Helper()
	reason, info, _ := reasonOf(err)
	at := slices.IndexFunc(api.Reasons, func(r api.Row) bool { return string(r.Reason) == reason })
	if at < 0 {
		t.Fatalf("reason %q is not in the table", reason)
	}
	row := api.Reasons[at]
	st := status.Convert(err)
	if st.Code() != row.Code || info.GetDomain() != "disclosured" || st.Message() == "" {
		t.Errorf("status %v %q of domain %q, want code %v of domain disclosured with a message", st.Code(), st.Message(), info.GetDomain(), row.Code)
	}
	delay := time.Duration(0)
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			delay = retry.GetRetryDelay().AsDuration()
		}
	}
	if delay != row.Delay {
		t.Errorf("retry delay %s, want %s", delay, row.Delay)
	}
	for key := range info.GetMetadata() {
		listed := append(slices.Clone(row.Metadata), api.PositionMetadata...)
		known := slices.ContainsFunc(listed, func(k string) bool {
			stem, numbered := strings.CutSuffix(k, "_N")
			n, err := strconv.Atoi(strings.TrimPrefix(key, stem+"_"))
			return k == key || numbered && err == nil && n >= 0
		})
		if !known {
			t.Errorf("metadata %q is not in the table for %s", key, reason)
		}
	}
}

// allow_stale lifts the bound on age, and nothing that concerns the truth.
func TestAllowStale(t *testing.T) {
	for name, c := range map[string]struct {
		status func(*api.Status)
		want   api.Reason
	}{
		"stale":               {func(s *api.Status) { s.ProvenAt = epoch.Add(-time.Hour) }, ""},
		"halted":              {func(s *api.Status) { s.State = "halted" }, ""},
		"never proven":        {func(s *api.Status) { s.ProvenAt = time.Time{} }, ""},
		"another participant": {func(s *api.Status) { s.ParticipantID = "other::1220" }, api.NotReady},
	} {
		t.Run(name, func(t *testing.T) {
			w := basic(t)
			w.setStatus(c.status)
			answer, err := w.client.GetCoreState(t.Context(), readWith(&disclosurev1.ReadOptions{AllowStale: true}))
			if c.want != "" {
				wantReason(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if answer.GetAnswer().GetFreshness().GetFresh() {
				t.Error("the answer claims to be fresh")
			}
		})
	}
}

// Every answer says where and how fresh it is.
func TestEveryAnswerHasPositionAndFreshness(t *testing.T) {
	w := populated(t)
	w.setNow(epoch.Add(3 * time.Second))
	for _, req := range []proto.Message{
		prepareDigest(digest("0").String()), batchOf(2), &disclosurev1.GetCoveringNodeRequest{Scope: selector(), Digest: digest("0").String()},
		&disclosurev1.GetCoreStateRequest{}, &disclosurev1.GetRegistryRequest{Kind: 1}, &disclosurev1.GetEmitterRequest{Owner: consumer, EmitterId: 1},
		&disclosurev1.GetContractFateRequest{ContractId: cid("x")}, &disclosurev1.ListScopesRequest{}, &disclosurev1.AuditRequest{}, &disclosurev1.GetServerInfoRequest{},
	} {
		answer, err := w.ask(t.Context(), req)
		if err != nil {
			t.Fatalf("%T: %v", req, err)
		}
		got := answer.(interface{ GetAnswer() *disclosurev1.Answer }).GetAnswer()
		pos := w.index.View().Position()
		if p := got.GetPosition(); p.GetParticipantId() != participant || p.GetOffset() != pos.Offset || p.GetUpdateId() != pos.UpdateID || !p.GetRecordTime().AsTime().Equal(pos.RecordTime) {
			t.Errorf("%T: position %v, want %+v", req, p, pos)
		}
		f := got.GetFreshness()
		if !f.GetFresh() || f.GetAge().AsDuration() != 3*time.Second || f.GetBound().AsDuration() != 15*time.Second || f.GetLedgerEnd() != pos.Offset {
			t.Errorf("%T: freshness %v", req, f)
		}
	}
}

// docs/errors.md is the table of errors.
func TestErrorsDocument(t *testing.T) {
	var doc strings.Builder
	doc.WriteString(`# Errors

*Made from the table in internal/api/reasons.go by ` + "`go test ./internal/api -run TestErrorsDocument -update`" + `; do not edit.*

Every error of the service is a gRPC status with a ` + "`google.rpc.ErrorInfo`" + ` of domain ` + "`disclosured`" + `. Its reason is stable: reasons are never
renamed, and their codes never change within ` + "`disclosure.v1`" + `. Go by the reason, never by the message.

What the ledger would say to a redeem is no error but an answer: PrepareRedeem's verdict, with INVALID the ` + "`failed_rule`" + `'s code and the ledger's words.
Only a VAA that is no hex, no base64 or empty is INVALID_FIELD.

- **Metadata**: errors that were decided at a view of the index have ` + "`" + strings.Join(api.PositionMetadata, "`, `") + "`" + `: the place on the
  participant's ledger, as in ` + "`Answer.position`" + `. Others, by reason, are listed below. A key that ends in _N stands for _0, _1, …
- **Retry**: *now* is the same request again, after ` + "`google.rpc.RetryInfo`" + `'s delay (which can be longer than the table's) with jitter; *after-refresh* is after what it rests on was read
  anew, or something on the ledger or in the service has changed; *never* is when the request itself has to change.
- ` + "`google.rpc.BadRequest`" + ` lists every field found wrong, with INVALID_FIELD.
- In a batch an item's error has the same code, reason, message and metadata.
- Messages have at most 512 bytes and never repeat what was sent.

Statuses without an ErrorInfo come from gRPC itself: UNIMPLEMENTED for an unknown method, RESOURCE_EXHAUSTED for a message beyond the size limit,
UNAVAILABLE for a connection that is gone, NOT_FOUND of the health service for an unknown service name. A ` + "`grpc-timeout`" + ` header is read by gRPC
before anything of this service sees the call: one that is malformed (no digits and unit, more than eight digits) is INTERNAL with gRPC's text, and one
that is over on arrival DEADLINE_EXCEEDED. Neither is in the access log. A deadline beyond the greatest (60s) is no error: the call has that one.

`)
	doc.WriteString("| reason | gRPC | HTTP | retry | delay |\n|---|---|---|---|---|\n")
	for _, r := range api.Reasons {
		delay := "–"
		if r.Delay > 0 {
			delay = r.Delay.String()
		}
		fmt.Fprintf(&doc, "| [%s](#%s) | %s | %d | %s | %s |\n", r.Reason, strings.ToLower(string(r.Reason)), codeName(r.Code), r.HTTP, r.Retry, delay)
	}
	for _, r := range api.Reasons {
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n\n*What to do:* %s\n", r.Reason, r.Meaning, r.Do)
		if len(r.Metadata) > 0 {
			fmt.Fprintf(&doc, "\n*Metadata:* `%s`\n", strings.Join(r.Metadata, "`, `"))
		}
	}
	goldenText(t, "../../docs/errors.md", doc.String())
}

// codeName is a code as the gRPC specification writes it.
func codeName(c codes.Code) string {
	var name strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(r)
	}
	return strings.ToUpper(name.String())
}

// The table has every reason once, whole.
func TestTableIsWhole(t *testing.T) {
	seen := map[api.Reason]bool{}
	for _, r := range api.Reasons {
		if seen[r.Reason] {
			t.Errorf("%s is twice in the table", r.Reason)
		}
		seen[r.Reason] = true
		if r.Code == codes.OK || r.HTTP < 400 || r.Meaning == "" || r.Do == "" {
			t.Errorf("%s: incomplete line", r.Reason)
		}
		if (r.Delay > 0) && r.Retry != api.RetryNow {
			t.Errorf("%s: a delay, but no retry now", r.Reason)
		}
	}
	source, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(source), "\n") {
		if _, value, ok := strings.Cut(line, ` = "`); ok && strings.HasSuffix(value, `"`) && strings.ToUpper(value) == value {
			if reason := api.Reason(strings.TrimSuffix(value, `"`)); !seen[reason] {
				t.Errorf("%s is not in the table", reason)
			}
		}
	}
}
