package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// held is a reservation, as its holder was told.
type held struct {
	digest wormhole.Digest
	key    string
	token  string
	// fencing and expiresAt (in seconds) are the answer's; answered is when it came.
	fencing, expiresAt int64
	answered           time.Time
}

// book is all reservations that were answered. Times are of one clock: the database is on this machine.
type book struct {
	mu       sync.Mutex
	of       map[wormhole.Digest]map[int64]held // by fencing token
	received int
	lost     int
	faults   []string
}

func (b *book) fault(format string, args ...any) {
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// note takes an answer down.
func (b *book) note(h held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[h.digest] == nil {
		b.of[h.digest] = map[int64]held{}
	}
	if earlier, ok := b.of[h.digest][h.fencing]; ok {
		if earlier.key != h.key || earlier.expiresAt != h.expiresAt || earlier.token != h.token {
			b.fault("one reservation was given to two holders, or changed: %+v, %+v", earlier, h)
		}
		return // its holder asked again
	}
	b.of[h.digest][h.fencing] = h
}

// overlaps looks for digests that were reserved while they were: an answer came before the reservation of a lesser token had expired.
func (b *book) overlaps() (reservations int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for digest, of := range b.of {
		all := make([]held, 0, len(of))
		for _, h := range of {
			all = append(all, h)
		}
		slices.SortFunc(all, func(x, y held) int { return int(x.fencing - y.fencing) })
		for i := 1; i < len(all); i++ {
			if free := time.Unix(all[i-1].expiresAt+1, 0); all[i].answered.Before(free) {
				b.fault("digest %s was admitted at %s, and is reserved until %s by an earlier token", digest, all[i].answered, free)
			}
		}
		reservations += len(all)
	}
	return reservations
}

// live are the reservations that last for some seconds yet.
func (b *book) live() (all []held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.of {
		for _, h := range of {
			if h.expiresAt > time.Now().Add(5*time.Second).Unix() {
				all = append(all, h)
			}
		}
	}
	return all
}

// relay reserves VAAs at random until the context ends. A call whose answer is lost is made again with its key until there is one.
func (b *book) relay(ctx context.Context, name string, relayer disclosurev1.SubmissionServiceClient, consumer string, vaas []*wormhole.VAA) error {
	for n := 0; ctx.Err() == nil; n++ {
		vaa := vaas[rand.N(len(vaas))]
		ahead := 1 + rand.Int64N(2) // expires while the test runs, or not
		if rand.N(2) == 0 {
			ahead = 900
		}
		request := &disclosurev1.ReserveRequest{
			Scope: &disclosurev1.ScopeSelector{Consumer: consumer}, Subject: &disclosurev1.ReserveRequest_VaaBytes{VaaBytes: vaa.Encode()},
			ExpiresAt: &timestamppb.Timestamp{Seconds: time.Now().Unix() + ahead}, IdempotencyKey: fmt.Sprintf("%s, %d", name, n),
		}
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			got, err := relayer.Reserve(call, request)
			cancel()
			if err == nil {
				if fault := b.answer(vaa, request, got); fault != nil {
					return fault
				}
				break
			}
			if code := status.Code(err); code == codes.FailedPrecondition {
				break // it has expired meanwhile
			} else if code != codes.Unavailable && code != codes.DeadlineExceeded && ctx.Err() == nil {
				return err
			}
			b.mu.Lock()
			b.lost++
			b.mu.Unlock()
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (b *book) answer(vaa *wormhole.VAA, request *disclosurev1.ReserveRequest, got *disclosurev1.ReserveResponse) error {
	switch got.GetOutcome() {
	case disclosurev1.ReserveOutcome_RESERVE_OUTCOME_RESERVED:
		b.note(held{vaa.Digest(), request.GetIdempotencyKey(), got.GetToken(), got.GetFencingToken(), got.GetExpiresAt().GetSeconds(), time.Now()})
		return nil
	case disclosurev1.ReserveOutcome_RESERVE_OUTCOME_ALREADY_RECEIVED:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.received++
		return nil
	default:
		return fmt.Errorf("reserving: %v", got)
	}
}

// TestReservationsSurviveKills kills the service as kill -9 does, in the middle of reservations, again and again, with the guard in the
// database: what was answered as reserved stays reserved until its expiry, its token stays good, a reservation whose answer was lost is its
// holder's by its key, and nothing is admitted twice.
func TestReservationsSurviveKills(t *testing.T) {
	kills := count(4, 50)
	w := newWorld(t, ledgersim.Options{}, 16)
	settings, _ := withDatabase(t, w.follow())
	settings = settings.with(map[string]string{
		"api.listen": proctest.FreeAddress(t), "ops.listen": proctest.FreeAddress(t),
		"guard.allow_anonymous": "true", "guard.rate_per_client": "1000000", "guard.max_live_per_client": "10000",
	})
	app := w.Apps[0]
	vaas := make([]*wormhole.VAA, 0, 2000)
	for range cap(vaas) {
		vaa, err := w.VAA(app, []byte("reserved"))
		if err != nil {
			t.Fatal(err)
		}
		vaas = append(vaas, vaa)
	}

	b := &book{of: map[wormhole.Digest]map[int64]held{}}
	svc := serve(t, settings)
	svc.waitReady()
	ctx, stop := context.WithCancel(t.Context())
	var relayers sync.WaitGroup
	var conns []*grpc.ClientConn
	for i := range 8 {
		conn, err := grpc.NewClient(svc.address, grpc.WithTransportCredentials(insecure.NewCredentials()), quickReconnect)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		relayers.Go(func() {
			if err := b.relay(ctx, fmt.Sprintf("relayer %d", i), disclosurev1.NewSubmissionServiceClient(conn), app.Consumer, vaas); err != nil {
				t.Errorf("relayer %d: %v", i, err)
			}
		})
	}
	checked := 0
	for range kills {
		survive(t, svc, 200*time.Millisecond+rand.N(500*time.Millisecond))
		svc.Kill()
		before := b.live()
		svc = serve(t, settings)
		svc.waitReady()
		checked += stillHeld(t, disclosurev1.NewSubmissionServiceClient(svc.conn), app.Consumer, vaas, before)
	}
	stop()
	relayers.Wait()
	for _, conn := range conns {
		conn.Close()
	}
	reservations := b.overlaps()
	for _, fault := range b.faults {
		t.Error(fault)
	}
	svc.stop()
	t.Logf("%d kills, %d reservations, %d refused as received, %d calls without answer; %d reservations looked at after a restart", kills, reservations, b.received, b.lost, checked)
	if reservations == 0 || b.received == 0 || b.lost == 0 || checked == 0 {
		t.Error("nothing was shown")
	}
}

// stillHeld checks some reservations of before a kill: others are told until when, and the token can be settled.
func stillHeld(t *testing.T, relayer disclosurev1.SubmissionServiceClient, consumer string, vaas []*wormhole.VAA, before []held) (checked int) {
	t.Helper()
	rand.Shuffle(len(before), func(i, j int) { before[i], before[j] = before[j], before[i] })
	for _, h := range before[:min(len(before), 50)] {
		if h.expiresAt <= time.Now().Add(time.Second).Unix() {
			continue
		}
		vaa := vaas[slices.IndexFunc(vaas, func(v *wormhole.VAA) bool { return v.Digest() == h.digest })]
		got, err := relayer.Reserve(t.Context(), &disclosurev1.ReserveRequest{
			Scope: &disclosurev1.ScopeSelector{Consumer: consumer}, Subject: &disclosurev1.ReserveRequest_VaaBytes{VaaBytes: vaa.Encode()},
			ExpiresAt: &timestamppb.Timestamp{Seconds: time.Now().Unix() + 60}, IdempotencyKey: "somebody else",
		})
		if err != nil || got.GetOutcome() != disclosurev1.ReserveOutcome_RESERVE_OUTCOME_ALREADY_RECEIVED || got.GetExpiresAt().GetSeconds() != h.expiresAt {
			t.Errorf("after a kill: %v, %v; want it reserved still: %+v", got, err, h)
		}
		settled, err := relayer.Settle(t.Context(), &disclosurev1.SettleRequest{Token: h.token, Outcome: disclosurev1.SettleOutcome_SETTLE_OUTCOME_COMMITTED})
		if err != nil || settled.GetExpiresAt().GetSeconds() != h.expiresAt {
			t.Errorf("settling after a kill: %v", errors.Join(err, fmt.Errorf("%v, want it reserved until %d", settled, h.expiresAt)))
		}
		checked++
	}
	return checked
}
