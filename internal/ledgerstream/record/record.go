// Package record writes down what a client and a participant say to each other over the Ledger API: a scenario's folder with one RPC a line
// in calls.jsonl, the facts of the scenario in facts.json, and a README.md. Package replay reads it, so that a recording of any
// participant can be fed to the real client again, and the simulated participant can be held to it.
//
// # How it listens
//
// A Recorder gives two client interceptors, for unary calls and for streams. What a participant sends is taken before it is decoded: the
// line of a response holds its bytes exactly as they came, fields that the stubs do not know included, beside the message as protojson. The
// status of a call that failed is kept with the bytes of its details. Nothing that is said changes by being recorded, and a fault
// of the recorder's own (a message that has no protojson form) is noted in the line and never fails the call.
//
// # What is left out
//
// Tokens: a header "authorization" is kept as "<removed>". DARs, texts over 8 KB and bytes over 64 KB of requests: the line says what, how
// much and with which SHA-256 (request_note). Responses beyond Options.MaxResponses of one call: the line says how many
// (responses_capped).
//
// # Order and lifetime
//
// Lines are in the order in which the calls were started, which is not that in which they end; so they are kept in memory until
// Write. A call that is still open then is written as it stands, as ended by the client. A Recorder is safe for concurrent use.
package record

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Options are what a recorder needs to know.
type Options struct {
	// Name is the scenario's, as "02-consume-split".
	Name string
	// About says in a sentence or two what the scenario is; it heads the README.
	About string
	// Target is the participant's address, as it stands in each line; may be empty.
	Target string
	// Authorized says that calls carry an access token that the interceptors can't see (per-RPC credentials): the lines then say so.
	Authorized bool
	// Compress writes the calls gzipped, as calls.jsonl.gz.
	Compress bool
	// MaxResponses bounds how many responses of one call are kept; 0 keeps all.
	MaxResponses int
}

// Recorder keeps the calls of one scenario.
type Recorder struct {
	options Options

	mu    sync.Mutex
	calls []*call
	facts map[string]any
}

// New makes a recorder without any call.
func New(options Options) *Recorder {
	return &Recorder{options: options, facts: map[string]any{}}
}

// Fact keeps a fact of the scenario for facts.json: a contract's id, a party, an offset. A later fact of the name replaces it.
func (r *Recorder) Fact(name string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.facts[name] = value
}

// Calls is how many calls were started so far.
func (r *Recorder) Calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

type noteKey struct{}

// Note gives a context whose calls are recorded as made for that.
func Note(ctx context.Context, format string, args ...any) context.Context {
	return context.WithValue(ctx, noteKey{}, fmt.Sprintf(format, args...))
}

// call is one call. Its line is only touched under the recorder's lock.
type call struct {
	line  line
	begun time.Time
	ended bool
	// received counts all responses, kept or not.
	received int
}

// line is a line of calls.jsonl.
type line struct {
	N               int             `json:"n"`
	Note            string          `json:"note,omitempty"`
	Target          string          `json:"target,omitempty"`
	Method          string          `json:"method"`
	Kind            string          `json:"kind"`
	Metadata        metadata.MD     `json:"metadata,omitempty"`
	Request         json.RawMessage `json:"request"`
	RequestNote     string          `json:"request_note,omitempty"`
	Responses       []response      `json:"responses"`
	ResponsesCapped string          `json:"responses_capped,omitempty"`
	Status          statusLine      `json:"status"`
	StartedAt       time.Time       `json:"started_at"`
	ElapsedMS       float64         `json:"elapsed_ms"`
}

type response struct {
	AtMS        float64         `json:"at_ms"`
	Msg         json.RawMessage `json:"msg"`
	RawB64      string          `json:"raw_b64"`
	StubUnknown []string        `json:"stub_unknown,omitempty"`
}

type statusLine struct {
	Code          string   `json:"code"`
	CodeNumber    uint32   `json:"code_number"`
	Message       string   `json:"message"`
	EndedByClient string   `json:"ended_by_client,omitempty"`
	Details       []detail `json:"details,omitempty"`
	RawB64        string   `json:"raw_b64,omitempty"`
}

type detail struct {
	Type  string          `json:"@type"`
	Value json.RawMessage `json:"value"`
}

// The kinds of calls.
const (
	kindUnary        = "unary"
	kindServerStream = "server_stream"
	kindClientStream = "client_stream"
	kindBidiStream   = "bidi_stream"
)

// start begins a call's line.
func (r *Recorder) start(ctx context.Context, method, kind string) *call {
	note, _ := ctx.Value(noteKey{}).(string)
	c := &call{begun: time.Now()}
	c.line = line{
		Note: note, Target: r.options.Target, Method: method, Kind: kind, Metadata: r.headers(ctx),
		Request: json.RawMessage("{}"), Responses: []response{}, StartedAt: c.begun.UTC(),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	c.line.N = len(r.calls)
	return c
}

const removed = "<removed>"

// headers are those that the call sends, without its token.
func (r *Recorder) headers(ctx context.Context) metadata.MD {
	sent, _ := metadata.FromOutgoingContext(ctx)
	headers := metadata.MD{}
	for name, values := range sent {
		headers[name] = slices.Clone(values)
		for i, v := range values {
			switch {
			case strings.EqualFold(name, "authorization"):
				headers[name][i] = removed
			case len(v) > maxText:
				headers[name][i] = fmt.Sprintf("<%d bytes>", len(v))
			}
		}
	}
	if r.options.Authorized {
		headers["authorization"] = []string{removed}
	}
	if len(headers) == 0 {
		return nil
	}
	return headers
}

// requested keeps the call's request. Of several the first one stands: the API's calls have one.
func (r *Recorder) requested(c *call, request any) {
	m, ok := request.(proto.Message)
	if !ok {
		return
	}
	short, note := shorten(m)
	text, err := protojson.Marshal(short)
	if err != nil {
		text, note = json.RawMessage("{}"), strings.TrimPrefix(note+"; the request has no JSON form: "+err.Error(), "; ")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if string(c.line.Request) != "{}" {
		return
	}
	c.line.Request, c.line.RequestNote = text, note
}

// received keeps a response: its bytes as they came, and the message that they were decoded into.
func (r *Recorder) received(c *call, raw []byte, reply any) {
	at := time.Since(c.begun)
	r.mu.Lock()
	c.received++
	kept := r.options.MaxResponses <= 0 || len(c.line.Responses) < r.options.MaxResponses
	r.mu.Unlock()
	if !kept {
		return
	}
	one := response{AtMS: inMilliseconds(at), Msg: json.RawMessage("{}"), RawB64: base64.StdEncoding.EncodeToString(raw)}
	if m, ok := reply.(proto.Message); ok {
		if text, err := protojson.Marshal(m); err == nil {
			one.Msg = text
		}
		one.StubUnknown = unknownFields(m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.line.Responses = append(c.line.Responses, one)
}

// end keeps how the call ended. The client's own end is told by its context: a participant that goes down ends streams as Canceled too.
func (r *Recorder) end(ctx context.Context, c *call, err error, trailer metadata.MD) {
	took := time.Since(c.begun)
	line := statusOf(err, trailer)
	if own := ctx.Err(); own != nil && err != nil {
		line.EndedByClient = own.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	c.line.Status, c.line.ElapsedMS = line, inMilliseconds(took)
}

func statusOf(err error, trailer metadata.MD) statusLine {
	st := status.Convert(err)
	out := statusLine{Code: st.Code().String(), CodeNumber: uint32(st.Code()), Message: st.Message()}
	if st.Code() == codes.OK {
		out.Code = "OK"
		return out
	}
	for _, packed := range st.Proto().GetDetails() {
		d := detail{Type: packed.GetTypeUrl(), Value: json.RawMessage("null")}
		if m, err := packed.UnmarshalNew(); err == nil {
			if text, err := protojson.Marshal(m); err == nil {
				d.Value = text
			}
		}
		out.Details = append(out.Details, d)
	}
	switch raw := trailer.Get("grpc-status-details-bin"); {
	case len(raw) == 1:
		out.RawB64 = base64.StdEncoding.EncodeToString([]byte(raw[0]))
	case len(out.Details) > 0:
		if raw, err := proto.Marshal(st.Proto()); err == nil {
			out.RawB64 = base64.StdEncoding.EncodeToString(raw)
		}
	}
	return out
}

func inMilliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
