package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
)

// want is what a refusal must be.
type want struct {
	code codes.Code
	// reason is ErrorInfo's; "" where the participant tells none.
	reason string
	// message is the model's own text, of a DAML_FAILURE.
	message string
}

var (
	inactive = want{codes.NotFound, submit.ReasonInactive, ""}
	notFound = want{codes.NotFound, submit.ReasonNotFound, ""}
)

// saysModel is what the model's refusal must be.
func saysModel(message string) want {
	return want{codes.FailedPrecondition, submit.ReasonFailure, message}
}

// answer is a refusal as it is compared: what does not depend on ids, times and texts for people.
type answer struct {
	code      codes.Code
	reason    string
	message   string
	metadata  []string
	resources []string
	retry     string
}

// answerOf reads a refusal.
func answerOf(err error) answer {
	st := status.Convert(err)
	if r := rejection(err); r != nil {
		st = status.Convert(r.Unwrap())
	}
	a := answer{code: st.Code(), retry: "none"}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.reason, a.metadata = d.GetReason(), slices.Sorted(maps.Keys(d.GetMetadata()))
		case *errdetails.RetryInfo:
			a.retry = d.GetRetryDelay().AsDuration().String()
		case *errdetails.ResourceInfo:
			a.resources = append(a.resources, d.GetResourceType())
		}
	}
	slices.Sort(a.resources)
	if r := rejection(err); r != nil {
		a.message = r.ModelMessage()
	}
	return a
}

// differences lists in what two answers to the same request differ.
func differences(subject, standIn answer) (all []string) {
	differ := func(what string, a, b any) {
		if x, y := fmt.Sprint(a), fmt.Sprint(b); x != y {
			all = append(all, fmt.Sprintf("%s: the participant %s, simulated %s", what, x, y))
		}
	}
	differ("code", subject.code, standIn.code)
	differ("reason", subject.reason, standIn.reason)
	differ("the model's words", subject.message, standIn.message)
	differ("metadata keys", subject.metadata, standIn.metadata)
	differ("resource types", subject.resources, standIn.resources)
	differ("retry hint", subject.retry, standIn.retry)
	return all
}

// refused submits what must be refused, on both sides, and holds the two answers to the scene's words and to each other. predicted is what
// the service said before, in words. It returns the subject's refusal.
func (s *story) refused(what, predicted string, expected want, submission func(on *side) submit.Submission) *submit.Rejection {
	s.t.Helper()
	begun := time.Now()
	result, err := s.subject.client.Submit(record.Note(s.ctx, "%s", what), submission(s.subject))
	took := time.Since(begun)
	if err == nil {
		s.subject.learn(result)
		s.t.Fatalf("%s: was committed at offset %d", what, result.Offset)
	}
	got := answerOf(err)
	row := refusalRow{scene: s.report.scene, what: what, predicted: predicted, answer: got, took: took}
	if got.code != expected.code || got.reason != expected.reason || got.message != expected.message {
		row.differences = append(row.differences, fmt.Sprintf("expected was %s %s %s", expected.code, expected.reason, expected.message))
		s.t.Errorf("%s: got %v, want %s %s %q", what, err, expected.code, expected.reason, expected.message)
	}
	again, simulated := s.standIn.client.Submit(s.ctx, submission(s.standIn))
	if simulated == nil {
		s.standIn.learn(again)
		row.differences = append(row.differences, "the simulated participant commits it")
		s.t.Errorf("%s: the stand-in commits it", what)
	} else if differing := differences(got, answerOf(simulated)); len(differing) > 0 {
		row.differences = append(row.differences, differing...)
		s.t.Errorf("%s: %s", what, strings.Join(differing, "; "))
	}
	s.report.refusals = append(s.report.refusals, row)
	return rejection(err)
}

// departs submits a redeem that is refused because something in it is not what the service gave.
func (s *story) departs(what string, p pair, expected want, depart func(on *side, b *bundle)) *submit.Rejection {
	s.t.Helper()
	return s.refused(what, "redeemable as given; this is not as given", expected, func(on *side) submit.Submission {
		b := *p.of(s, on)
		for _, d := range []**submit.Disclosure{&b.discloseApp, &b.discloseCore, &b.discloseNode} {
			own := **d
			*d = &own
		}
		depart(on, &b)
		return b.submission()
	})
}
