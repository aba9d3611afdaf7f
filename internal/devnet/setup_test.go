package devnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

func start(t *testing.T, options ledgersim.Options) (*ledgersim.Sim, func(user string, more ...grpc.DialOption) *submit.Client) {
	t.Helper()
	sim := ledgersim.New(options)
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	return sim, func(user string, more ...grpc.DialOption) *submit.Client {
		conn, err := grpc.NewClient(address, append(more, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return submit.New(conn, user)
	}
}

// heard notes what Ensure reports, as "made CoreState".
type heard []string

func (h *heard) report(what, _ string, made bool) {
	*h = append(*h, fmt.Sprintf("%s %s", map[bool]string{true: "made", false: "found"}[made], what))
}

func (h heard) made() (n int) {
	for _, line := range h {
		if strings.HasPrefix(line, "made") {
			n++
		}
	}
	return n
}

// However far an earlier run came, the next one makes the rest and nothing twice: each number of commands that get through, from none
// to all, is tried.
func TestEnsureGoesOnWhereItWasInterrupted(t *testing.T) {
	options := Options{Thresholds: []int64{4, 16}}
	const submitMethod = "/com.daml.ledger.api.v2.CommandService/SubmitAndWaitForTransaction"
	for through := 0; ; through++ {
		sim, client := start(t, ledgersim.Options{})
		c := client("tester", grpc.WithUnaryInterceptor(failAfter(submitMethod, through)))
		_, err := Ensure(t.Context(), c, options, nil)
		if err == nil {
			if through < 9 { // CoreState, two registries; per app a request, a root and a contract
				t.Fatalf("done after %d submissions", through)
			}
			break
		}
		var second, third heard
		c = client("tester")
		w, err := Ensure(t.Context(), c, options, second.report)
		if err != nil {
			t.Fatalf("after %d submissions: %v", through, err)
		}
		end := sim.LedgerEnd()
		again, err := Ensure(t.Context(), c, options, third.report)
		if err != nil {
			t.Fatalf("after %d submissions, again: %v", through, err)
		}
		if third.made() > 0 || sim.LedgerEnd() != end {
			t.Errorf("after %d submissions, again: made something: %q", through, third)
		}
		if again.CoreState != w.CoreState || again.ReplayRootRegistry != w.ReplayRootRegistry || again.EmitterRegistry != w.EmitterRegistry ||
			again.Apps[0].Root != w.Apps[0].Root || again.Apps[1].Integrator.ContractID != w.Apps[1].Integrator.ContractID {
			t.Errorf("after %d submissions: found %+v, and then %+v", through, w, again)
		}
		if !slices.Equal(again.Apps[0].Integrator.Blob, w.Apps[0].Integrator.Blob) || len(w.Apps[0].Integrator.Blob) == 0 {
			t.Errorf("after %d submissions: the app's contract was found with another blob", through)
		}
	}
}

// Bug C06: a package that was just uploaded is not vetted at once. Commands that find none are asked again, others that are refused are not.
func TestEnsureWaitsForVetting(t *testing.T) {
	const submitMethod = "/com.daml.ledger.api.v2.CommandService/SubmitAndWaitForTransaction"
	refusal := func(code codes.Code, reason string) error {
		st, err := status.New(code, reason+"(9,0): refused").WithDetails(&errdetails.ErrorInfo{Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	notYet := refusal(codes.FailedPrecondition, submit.ReasonNotVetted)
	sim, client := start(t, ledgersim.Options{})
	sim.FailNext(submitMethod, notYet, notYet)
	if _, err := Ensure(t.Context(), client("tester"), Options{Thresholds: []int64{4}}, nil); err != nil {
		t.Errorf("after two refusals for want of a vetted package: %v", err)
	}

	sim, client = start(t, ledgersim.Options{})
	sim.FailNext(submitMethod, refusal(codes.InvalidArgument, "COMMAND_PREPROCESSING_FAILED"))
	if _, err := Ensure(t.Context(), client("tester"), Options{}, nil); err == nil || !strings.Contains(err.Error(), "COMMAND_PREPROCESSING_FAILED") {
		t.Errorf("a command that is refused for good: %v", err)
	}
}

// After redeems and governance the devnet is found as it is now.
func TestEnsureFindsWhatHasMovedOn(t *testing.T) {
	_, client := start(t, ledgersim.Options{})
	c := client("tester")
	w, err := Ensure(t.Context(), c, Options{Thresholds: []int64{1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	root := w.Apps[0].Root
	for i := range 2 { // the second splits the root
		consumed, err := c.Do(t.Context(), []string{w.Apps[0].Consumer}, nil, submit.ConsumeDigest(root, strings.Repeat(fmt.Sprint(i+1), 64)))
		if err != nil {
			t.Fatal(err)
		}
		next, ok := consumed.First(wormhole.ReplayNodeTemplate)
		if !ok {
			t.Fatal("no node was made")
		}
		root = next.ContractID
	}
	upgrade, err := w.UpgradeVAA()
	if err != nil {
		t.Fatal(err)
	}
	coreState, _, err := w.Govern(t.Context(), c, w.CoreState, upgrade)
	if err != nil {
		t.Fatal(err)
	}
	var said heard
	again, err := Ensure(t.Context(), c, Options{Thresholds: []int64{16}}, said.report)
	if err != nil {
		t.Fatal(err)
	}
	if said.made() > 0 || again.CoreState != coreState || again.Apps[0].Root != "" || again.Apps[0].Threshold != 1 {
		t.Errorf("found CoreState %s, want %s; root %q, want none; threshold %d, want 1; it said %q",
			again.CoreState, coreState, again.Apps[0].Root, again.Apps[0].Threshold, said)
	}
	vaa, err := again.VAA(again.Apps[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if vaa.GuardianSetIndex != 1 {
		t.Errorf("signed for guardian set %d, want the present one, 1", vaa.GuardianSetIndex)
	}
}

// Where authorization is on, an administrator without any other right makes and finds the devnet.
func TestEnsureAsAnAdministrator(t *testing.T) {
	sim, client := start(t, ledgersim.Options{Auth: &ledgersim.AuthOptions{Secret: []byte("secret")}})
	c := client(ledgersim.AdminUser, grpc.WithPerRPCCredentials(token(sim.Token(ledgersim.AdminUser, time.Minute))))
	own, err := c.OwnUser(t.Context())
	if err != nil || own != ledgersim.AdminUser {
		t.Fatalf("own user %q: %v", own, err)
	}
	for range 2 {
		w, err := Ensure(t.Context(), c, Options{Thresholds: []int64{4}, User: own}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.EnsureReader(t.Context(), "reader", w.Operator); err != nil {
			t.Fatal(err)
		}
	}
	reader := client("reader", grpc.WithPerRPCCredentials(token(sim.Token("reader", time.Minute))))
	operator, found, err := reader.FindParty(t.Context(), "operator")
	if err != nil || !found {
		t.Fatalf("the operator is not found: %v", err)
	}
	states, err := reader.Active(t.Context(), operator, wormhole.CoreStateTemplate, wormhole.PackageName)
	if err != nil || len(states) != 1 {
		t.Errorf("the reader sees %d CoreStates: %v", len(states), err)
	}
}
