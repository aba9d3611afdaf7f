package submit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, options ledgersim.Options) (context.Context, *ledgersim.Sim, *submit.Client) {
	t.Helper()
	sim := ledgersim.New(options)
	address, err := sim.Start()
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
		sim.Stop()
	})
	return ctx, sim, submit.New(conn, "tester")
}

func party(t *testing.T, ctx context.Context, c *submit.Client, hint string) string {
	t.Helper()
	id, err := c.AllocateParty(ctx, hint)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func do(t *testing.T, ctx context.Context, c *submit.Client, actAs []string, command submit.Command) *submit.Result {
	t.Helper()
	r, err := c.Do(ctx, actAs, nil, command)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCeremonyAndEmitters(t *testing.T) {
	ctx, sim, c := connect(t, ledgersim.Options{Packages: []ledgersim.Package{}})
	dar, err := ledgersim.DAR(ledgersim.WormholeCore010)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.UploadDAR(ctx, dar); err != nil {
		t.Fatal(err)
	}
	var refused *submit.Rejection
	if err := c.UploadDAR(ctx, []byte("no archive")); !errors.As(err, &refused) || refused.Reason != "INVALID_DAR" {
		t.Errorf("a broken archive: %v", err)
	}
	operator, consumer, owner := party(t, ctx, c, "operator"), party(t, ctx, c, "consumer"), party(t, ctx, c, "owner")
	registry := do(t, ctx, c, []string{operator}, submit.Create(&wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{}})).Created[0]
	request := do(t, ctx, c, []string{consumer}, submit.RequestRoot(wormhole.ReplayRootRequest{Consumer: consumer, Operator: operator, SplitThreshold: 1})).Created[0]
	granted := do(t, ctx, c, []string{operator}, submit.ApproveRoot(request.ContractID, registry.ContractID))
	root, ok := granted.First(wormhole.ReplayNodeTemplate)
	if !ok || len(granted.Archived) != 2 || root.BlobCheck != ledger.BlobVerified || root.Offset != granted.Offset || root.UpdateID != granted.UpdateID {
		t.Fatalf("approval gave %+v", granted)
	}
	first := do(t, ctx, c, []string{consumer}, submit.ConsumeDigest(root.ContractID, wormhole.Digest{1}.String()))
	split := do(t, ctx, c, []string{consumer}, submit.ConsumeDigest(first.Created[0].ContractID, wormhole.Digest{2}.String()))
	if len(split.Created) != 16 {
		t.Errorf("a full node became %d contracts", len(split.Created))
	}
	if end, err := c.LedgerEnd(ctx); err != nil || end != sim.LedgerEnd() {
		t.Errorf("ledger end %d, %v", end, err)
	}

	emitters := do(t, ctx, c, []string{operator}, submit.Create(&wormhole.EmitterRegistry{Operator: operator, NextID: 1})).Created[0]
	registered, err := c.Do(ctx, []string{owner}, []submit.Disclosure{submit.Disclose(emitters.Contract)}, submit.RegisterEmitter(emitters.ContractID, owner))
	if err != nil {
		t.Fatal(err)
	}
	emitter, _ := registered.First(wormhole.EmitterTemplate)
	published := do(t, ctx, c, []string{owner}, submit.PublishMessage(emitter.ContractID, 1, "00ff", 0))
	if next, _ := published.First(wormhole.EmitterTemplate); next.Payload.(*wormhole.Emitter).Sequence != 1 {
		t.Errorf("published: %+v", published)
	}
	gone := do(t, ctx, c, []string{consumer, operator}, submit.Archive(wormhole.ReplayNodeTemplate, wormhole.PackageName, split.Created[3].ContractID))
	if len(gone.Archived) != 1 || len(gone.Created) != 0 {
		t.Errorf("archived: %+v", gone)
	}
}

func TestRejections(t *testing.T) {
	ctx, sim, c := connect(t, ledgersim.Options{})
	operator, consumer := party(t, ctx, c, "operator"), party(t, ctx, c, "consumer")
	node := &wormhole.ReplayNode{Consumer: consumer, Operator: operator, SplitThreshold: 8}
	root := do(t, ctx, c, []string{consumer, operator}, submit.Create(node)).Created[0]
	want := func(what string, err error, code codes.Code, reason string) *submit.Rejection {
		t.Helper()
		var r *submit.Rejection
		if !errors.As(err, &r) || r.Code != code || r.Reason != reason || status.Code(r) != code {
			t.Fatalf("%s: got %v, want %s %s", what, err, code, reason)
		}
		return r
	}
	_, err := c.Do(ctx, []string{consumer}, nil, submit.Create(node))
	want("without the operator", err, codes.InvalidArgument, "DAML_AUTHORIZATION_ERROR")
	_, err = c.Do(ctx, []string{consumer}, nil, submit.ConsumeDigest(root.ContractID, "short"))
	if r := want("a bad digest", err, codes.FailedPrecondition, submit.ReasonFailure); r.ModelMessage() != "digest must be 32 bytes of lowercase hex" {
		t.Errorf("message %q", r.ModelMessage())
	}
	once := submit.Submission{CommandID: "once", ActAs: []string{consumer, operator}, Commands: []submit.Command{submit.Create(node)}}
	if _, err := c.Submit(ctx, once); err != nil {
		t.Fatal(err)
	}
	_, err = c.Submit(ctx, once)
	want("the same command again", err, codes.AlreadyExists, submit.ReasonDuplicate)
	next := do(t, ctx, c, []string{consumer}, submit.ConsumeDigest(root.ContractID, wormhole.Digest{1}.String()))
	_, err = c.Do(ctx, []string{consumer}, nil, submit.ConsumeDigest(root.ContractID, wormhole.Digest{2}.String()))
	if r := want("an archived node", err, codes.NotFound, submit.ReasonNotFound); len(r.Contracts) != 1 || r.Contracts[0] != root.ContractID {
		t.Errorf("about %v", r.Contracts)
	}
	_, err = c.Do(ctx, []string{consumer}, []submit.Disclosure{submit.Disclose(root.Contract)}, submit.ConsumeDigest(root.ContractID, wormhole.Digest{2}.String()))
	want("an archived node, disclosed", err, codes.NotFound, submit.ReasonInactive)
	sim.LoseAnswers(1)
	_, err = c.Do(ctx, []string{consumer}, nil, submit.ConsumeDigest(next.Created[0].ContractID, wormhole.Digest{2}.String()))
	want("a lost answer", err, codes.Unavailable, "")
}

func TestReassignment(t *testing.T) {
	ctx, sim, c := connect(t, ledgersim.Options{Synchronizers: 2})
	operator := party(t, ctx, c, "operator")
	if err := c.CreateReader(ctx, "reader", operator); err != nil {
		t.Fatal(err)
	}
	syncs, err := c.Synchronizers(ctx)
	if err != nil || len(syncs) != 2 {
		t.Fatalf("synchronizers %v, %v", syncs, err)
	}
	made := do(t, ctx, c, []string{operator}, submit.Create(&wormhole.EmitterRegistry{Operator: operator, NextID: 1})).Created[0]
	away, err := c.Unassign(ctx, operator, made.ContractID, syncs[0], syncs[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Assign(ctx, operator, away); err != nil {
		t.Fatal(err)
	}
	if now := sim.ActiveAt(made.ContractID, sim.LedgerEnd()); len(now) != 1 || now[0].SynchronizerID != syncs[1] {
		t.Errorf("the registry is at %+v", now)
	}
}
