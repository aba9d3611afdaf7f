package integration

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestDifferences: whatever a caller acts upon tells two answers apart, and ids, times and texts do not.
func TestDifferences(t *testing.T) {
	refusal := func(code codes.Code, text, reason, key, kind string, retry time.Duration) error {
		details := []protoadapt.MessageV1{
			&errdetails.ErrorInfo{Reason: reason, Metadata: map[string]string{key: text}}, &errdetails.ResourceInfo{ResourceType: kind, ResourceName: text},
		}
		if retry > 0 {
			details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
		}
		st, err := status.New(code, text).WithDetails(details...)
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	one := refusal(codes.Aborted, "about 1", "LOCKED", "tid", "CONTRACT_ID", time.Second)
	if got := differences(answerOf(one), answerOf(refusal(codes.Aborted, "about 2", "LOCKED", "tid", "CONTRACT_ID", time.Second))); len(got) > 0 {
		t.Errorf("answers about different contracts differ: %v", got)
	}
	for what, other := range map[string]error{
		"code":           refusal(codes.NotFound, "about 1", "LOCKED", "tid", "CONTRACT_ID", time.Second),
		"reason":         refusal(codes.Aborted, "about 1", "INACTIVE", "tid", "CONTRACT_ID", time.Second),
		"metadata keys":  refusal(codes.Aborted, "about 1", "LOCKED", "cat", "CONTRACT_ID", time.Second),
		"resource types": refusal(codes.Aborted, "about 1", "LOCKED", "tid", "TEMPLATE_ID", time.Second),
		"retry hint":     refusal(codes.Aborted, "about 1", "LOCKED", "tid", "CONTRACT_ID", 0),
	} {
		if got := differences(answerOf(one), answerOf(other)); len(got) != 1 || !strings.HasPrefix(got[0], what+":") {
			t.Errorf("another %s: %v", what, got)
		}
	}
	if got := differences(answerOf(one), answerOf(status.Error(codes.Aborted, "about 1"))); len(got) != 4 {
		t.Errorf("an answer without details differs in %v", got)
	}
}

// TestReport: what differs is in the report where it happened, and the report says that it failed.
func TestReport(t *testing.T) {
	r := newReport()
	r.what, r.scene, r.synchronizers = "a participant", "a scene", []string{"one"}
	r.scenes = []sceneRow{{"a scene", "FAILED", time.Second}}
	r.refusals = []refusalRow{
		{scene: "a scene", what: "as simulated", answer: answer{code: codes.NotFound, reason: "INACTIVE"}},
		{scene: "a scene", what: "not as simulated", answer: answer{code: codes.NotFound}, differences: []string{"reason: …"}},
	}
	r.note("worth telling")
	r.took("submission", 350*time.Millisecond)
	text := r.text(true)
	for _, want := range []string{
		"# Integration: FAILED", "2 refusals were provoked, 1 of them not as expected", "| a scene | as simulated | NotFound | INACTIVE |  |  | the same |",
		"| a scene | not as simulated | NotFound | (none told) |  |  | DIFFERENT: reason: … |", "- a scene: worth telling", "| submission | 1 | 350ms |",
		notWithOneSynchronizer[0],
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not have %q:\n%s", want, text)
		}
	}
}
