package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/client"
	"github.com/disclosured/disclosured/internal/api"
)

// recordedReasons are the error ids that the table must have: see testdata/README.md.
func recordedReasons(t *testing.T) []string {
	f, err := os.Open("testdata/reasons.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ids []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if id, _, _ := strings.Cut(lines.Text(), " "); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

func statusOf(t *testing.T, code codes.Code, reason, message string, metadata map[string]string) error {
	t.Helper()
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Metadata: metadata},
		&errdetails.ResourceInfo{ResourceType: "CONTRACT_ID", ResourceName: "00ab"})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestEveryReasonHasARow(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range client.Errors {
		if seen[row.Reason] {
			t.Errorf("%s has two rows", row.Reason)
		}
		seen[row.Reason] = true
		if row.Meaning == "" || row.Do == "" || row.Code == "" {
			t.Errorf("%s says too little", row.Reason)
		}
		// The classifier says what the table says, for the error as gRPC brings it, wrapped, and as the JSON Ledger API's.
		for _, err := range []error{
			fmt.Errorf("submitting: %w", statusOf(t, codes.Aborted, row.Reason, row.Reason+"(9,0): Interpretation error: (error category 9): something", nil)),
			&client.LedgerError{Reason: row.Reason, Code: codes.Aborted, Message: "something"},
		} {
			class, said := client.Classify(err)
			if class != row.Class || said == nil || said.Reason != row.Reason {
				t.Errorf("%v is classified as %s, %v; the table says %s", err, class, said, row.Class)
			}
		}
	}
	ids := recordedReasons(t)
	if len(ids) < 60 {
		t.Fatalf("%d recorded reasons", len(ids))
	}
	for _, id := range ids {
		if !seen[id] {
			t.Errorf("%s has no row", id)
		}
	}
}

func TestEveryServiceReasonHasARow(t *testing.T) {
	var rows []string
	for _, row := range client.ServiceErrors {
		rows = append(rows, row.Reason)
	}
	for _, row := range api.Reasons {
		if !slices.Contains(rows, string(row.Reason)) {
			t.Errorf("%s has no row", row.Reason)
		}
	}
}

func TestClassifyWithoutReason(t *testing.T) {
	for _, test := range []struct {
		err  error
		want client.Class
	}{
		{status.Error(codes.Unavailable, "connection refused"), client.ClassUnknown},
		{status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL"), client.ClassUnknown},
		{status.Error(codes.DeadlineExceeded, "late"), client.ClassUnknown},
		{status.Error(codes.ResourceExhausted, "received message larger than max"), client.ClassUnknown},
		{status.Error(codes.Internal, "header list size to send violates the maximum size"), client.ClassUnknown},
		{status.Error(codes.NotFound, "something"), client.ClassUnknown},
		{status.Error(codes.InvalidArgument, "An error occurred. Please contact the operator"), client.ClassDistrust},
		{status.Error(codes.PermissionDenied, "An error occurred. Please contact the operator"), client.ClassGiveUp},
		{status.Error(codes.Unauthenticated, "An error occurred. Please contact the operator"), client.ClassGiveUp},
		{status.Error(codes.Unimplemented, "no such method"), client.ClassGiveUp},
		{context.DeadlineExceeded, client.ClassUnknown},
		{context.Canceled, client.ClassUnknown},
		{errors.New("broken pipe"), client.ClassUnknown},
		{fmt.Errorf("the user closed the window: %w", client.ErrNotSubmitted), client.ClassGiveUp},
		{statusOf(t, codes.FailedPrecondition, "SOMETHING_NEW", "new", nil), client.ClassUnknown},
		{statusOf(t, codes.FailedPrecondition, "DAML_FAILURE", "DAML_FAILURE(9,0): Error: User failure: X (error category 9): VAA already consumed", nil), client.ClassConsumed},
		{statusOf(t, codes.FailedPrecondition, "DAML_FAILURE", "DAML_FAILURE(9,0): Error: User failure: X (error category 9): digest already consumed", nil), client.ClassConsumed},
		{statusOf(t, codes.FailedPrecondition, "DAML_FAILURE", "… (error category 9): my VAA already consumed", nil), client.ClassRefused},
		{statusOf(t, codes.AlreadyExists, "DUPLICATE_COMMAND", "exists", map[string]string{"accepted": "true"}), client.ClassDuplicate},
		{statusOf(t, codes.AlreadyExists, "DUPLICATE_COMMAND", "exists", map[string]string{"accepted": "false"}), client.ClassBackoff},
	} {
		if got, _ := client.Classify(test.err); got != test.want {
			t.Errorf("%v is classified as %s, want %s", test.err, got, test.want)
		}
	}
	_, said := client.Classify(statusOf(t, codes.NotFound, "CONTRACT_NOT_FOUND", "gone", nil))
	if !slices.Equal(said.ContractIDs, []string{"00ab"}) {
		t.Errorf("the contracts named are %q", said.ContractIDs)
	}
}

// docs/retries.md is made from the tables: go test ./client -run Doc -update.
func TestRetriesDoc(t *testing.T) {
	const path = "../docs/retries.md"
	want := retriesDoc()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the tables say; run: go test ./client -run TestRetriesDoc -update", path)
	}
}

func retriesDoc() string {
	var b strings.Builder
	b.WriteString(retriesHead)
	b.WriteString("\n| reason | gRPC status | taken as | meaning | what is done |\n|---|---|---|---|---|\n")
	for _, row := range client.Errors {
		fmt.Fprintf(&b, "| `%s` | %s | **%s** | %s | %s |\n", row.Reason, row.Code, row.Class, row.Meaning, row.Do)
	}
	b.WriteString(retriesServiceHead)
	b.WriteString("\n| reason | step | why |\n|---|---|---|\n")
	for _, row := range client.ServiceErrors {
		fmt.Fprintf(&b, "| `%s` | **%s** | %s |\n", row.Reason, row.Step, row.Why)
	}
	return b.String()
}

const retriesHead = `# Retries

How the Go client (package ` + "`client`" + `) takes each error of a redeem, and what another implementation should do. This file is made from the
client's tables (` + "`go test ./client -run TestRetriesDoc -update`" + `) and held to them by a test.

## The protocol

1. **Resolve.** Ask PrepareRedeem; verify the blobs offline; take nothing of an earlier bundle. After a failure ask with ` + "`after_update_id`" + ` of the
   node used last (another replica must not answer from before it) and ` + "`not_contract_ids`" + ` of the contracts that failed. An endpoint that hands out
   again what the ledger called inactive, or put on another synchronizer, rests, and another is asked.
   - *Consumed, or invalid, by the service.* A blob that verifies agrees with itself, and anyone can invent one. So the other endpoints are asked before
     that is the end. One that has a bundle is believed first: it is submitted, and the ledger decides. Where nobody else can be asked, or agrees,
     it is the end, and rests on one endpoint's word (` + "`Outcome.Basis`" + `).
   - *Invalid, of a guardian set newer than CoreState's own.* CoreState follows the guardians' upgrade: ask again for a while, and keep the message.
2. **Submit**, under a command id that follows from the trie (package name, consumer, operator, namespace) and the digest. The participant deduplicates by it.
3. **Classify** the answer by ErrorInfo's reason, by the table below. The text counts only in a DAML_FAILURE.
4. **Refused**: this submission did nothing. Wait (the initial wait doubled with each failure, jittered over its whole length), resolve anew, submit again.
5. **No answer, or one that says nothing**: the submission may have committed, or may yet. Before anything else is submitted, read whether the digest is
   consumed, from an index that is past the moment: the first answer afterwards gives the service's clock (freshness.proven_at + age); an answer
   whose proven_at is not before that is past it. (As a rule that spares a submission. It proves nothing of a participant that is behind the
   synchronizer, and replicas behind one address have several clocks; going on is safe because of step 2 and the ledger.)
   - *Consumed.* Whose it was, the participant says: repeat the open submission unchanged. The digest is consumed, so it can't do anything.
     DUPLICATE_COMMAND: ours. LOCAL_VERDICT_INACTIVE_CONTRACTS: it passed deduplication, so nothing of ours had committed. No service's word about who
     consumed, or what became of a node, is taken for that.
   - *Ours, and history does not answer* (history_unavailable): ask for the update again, some seconds.
   - *Not consumed.* The submission is dead once the ledger has called its node inactive, or, by the service's word, once the node is archived without the
     digest consumed (GetContractFate). Until then it may commit; submitting again is safe all the same, because the participant deduplicates and the
     ledger lets a digest be consumed once.
6. **End**: committed; consumed by another; invalid; gave up, with nothing of ours on the ledger; or unknown, with what to check, where a submission
   is open when the budget or the caller's patience ends. Each with what it rests on: the ledger's answer to our submission, endpoints that agree, one
   endpoint's word.

**Drop every contract of a bundle that failed**, not only those that the error names: a participant that meets two stale contracts may name one.
**Accepted is not fresh**: a stale contract that a submission discloses and does not use is never looked at. What counts is which update consumed the digest.
**Signed too late** is LOCAL_VERDICT_INACTIVE_CONTRACTS: signing pins contract ids, and a slow signer meets others. PrepareRedeem's churn forecast tells how long an id lives.

## Errors of the participant

Taken as: **refresh**: a new bundle, after a short wait. **back off**: a new bundle, after a longer one. **other endpoint**: a new bundle, of another service.
**unknown outcome**, **in flight**: step 5. **duplicate**, **consumed**: read by which update. **invalid**, **give up**: the end, unless another endpoint
has another bundle, which is tried first: a refusal is about what was disclosed.
A reason that is not here is taken as an unknown outcome. An error without a reason is a refusal where its status is PERMISSION_DENIED, UNAUTHENTICATED or
UNIMPLEMENTED (give up), or INVALID_ARGUMENT (redacted: other endpoint), and an unknown outcome otherwise: a connection breaks on the way back as well.
`

const retriesServiceHead = `
## Errors of the service

What the reasons mean is in [errors.md](errors.md). **other endpoint**: ask the next one; where there is none, the same again after a while. **again**: ask again after
a while. **give up**: the other endpoints are asked, and where none knows better that is the end; one that is down is waited for, some seconds. An answer that does not verify is as no answer: the endpoint is left.
A reason that is not here is taken by its gRPC status.
`
