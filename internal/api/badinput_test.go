package api_test

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// ask sends any of the service's requests.
func (w *world) ask(ctx context.Context, req proto.Message) (proto.Message, error) {
	switch req := req.(type) {
	case *disclosurev1.PrepareRedeemRequest:
		return w.client.PrepareRedeem(ctx, req)
	case *disclosurev1.BatchPrepareRedeemRequest:
		return w.client.BatchPrepareRedeem(ctx, req)
	case *disclosurev1.GetCoveringNodeRequest:
		return w.client.GetCoveringNode(ctx, req)
	case *disclosurev1.GetCoreStateRequest:
		return w.client.GetCoreState(ctx, req)
	case *disclosurev1.GetRegistryRequest:
		return w.client.GetRegistry(ctx, req)
	case *disclosurev1.GetEmitterRequest:
		return w.client.GetEmitter(ctx, req)
	case *disclosurev1.GetContractFateRequest:
		return w.client.GetContractFate(ctx, req)
	case *disclosurev1.ListScopesRequest:
		return w.client.ListScopes(ctx, req)
	case *disclosurev1.AuditRequest:
		return w.client.Audit(ctx, req)
	case *disclosurev1.GetServerInfoRequest:
		return w.client.GetServerInfo(ctx, req)
	}
	w.t.Fatalf("no method for a %T", req)
	return nil, nil
}

func prepareVAA(text string) *disclosurev1.PrepareRedeemRequest {
	return &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Vaa{Vaa: text}}
}

func prepareDigest(text string) *disclosurev1.PrepareRedeemRequest {
	return &disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: text}}
}

func readWith(opts *disclosurev1.ReadOptions) *disclosurev1.GetCoreStateRequest {
	return &disclosurev1.GetCoreStateRequest{Read: opts}
}

func batchOf(n int) *disclosurev1.BatchPrepareRedeemRequest {
	batch := &disclosurev1.BatchPrepareRedeemRequest{}
	for range n {
		batch.Items = append(batch.Items, prepareDigest(digest("0").String()))
	}
	return batch
}

// badRequests are every way to get a field wrong, by the field that has to be named. (C01: digests. B12: template ids where a
// package name belongs.)
func badRequests() map[string][]proto.Message {
	good := digest("ab").String()
	longParty := strings.Repeat("p", 256)
	scope := func(change func(*disclosurev1.ScopeSelector)) proto.Message {
		req := prepareDigest(good)
		change(req.Scope)
		return req
	}
	manyIDs := make([]string, 101)
	for i := range manyIDs {
		manyIDs[i] = cid("c")
	}
	return map[string][]proto.Message{
		"digest": {
			prepareDigest(""), prepareDigest(good[:63]), prepareDigest(good + "a"), prepareDigest("0x"), prepareDigest(" " + good[1:]),
			prepareDigest(good[1:] + " "), prepareDigest(strings.Repeat("g", 64)), prepareDigest("0x0x" + good[2:]), prepareDigest(strings.Repeat("é", 32)),
			&disclosurev1.GetCoveringNodeRequest{Scope: selector(), Digest: good[:62]},
			&disclosurev1.GetCoveringNodeRequest{Scope: selector()},
			&disclosurev1.GetContractFateRequest{ContractId: cid("a"), Digest: "zz"},
		},
		"vaa": {
			prepareVAA(""), prepareVAA("0x"), prepareVAA("not base64!"), prepareVAA("0xzz"), prepareVAA("abc"), prepareVAA(strings.Repeat("0", 1<<20+2)),
			prepareVAA(" 01"), prepareVAA("====="),
		},
		"vaa_bytes": {
			&disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{}},
			&disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: make([]byte, 1<<20)}},
		},
		"subject":        {&disclosurev1.PrepareRedeemRequest{Scope: selector()}},
		"scope.consumer": {&disclosurev1.PrepareRedeemRequest{Subject: prepareDigest(good).Subject}, scope(func(s *disclosurev1.ScopeSelector) { s.Consumer = "" }), scope(func(s *disclosurev1.ScopeSelector) { s.Consumer = longParty }), scope(func(s *disclosurev1.ScopeSelector) { s.Consumer = "a%b" }), scope(func(s *disclosurev1.ScopeSelector) { s.Consumer = "a\x00b" }), &disclosurev1.AuditRequest{Scope: &disclosurev1.ScopeSelector{}}},
		"scope.operator": {scope(func(s *disclosurev1.ScopeSelector) { s.Operator = "a/b" }), scope(func(s *disclosurev1.ScopeSelector) { s.Operator = longParty })},
		"scope.package_name": {
			scope(func(s *disclosurev1.ScopeSelector) { s.PackageName = "#wormhole-core:Wormhole.Core.State:CoreState" }),
			scope(func(s *disclosurev1.ScopeSelector) { s.PackageName = packageID + ":Wormhole.Core.State:CoreState" }),
			scope(func(s *disclosurev1.ScopeSelector) { s.PackageName = "Wormhole.Core.State:CoreState" }),
			scope(func(s *disclosurev1.ScopeSelector) { s.PackageName = "a:b" }),
			scope(func(s *disclosurev1.ScopeSelector) { s.PackageName = strings.Repeat("a", 256) }),
		},
		"scope.namespace": {scope(func(s *disclosurev1.ScopeSelector) {
			s.NamespaceChoice = &disclosurev1.ScopeSelector_Namespace{Namespace: strings.Repeat("n", 129)}
		})},
		"scope.without_namespace": {scope(func(s *disclosurev1.ScopeSelector) {
			s.NamespaceChoice = &disclosurev1.ScopeSelector_WithoutNamespace{}
		})},
		"core_state_contract_id": {&disclosurev1.PrepareRedeemRequest{Scope: selector(), Subject: prepareDigest(good).Subject, CoreStateContractId: "00ff"}},
		"contract_id": {
			&disclosurev1.GetContractFateRequest{}, &disclosurev1.GetContractFateRequest{ContractId: "xyz"}, &disclosurev1.GetContractFateRequest{ContractId: cid("a")[:136]},
			&disclosurev1.GetContractFateRequest{ContractId: cid("a") + "00"}, &disclosurev1.GetContractFateRequest{ContractId: strings.Repeat("0", 1<<16)},
			&disclosurev1.GetCoreStateRequest{ContractId: "0x" + cid("a")},
		},
		"kind":                       {&disclosurev1.GetRegistryRequest{}, &disclosurev1.GetRegistryRequest{Kind: 77}},
		"operator":                   {&disclosurev1.GetRegistryRequest{Kind: 1, Operator: "ö"}, &disclosurev1.GetCoreStateRequest{Operator: "a\nb"}, &disclosurev1.ListScopesRequest{Operator: "?"}},
		"consumer":                   {&disclosurev1.ListScopesRequest{Consumer: longParty}},
		"owner":                      {&disclosurev1.GetEmitterRequest{}, &disclosurev1.GetEmitterRequest{Owner: longParty}},
		"emitter_id":                 {&disclosurev1.GetEmitterRequest{Owner: consumer, EmitterId: -1}},
		"items":                      {batchOf(0), batchOf(1001)},
		"items[1].read":              {&disclosurev1.BatchPrepareRedeemRequest{Items: []*disclosurev1.PrepareRedeemRequest{prepareDigest(good), {Scope: selector(), Subject: prepareDigest(good).Subject, Read: &disclosurev1.ReadOptions{}}}}},
		"page_size":                  {&disclosurev1.ListScopesRequest{PageSize: -1}, &disclosurev1.ListScopesRequest{PageSize: 1001}, &disclosurev1.ListScopesRequest{PageSize: math.MaxInt32}},
		"page_token":                 {&disclosurev1.ListScopesRequest{PageToken: "x"}, &disclosurev1.ListScopesRequest{PageToken: "MSAxIDEgMSAx!"}, &disclosurev1.ListScopesRequest{PageToken: strings.Repeat("A", 1<<16)}},
		"limit":                      {&disclosurev1.AuditRequest{Limit: -1}, &disclosurev1.AuditRequest{Limit: 10_001}},
		"read.after_update_id":       {readWith(&disclosurev1.ReadOptions{AfterUpdateId: "123"}), readWith(&disclosurev1.ReadOptions{AfterUpdateId: "zz"}), readWith(&disclosurev1.ReadOptions{AfterUpdateId: strings.Repeat("a", 256)})},
		"read.min_offset":            {readWith(&disclosurev1.ReadOptions{MinOffset: -1, ParticipantId: participant}), readWith(&disclosurev1.ReadOptions{MinOffset: math.MaxInt64, ParticipantId: participant}), readWith(&disclosurev1.ReadOptions{MinOffset: 1 << 53, ParticipantId: participant})},
		"read.participant_id":        {readWith(&disclosurev1.ReadOptions{MinOffset: 7}), readWith(&disclosurev1.ReadOptions{ParticipantId: longParty})},
		"read.wait":                  {readWith(&disclosurev1.ReadOptions{Wait: durationpb.New(-time.Second)}), readWith(&disclosurev1.ReadOptions{Wait: &durationpb.Duration{Seconds: math.MaxInt64}}), readWith(&disclosurev1.ReadOptions{Wait: &durationpb.Duration{Seconds: 1, Nanos: -1}})},
		"read.known_contract_ids":    {readWith(&disclosurev1.ReadOptions{KnownContractIds: manyIDs})},
		"read.known_contract_ids[0]": {readWith(&disclosurev1.ReadOptions{KnownContractIds: []string{""}})},
		"read.not_contract_ids":      {readWith(&disclosurev1.ReadOptions{NotContractIds: manyIDs})},
		"read.not_contract_ids[1]":   {readWith(&disclosurev1.ReadOptions{NotContractIds: []string{cid("a"), "nope"}})},
	}
}

// Bad input is refused before anything else: also by a service that has no index yet, and whatever the field, the answer names
// it and the rule, and fits.
func TestBadInput(t *testing.T) {
	for _, state := range []string{"no index", "ready"} {
		t.Run(state, func(t *testing.T) {
			w := newWorld(t)
			if state == "ready" {
				w.seed(contract("core", core(guardianSets())), contract("root", node(t, "")))
			}
			for field, requests := range badRequests() {
				for _, req := range requests {
					_, err := w.ask(t.Context(), req)
					if status.Code(err) != codes.InvalidArgument {
						t.Errorf("%s: %.200v: error %v, want InvalidArgument", field, req, err)
						continue
					}
					info := wantReason(t, err, api.InvalidField)
					if got := info.GetMetadata()["field"]; got != field {
						t.Errorf("%.200v: field %q named, want %q", req, got, field)
					}
					if _, _, bad := reasonOf(err); len(bad.GetFieldViolations()) == 0 || bad.GetFieldViolations()[0].GetField() != field || bad.GetFieldViolations()[0].GetDescription() == "" {
						t.Errorf("%.200v: BadRequest %v, want field %q with a rule", req, bad, field)
					}
					checkStatusSize(t, err)
				}
			}
		})
	}
}

// checkStatusSize holds a status to what clients accept in trailers.
func checkStatusSize(t *testing.T, err error) {
	t.Helper()
	st := status.Convert(err)
	if n := len(st.Message()); n > 512 {
		t.Errorf("status message of %d bytes, want at most 512", n)
	}
	// In trailers: the message percent-encoded, at worst three times as long, and the whole in base64.
	if n := 3*len(st.Message()) + proto.Size(st.Proto())*4/3; n > 8000 {
		t.Errorf("status of up to %d bytes in trailers, want less than 8 KB: %.200s", n, st.Message())
	}
}

// Several fields wrong at once are all named.
func TestAllFieldsNamed(t *testing.T) {
	w := newWorld(t)
	_, err := w.client.PrepareRedeem(t.Context(), &disclosurev1.PrepareRedeemRequest{
		Scope:   &disclosurev1.ScopeSelector{Consumer: "%", Operator: "%"},
		Subject: &disclosurev1.PrepareRedeemRequest_Digest{Digest: "x"},
		Read:    &disclosurev1.ReadOptions{MinOffset: -4},
	})
	wantReason(t, err, api.InvalidField)
	_, _, bad := reasonOf(err)
	var fields []string
	for _, v := range bad.GetFieldViolations() {
		fields = append(fields, v.GetField())
	}
	if got, want := strings.Join(fields, " "), "scope.consumer scope.operator digest read.min_offset"; got != want {
		t.Errorf("fields named: %s, want %s", got, want)
	}
}

// Bug A22: a bad input of 64 KB must not be echoed: the status would not fit and the client would see another error.
func TestA22LongBadInputIsNotEchoed(t *testing.T) {
	w := basic(t)
	long := strings.Repeat("€", 1<<16/3)
	for _, req := range []proto.Message{
		prepareDigest(long), prepareVAA(long), readWith(&disclosurev1.ReadOptions{AfterUpdateId: long}),
		&disclosurev1.GetContractFateRequest{ContractId: long}, &disclosurev1.GetCoveringNodeRequest{Scope: &disclosurev1.ScopeSelector{Consumer: long}, Digest: digest("a").String()},
		&disclosurev1.ListScopesRequest{PageToken: long, PackageName: long, Consumer: long, Operator: long},
	} {
		_, err := w.ask(t.Context(), req)
		wantReason(t, err, api.InvalidField)
		checkStatusSize(t, err)
		if strings.Contains(status.Convert(err).Message(), "€") {
			t.Errorf("the input is echoed: %.200v", err)
		}
	}
}

// A batch's items have errors of their own, and hold to the same bound.
func TestBatchItemErrors(t *testing.T) {
	w := basic(t)
	batch := &disclosurev1.BatchPrepareRedeemRequest{}
	for range 1000 {
		batch.Items = append(batch.Items, prepareDigest(strings.Repeat("x", 1000)))
	}
	answer, err := w.client.BatchPrepareRedeem(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range answer.GetItems() {
		if e := item.GetError(); e.GetReason() != string(api.InvalidField) || e.GetCode() != int32(codes.InvalidArgument) || len(e.GetMessage()) > 512 {
			t.Fatalf("item %d: %v", i, e)
		}
	}
}

// A request that is no valid protobuf message is bad input, not a fault of the service.
func TestUndecodableRequest(t *testing.T) {
	w := basic(t)
	err := w.conn.Invoke(t.Context(), disclosurev1.DisclosureService_PrepareRedeem_FullMethodName,
		&disclosurev1.PrepareRedeemRequest{Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: nil}}, &disclosurev1.PrepareRedeemResponse{},
		rawBytes{0x22, 0x02, 0xff, 0xfe}.option()) // digest = "\xff\xfe"
	if status.Code(err) != codes.InvalidArgument {
		t.Fatalf("error %v, want InvalidArgument", err)
	}
	if info := wantReason(t, err, api.InvalidField); info.GetMetadata()["field"] != "request" {
		t.Errorf("field %q named, want request", info.GetMetadata()["field"])
	}
	if !strings.Contains(w.logs.String(), "INVALID_FIELD") {
		t.Error("the call is not in the access log")
	}
}

// gRPC reads the header of the deadline before anything of ours sees the call, so what is wrong with it is told in gRPC's words. What is told,
// and that the service goes on, is what docs/errors.md says.
func TestMalformedDeadlineIsGRPCs(t *testing.T) {
	w := basic(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	for timeout, want := range map[string]codes.Code{
		"abc": codes.Internal, "-1S": codes.Internal, "1": codes.Internal, "10": codes.Internal, "999999999S": codes.Internal, "1.5S": codes.Internal,
		"0S": codes.DeadlineExceeded, "99999999H": codes.OK, "5S": codes.OK,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.addr+"/disclosure.v1.DisclosureService/GetServerInfo", bytes.NewReader(make([]byte, 5)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Grpc-Timeout": {timeout}}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Errorf("grpc-timeout %q: %v", timeout, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		got := cmp.Or(resp.Trailer.Get("Grpc-Status"), resp.Header.Get("Grpc-Status"))
		if got != strconv.Itoa(int(want)) || err != nil || (len(body) > 0) != (want == codes.OK) {
			t.Errorf("grpc-timeout %q: status %s, %d bytes, %v; want %s", timeout, got, len(body), err, want)
		}
	}
	if _, err := w.client.GetServerInfo(t.Context(), &disclosurev1.GetServerInfoRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
