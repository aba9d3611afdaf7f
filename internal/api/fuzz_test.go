package api_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Whatever bytes a request is made of: an answer, or an error with a reason that is not INTERNAL and that fits; no panic.
func FuzzPrepareRedeemRequest(f *testing.F) {
	for _, req := range []*disclosurev1.PrepareRedeemRequest{
		prepareDigest(digest("ab").String()), prepareDigest("0x" + digest("AB").String()), prepareVAA(vaa(1).EncodedHex()), prepareVAA("AQAA"), prepareVAA("02"), {},
		{Scope: selector(), Subject: &disclosurev1.PrepareRedeemRequest_VaaBytes{VaaBytes: vaa(2).Encode()}, CoreStateContractId: cid("core"),
			Read: &disclosurev1.ReadOptions{MinOffset: 3, ParticipantId: participant, KnownContractIds: []string{cid("root")}, NotContractIds: []string{cid("root")}, AllowStale: true}},
		{Scope: &disclosurev1.ScopeSelector{Consumer: consumer, NamespaceChoice: &disclosurev1.ScopeSelector_Namespace{Namespace: "é"}}, Subject: prepareDigest(strings.Repeat("f", 64)).Subject},
	} {
		raw, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	x, err := index.Open(context.Background(), index.Policy{GuardianGovernance: governance}, nil, index.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	seed, err := x.BeginSeed(context.Background(), ledger.SeedStart{ParticipantID: participant, Offset: 100, Reason: ledger.SeedFirst})
	if err != nil {
		f.Fatal(err)
	}
	root := contract("root", node(&testing.T{}, "", vaa(1).Digest()))
	if err := seed.Add(context.Background(), []ledger.Contract{contract("core", core(guardianSets())), root}); err != nil {
		f.Fatal(err)
	}
	if err := seed.Commit(context.Background()); err != nil {
		f.Fatal(err)
	}
	cfg := api.DefaultConfig()
	cfg.DefaultWait, cfg.MaxWait = time.Microsecond, time.Microsecond
	service := api.NewService(cfg, api.Deps{Index: x, Now: func() time.Time { return epoch }, Status: func() api.Status {
		return api.Status{State: "live", ParticipantID: participant, LedgerEnd: 100, ProvenOffset: 100, ProvenAt: epoch}
	}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req disclosurev1.PrepareRedeemRequest
		if proto.Unmarshal(raw, &req) != nil {
			return // the codec refuses it: TestUndecodableRequest
		}
		answer, err := service.PrepareRedeem(context.Background(), &req)
		if err == nil {
			if answer.GetVerdict() == disclosurev1.RedeemVerdict_REDEEM_VERDICT_UNSPECIFIED || answer.GetAnswer().GetPosition().GetOffset() != 100 {
				t.Errorf("answer without verdict or position: %v", answer)
			}
			checkVerdict(t, answer)
			return
		}
		if reason, _, _ := reasonOf(err); reason == "" || status.Code(err) == codes.Internal || status.Code(err) == codes.Unknown {
			t.Errorf("error %v (reason %q)", err, reason)
		}
		checkStatusSize(t, err)
	})
}
