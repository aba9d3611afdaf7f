package difftest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blinklabs-io/gouroboros/connection"
	"github.com/blinklabs-io/gouroboros/muxer"
	"github.com/blinklabs-io/gouroboros/protocol"
	"github.com/blinklabs-io/gouroboros/protocol/common"
	lms "github.com/blinklabs-io/gouroboros/protocol/localmessagesubmission"

	"github.com/disclosured/disclosured/replayguard"
)

const (
	connections = 3
	capacity    = 4
)

// answer is what a submitter learns: accepted, or a reject reason's code and text.
type answer struct {
	accepted bool
	code     uint8
	text     string
}

func (a answer) String() string {
	if a.accepted {
		return "accepted"
	}
	return fmt.Sprintf("rejected as %d: %q", a.code, a.text)
}

// guarded is a guard and what its submit function saw.
type guarded struct {
	replayguard.Config
	ran map[replayguard.ID]int
}

var errForged = errors.New("the signature is forged")

// rejection is an error of the submit function that has a wire reason.
type rejection struct{ common.RejectReason }

func (r rejection) Error() string { return fmt.Sprintf("rejected: %v", r.RejectReason) }

// newGuarded makes a guard that counts its submissions, and rejects bodies that begin with "reject".
func newGuarded() *guarded {
	g := &guarded{ran: map[replayguard.ID]int{}}
	var mu sync.Mutex
	g.Config = replayguard.NewConfig(
		replayguard.WithMaxReplayEntries(capacity),
		replayguard.WithAuthenticator(replayguard.AuthenticatorFunc(authenticate)),
		replayguard.WithSubmitMessageFunc(func(_ context.Context, m replayguard.Message, _ replayguard.Reservation) error {
			mu.Lock()
			g.ran[m.ID]++
			mu.Unlock()
			if string(m.Payload.(*common.DmqMessage).Payload.MessageBody[:6]) == "reject" {
				return rejection{common.OtherReason{Message: "not wanted"}}
			}
			return nil
		}))
	return g
}

// authenticate recomputes the id, and refuses what the schedule marks as forged.
func authenticate(_ context.Context, m replayguard.Message) error {
	message := m.Payload.(*common.DmqMessage)
	id, err := common.ComputeDmqMessageID(message.Payload)
	if err != nil || replayguard.ID(id) != m.ID {
		return fmt.Errorf("the id is not the payload's: %v", err)
	}
	if message.KESSignature[0] == 0xff {
		return errForged
	}
	return nil
}

// submit is the guard as a submit callback: nil, or a reject reason.
func (g *guarded) submit(message *common.DmqMessage) common.RejectReason {
	_, err := g.Connection("").Submit(context.Background(), replayguard.Message{
		ID:        replayguard.ID(message.ID()),
		ExpiresAt: int64(message.Payload.ExpiresAt),
		Payload:   message,
	})
	var refusal *replayguard.Refusal
	var own rejection
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own.RejectReason
	case errors.As(err, &refusal):
		return common.RejectReasonData{Type: refusal.Reason.WireCode(), Message: text(refusal)}
	}
	return common.OtherReason{Message: err.Error()}
}

// text is what goes over the wire beside the code, where the code has one.
func text(refusal *replayguard.Refusal) string {
	if refusal.Reason == replayguard.AlreadyReceived || refusal.Reason == replayguard.Expired {
		return ""
	}
	return string(refusal.Cause)
}

// direct is what a submitter learns without any wire.
func (g *guarded) direct(message *common.DmqMessage) answer {
	reason := g.submit(message)
	if reason == nil {
		return answer{accepted: true}
	}
	data, err := common.ToRejectReasonData(reason)
	if err != nil {
		return answer{text: err.Error()}
	}
	return answer{code: data.Type, text: data.Message}
}

// wire is one connection: a real client and a real server over a pipe.
type wire struct {
	client  *lms.Client
	answers chan answer
	muxers  [2]*muxer.Muxer
	failed  chan error
}

var quiet = slog.New(slog.DiscardHandler)

// dial connects. The server leaves validation and authentication to the callback, unless strict.
func dial(callback func(*common.DmqMessage) common.RejectReason, strict bool) *wire {
	near, far := net.Pipe()
	w := &wire{answers: make(chan answer, 1), failed: make(chan error, 20)}
	options := func(side int, conn net.Conn, role protocol.ProtocolRole) protocol.ProtocolOptions {
		w.muxers[side] = muxer.New(conn)
		return protocol.ProtocolOptions{
			ConnectionId: connection.ConnectionId{LocalAddr: conn.LocalAddr(), RemoteAddr: conn.RemoteAddr()},
			Muxer:        w.muxers[side], Logger: quiet, ErrorChan: w.failed, Mode: protocol.ProtocolModeNodeToClient, Role: role,
		}
	}
	lenient := []lms.LocalMessageSubmissionOptionFunc{
		lms.WithAuthenticator(common.NewNoOpAuthenticator(quiet)),
		lms.WithTTLValidator(common.NewNoOpTTLValidator(quiet)),
	}
	clientConfig := lms.NewConfig(append(lenient,
		lms.WithAcceptMessageFunc(func(lms.CallbackContext) { w.answers <- answer{accepted: true} }),
		lms.WithRejectMessageFunc(func(_ lms.CallbackContext, reason common.RejectReason) {
			data, err := common.ToRejectReasonData(reason)
			if err != nil {
				data.Message = err.Error()
			}
			w.answers <- answer{code: data.Type, text: data.Message}
		}))...)
	serverOptions := []lms.LocalMessageSubmissionOptionFunc{lms.WithSubmitMessageFunc(
		func(_ lms.CallbackContext, message *common.DmqMessage) common.RejectReason { return callback(message) })}
	if strict {
		serverOptions = append(serverOptions, lms.WithAuthenticator(common.NewNoOpAuthenticator(quiet)), lms.WithTTLValidator(common.NewTTLValidator(0, quiet)))
	} else {
		serverOptions = append(serverOptions, lenient...)
	}
	serverConfig := lms.NewConfig(serverOptions...)
	w.client = lms.NewClient(options(0, near, protocol.ProtocolRoleClient), &clientConfig)
	server := lms.NewServer(options(1, far, protocol.ProtocolRoleServer), &serverConfig)
	w.client.Start()
	server.Start()
	for _, m := range w.muxers {
		m.Start()
	}
	return w
}

func (w *wire) close() {
	for _, m := range w.muxers {
		m.Stop()
	}
	synctest.Wait()
}

// submit sends a message and waits for its answer.
func (w *wire) submit(message *common.DmqMessage) (answer, error) {
	if err := w.client.SubmitMessage(message); err != nil {
		return answer{}, err
	}
	select {
	case a := <-w.answers:
		return a, nil
	case err := <-w.failed:
		return answer{}, err
	}
}

// newMessage makes a message whose id is its payload's.
func newMessage(body string, expiresAt time.Time, forged bool) (*common.DmqMessage, error) {
	m := &common.DmqMessage{
		Payload:                common.DmqMessagePayload{MessageBody: []byte(body), KESPeriod: 1, ExpiresAt: uint32(expiresAt.Unix())},
		KESSignature:           make([]byte, 448),
		OperationalCertificate: common.OperationalCertificate{KESVerificationKey: make([]byte, 32), ColdSignature: make([]byte, 64)},
		ColdVerificationKey:    make([]byte, 32),
	}
	if forged {
		m.KESSignature[0] = 0xff
	}
	return m, m.SetComputedMessageID()
}

// TestSchedules runs random schedules over the wire and without it. The counts in its log show that each outcome was met.
func TestSchedules(t *testing.T) {
	const schedules, steps = 60, 120
	seen := map[string]int{}
	for seed := range uint64(schedules) {
		synctest.Test(t, func(t *testing.T) { runSchedule(t, seed, steps, seen, func(d time.Duration) { time.Sleep(d) }) })
	}
	t.Log(seen)
	for _, want := range []string{
		"accepted", `rejected as 0: "authentication"`, `rejected as 0: "expiry"`, `rejected as 1: ""`, `rejected as 2: ""`, `rejected as 3: "capacity"`, `rejected as 3: "not wanted"`,
	} {
		if seen[want] == 0 {
			t.Errorf("no schedule came to %s", want)
		}
	}
}

func runSchedule(t *testing.T, seed uint64, steps int, seen map[string]int, pause func(time.Duration)) {
	random := rand.New(rand.NewPCG(seed, 2026))
	overWire, direct := newGuarded(), newGuarded()
	begin := time.Now()
	var wires []*wire
	var connected time.Time
	connect := func() {
		connected = time.Now()
		for _, w := range wires {
			w.close()
		}
		wires = nil
		for range connections {
			wires = append(wires, dial(overWire.submit, false))
		}
	}
	connect()
	var messages []*common.DmqMessage
	for step := range steps {
		if random.IntN(6) == 0 {
			pause(time.Duration(random.Int64N(int64(25 * time.Second))))
			// Silence ends a connection after two minutes. The Config outlives its connections.
			if time.Since(connected) > 90*time.Second {
				connect()
			}
		}
		var message *common.DmqMessage
		if len(messages) > 0 && random.IntN(2) == 0 {
			message = messages[random.IntN(len(messages))] // an earlier one again
			if random.IntN(4) == 0 {
				forged := *message
				forged.KESSignature = slices.Clone(message.KESSignature)
				forged.KESSignature[0] = 0xff
				message = &forged
			}
		} else {
			body := fmt.Sprintf("%s %d", []string{"accept", "accept", "reject"}[random.IntN(3)], random.IntN(6))
			ttl := []int64{-1, 0, 5, 20, 60, 1799, 1801}[random.IntN(7)]
			var err error
			if message, err = newMessage(body, time.Now().Add(time.Duration(ttl)*time.Second), random.IntN(8) == 0); err != nil {
				t.Fatal(err)
			}
			messages = append(messages, message)
		}
		// Alone on one connection, or on all at once.
		n := 1
		if random.IntN(4) == 0 {
			n = connections
		}
		first := random.IntN(connections)
		got := make(chan answer, n)
		for i := range n {
			w := wires[(first+i)%connections]
			go func() {
				a, err := w.submit(message)
				if err != nil {
					t.Errorf("seed %d, step %d: %v", seed, step, err)
				}
				got <- a
			}()
		}
		var have, want []string
		for range n {
			a := <-got
			have = append(have, a.String())
			want = append(want, direct.direct(message).String())
			seen[a.String()]++
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Fatalf("seed %d, step %d, after %v: over the wire %v, directly %v", seed, step, time.Since(begin), have, want)
		}
	}
	for _, w := range wires {
		w.close()
	}
	if len(overWire.ran) != len(direct.ran) {
		t.Errorf("seed %d: %d ids ran over the wire, %d directly", seed, len(overWire.ran), len(direct.ran))
	}
	for id, n := range direct.ran {
		if overWire.ran[id] != n {
			t.Errorf("seed %d: %v ran %d times over the wire, %d directly", seed, id, overWire.ran[id], n)
		}
	}
}

// TestWithoutGuard shows what the guard is for: the same message reaches the callback twice.
func TestWithoutGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		w := dial(func(*common.DmqMessage) common.RejectReason { ran++; return nil }, true)
		defer w.close()
		message, err := newMessage("accept", time.Now().Add(time.Minute), false)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if a, err := w.submit(message); err != nil || !a.accepted {
				t.Fatal(a, err)
			}
		}
		if ran != 2 {
			t.Errorf("the callback ran %d times; the protocol's server has a replay protection of its own now, so compare with that", ran)
		}
	})
}

// TestServersOwnValidation: with the server's own validation before it, the guard behaves the same, and is not asked about
// what the server refuses.
func TestServersOwnValidation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		asked := 0
		one := dial(func(m *common.DmqMessage) common.RejectReason { asked++; return g.submit(m) }, true)
		other := dial(func(m *common.DmqMessage) common.RejectReason { asked++; return g.submit(m) }, true)
		defer one.close()
		defer other.close()
		expired, err := newMessage("accept", time.Now().Add(-time.Second), false)
		if err != nil {
			t.Fatal(err)
		}
		valid, err := newMessage("accept", time.Now().Add(30*time.Minute), false)
		if err != nil {
			t.Fatal(err)
		}
		for i, test := range []struct {
			w       *wire
			message *common.DmqMessage
			want    string
			asked   int
		}{
			{one, expired, `rejected as 0: "message has expired: now=946684800, expiresAt=946684799"`, 0},
			{one, valid, "accepted", 1},
			{one, valid, `rejected as 1: ""`, 2},
			{other, valid, `rejected as 1: ""`, 3},
		} {
			a, err := test.w.submit(test.message)
			if err != nil || a.String() != test.want || asked != test.asked {
				t.Errorf("message %d: %v, %v, the guard was asked %d times; want %s and %d", i, a, err, asked, test.want, test.asked)
			}
		}
		if n := g.ran[replayguard.ID(valid.ID())]; n != 1 {
			t.Errorf("ran %d times, want once", n)
		}
	})
}
