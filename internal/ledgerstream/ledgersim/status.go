package ledgersim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// grpcCodes are the participant's: a category has one code.
var grpcCodes = map[category]codes.Code{
	transient: codes.Unavailable, contention: codes.Aborted, securityAlert: codes.InvalidArgument, unauthenticated: codes.Unauthenticated,
	unauthorized: codes.PermissionDenied, invalidArgument: codes.InvalidArgument, invalidState: codes.FailedPrecondition,
	alreadyExists: codes.AlreadyExists, notFound: codes.NotFound, outOfRange: codes.OutOfRange,
}

// asStatus makes the error that a client sees: code, message and details in the participant's order.
func (s *Sim) asStatus(r *rejection, sub *submission) error {
	request := s.requestID(sub)
	tid := strings.ReplaceAll(request, "-", "")
	if r.category == securityAlert || r.category == unauthenticated || r.category == unauthorized {
		// Redacted: the client learns an id to quote, and nothing else.
		return withDetails(grpcCodes[r.category],
			fmt.Sprintf("An error occurred. Please contact the operator and inquire about the request %s with tid %s", request, tid),
			&errdetails.RequestInfo{RequestId: request})
	}
	metadata := map[string]string{"category": strconv.Itoa(int(r.category))}
	correlation := "0"
	if !r.anonymous {
		metadata["participant"] = "'" + s.options.Name + "'"
	}
	if !r.anonymous && !r.withoutRequest {
		metadata["tid"] = tid
		correlation = request[:8]
	}
	if !r.indefinite {
		metadata["definite_answer"] = strconv.FormatBool(r.definite)
	}
	if r.ofCommands && sub != nil {
		metadata["commands"] = sub.describe()
	}
	maps.Copy(metadata, r.metadata)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.reason, Metadata: metadata}}
	if r.retry != nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(*r.retry)})
	}
	if !r.withoutRequest {
		details = append(details, &errdetails.RequestInfo{RequestId: request})
	}
	for _, res := range r.resources {
		details = append(details, &errdetails.ResourceInfo{ResourceType: res.kind, ResourceName: res.name})
	}
	message := fmt.Sprintf("%s(%d,%s): %s", r.reason, r.category, correlation, clip(r.message))
	return withDetails(grpcCodes[r.category], message, details...)
}

// clip cuts a cause as the participant does.
func clip(s string) string {
	const most = 512
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

func withDetails(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// requestID is the submission's id, or a fresh one.
func (s *Sim) requestID(sub *submission) string {
	if sub != nil && sub.submissionID != "" {
		return sub.submissionID
	}
	s.ids.Lock()
	defer s.ids.Unlock()
	return s.ids.random.multihash()[4:36]
}

// describe is the submission as the participant's errors describe it.
func (sub *submission) describe() string {
	quoted := func(list []string) string {
		out := slices.Clone(list)
		for i := range out {
			out[i] = "'" + out[i] + "'"
		}
		return strings.Join(out, ", ")
	}
	return fmt.Sprintf("{readAs: [%s], deduplicationPeriod: {duration: 'PT168H'}, submittedAt: '%s', submissionId: '%s', actAs: [%s], commandId: '%s', userId: '%s', workflowId: %s}",
		quoted(sub.readAs), sub.submittedAt.UTC().Format(time.RFC3339Nano), sub.submissionID, quoted(sub.actAs), sub.commandID, sub.userID, sub.workflowID)
}
