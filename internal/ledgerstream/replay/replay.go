// Package replay reads recordings of a participant's Ledger API calls and serves them again to a real client.
//
// A recording is one scenario: its calls in the order in which they were started, one JSON object a line, gzipped or not. A call holds its
// request as protojson, every response's bytes exactly as they came, and the status that ended it (with the bytes of its details). What
// a reader under test must be fed are those bytes: they have fields that the stubs do not know, and no re-encoding has touched them.
//
// From a recording one takes snapshots (GetActiveContracts) and streams (GetUpdates); a Server serves one of each, with the
// identity calls, to a client that believes it is talking to a participant.
package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Recording is one recorded scenario.
type Recording struct {
	// Name is the file's name without its extensions, as "02-consume-split".
	Name  string
	Calls []*Call
}

// Call is one recorded RPC.
type Call struct {
	// N is the call's number in its recording, from 1.
	N int `json:"n"`
	// Note says what the call was made for.
	Note string `json:"note"`
	// Method is the full name, as "/com.daml.ledger.api.v2.StateService/GetLedgerEnd".
	Method string `json:"method"`
	// Kind is "unary", "server_stream" or "bidi_stream".
	Kind string `json:"kind"`
	// RequestJSON is the request as protojson, without what RequestNote says was left out.
	RequestJSON json.RawMessage `json:"request"`
	RequestNote string          `json:"request_note"`
	StartedAt   time.Time       `json:"started_at"`
	ElapsedMS   float64         `json:"elapsed_ms"`
	Responses   []Response      `json:"responses"`
	// Capped says that some responses were left out, and how many; empty for none.
	Capped string `json:"responses_capped"`
	Status Status `json:"status"`
}

// Response is one recorded message.
type Response struct {
	// AtMS is when it came, in milliseconds since the call's start.
	AtMS float64 `json:"at_ms"`
	// Raw is the message as it came.
	Raw []byte `json:"raw_b64"`
}

// Status is how a call ended.
type Status struct {
	Code    codes.Code
	Message string
	// EndedByClient says why the recorder itself ended the call; then the status says nothing about the server.
	EndedByClient string
	// Raw is the google.rpc.Status with all details, empty where there were none.
	Raw []byte
}

// UnmarshalJSON reads a recorded status.
func (s *Status) UnmarshalJSON(data []byte) error {
	var in struct {
		CodeNumber uint32 `json:"code_number"`
		Message    string `json:"message"`
		Ended      string `json:"ended_by_client"`
		Raw        string `json:"raw_b64"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(in.Raw)
	if err != nil {
		return fmt.Errorf("status: details: %w", err)
	}
	*s = Status{Code: codes.Code(in.CodeNumber), Message: in.Message, EndedByClient: in.Ended, Raw: raw}
	return nil
}

// Err is the error that a client gets for the status, nil for OK.
func (s Status) Err() error {
	if s.Code == codes.OK {
		return nil
	}
	if len(s.Raw) > 0 {
		var recorded statuspb.Status
		if proto.Unmarshal(s.Raw, &recorded) == nil {
			return status.ErrorProto(&recorded)
		}
	}
	return status.Error(s.Code, s.Message)
}

// Request decodes the call's request into a message of its type; fields that the type does not know are left out.
func (c *Call) Request(into proto.Message) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(c.RequestJSON, into); err != nil {
		return fmt.Errorf("request of call %d (%s): %w", c.N, c.Method, err)
	}
	return nil
}

// Into decodes the response into a message of its type.
func (r Response) Into(m proto.Message) error {
	if err := proto.Unmarshal(r.Raw, m); err != nil {
		return fmt.Errorf("recorded %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}

// Call is the call of that number, nil if there is none.
func (r *Recording) Call(n int) *Call {
	at := slices.IndexFunc(r.Calls, func(c *Call) bool { return c.N == n })
	if at < 0 {
		return nil
	}
	return r.Calls[at]
}

// maxLine bounds a line of a recording.
const maxLine = 64 << 20

// Load reads one recording, a file that ends in .jsonl or .jsonl.gz.
func Load(files fs.FS, name string) (*Recording, error) {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, fmt.Errorf("load recording: %w", err)
	}
	var in io.Reader = bytes.NewReader(content)
	base := path.Base(name)
	if trimmed, ok := strings.CutSuffix(base, ".gz"); ok {
		base = trimmed
		if in, err = gzip.NewReader(in); err != nil {
			return nil, fmt.Errorf("load recording %s: %w", name, err)
		}
	}
	base, ok := strings.CutSuffix(base, ".jsonl")
	if !ok {
		return nil, fmt.Errorf("load recording %s: want a .jsonl or .jsonl.gz file", name)
	}
	r := &Recording{Name: base}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		call := &Call{}
		if err := json.Unmarshal(lines.Bytes(), call); err != nil {
			return nil, fmt.Errorf("load recording %s: call %d: %w", name, len(r.Calls)+1, err)
		}
		r.Calls = append(r.Calls, call)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("load recording %s: %w", name, err)
	}
	if len(r.Calls) == 0 {
		return nil, fmt.Errorf("load recording %s: %w", name, errEmpty)
	}
	return r, nil
}

var errEmpty = errors.New("no calls")

// LoadAll reads all recordings in the root of a file system, in the order of their names.
func LoadAll(files fs.FS) ([]*Recording, error) {
	var names []string
	for _, pattern := range []string{"*.jsonl", "*.jsonl.gz"} {
		found, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, fmt.Errorf("load recordings: %w", err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	var out []*Recording
	for _, name := range names {
		r, err := Load(files, name)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}
