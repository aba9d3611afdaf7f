package api

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
)

// Bug B01 once more, at the last place: an entry whose blob must not leave is not disclosed.
func TestDisclosable(t *testing.T) {
	for check, want := range map[ledger.BlobCheck]bool{
		ledger.BlobVerified: true, ledger.BlobUnverifiable: true, ledger.BlobMissing: false, ledger.BlobMismatch: false, ledger.BlobUnchecked: false,
	} {
		err := disclosable(&index.Entry{Contract: ledger.Contract{Blob: []byte{1}, BlobCheck: check}})
		if (err == nil) != want {
			t.Errorf("%s: %v", check, err)
		}
		if err != nil && asError(err).Reason != BlobIncomplete {
			t.Errorf("%s: reason %s", check, asError(err).Reason)
		}
	}
	if disclosable(&index.Entry{Contract: ledger.Contract{BlobCheck: ledger.BlobVerified}}) == nil {
		t.Error("an empty blob is disclosed")
	}
}

func TestClip(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("a", 99), strings.Repeat("€", 40), "\xff\xfe" + strings.Repeat("ü", 60), strings.Repeat("\xf0\x9f", 80)} {
		for n := 3; n < 130; n++ {
			got := clip(s, n)
			if len(got) > n || !utf8.ValidString(got) {
				t.Fatalf("clip(%q, %d) = %q", s, n, got)
			}
			if len(s) <= n && utf8.ValidString(s) && got != s {
				t.Fatalf("clip(%q, %d) = %q, want it whole", s, n, got)
			}
		}
	}
}

// However few callers take whatever they can get of calls, streams and bytes, something is left for one who comes after them, and as theirs end
// it comes to as much as each of them has.
func TestGreedyCallersLeaveAShare(t *testing.T) {
	limits := Limits{MaxCalls: 2048, MaxCallsPerCaller: 512, MaxStreams: 512, MaxStreamsPerCaller: 64, AnswerBytes: 512 << 20, AnswerBytesPerCaller: 128 << 20, MaxCallers: 10_000}
	for what, take := range map[string]func(*limiter, netip.Addr) (func(), *Error){
		"calls":   func(l *limiter, from netip.Addr) (func(), *Error) { return l.admit(from, unary, 1) },
		"streams": func(l *limiter, from netip.Addr) (func(), *Error) { return l.admit(from, streaming, 1) },
		"MiB":     func(l *limiter, from netip.Addr) (func(), *Error) { return l.holdBytes(from, 1<<20) },
	} {
		for _, greedy := range []int{1, 3, 4, 5, 8, 20, 100} {
			l := newLimiter(limits, time.Now)
			held := make([][]func(), greedy+1) // the last is the one who comes late
			grab := func(i, most int) {
				for range most {
					release, refused := take(l, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
					if refused != nil {
						return
					}
					held[i] = append(held[i], release)
				}
			}
			for range 2048 {
				for i := range greedy {
					grab(i, 1+i%3) // not all are equally quick
				}
			}
			late := greedy
			if grab(late, 1); len(held[late]) != 1 {
				t.Errorf("%d greedy callers left no %s to one who came late", greedy, what)
			}
			for range 2048 {
				for i := range held {
					if len(held[i]) > 0 {
						held[i][0]()
						held[i] = held[i][1:]
					}
					grab(i, 2)
				}
			}
			most := 0
			for i := range greedy {
				most = max(most, len(held[i]))
			}
			if got := len(held[late]); got+1 < most {
				t.Errorf("%d greedy callers have up to %d %s each, and one who came late %d", greedy, most, what, got)
			}
		}
	}
	// A proxy is one caller, and may be given everything.
	limits.MaxCallsPerCaller = limits.MaxCalls
	l, proxy := newLimiter(limits, time.Now), netip.MustParseAddr("10.0.0.1")
	for n := range limits.MaxCalls {
		if _, refused := l.admit(proxy, unary, 1); refused != nil {
			t.Fatalf("call %d of the only caller is refused: %v", n, refused)
		}
	}
}

// The table of callers is bounded: those known keep their buckets, a flood of new ones shares one.
func TestCallerTableIsBounded(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := newLimiter(Limits{RatePerSecond: 1, Burst: 2, MaxCalls: 1e6, MaxCallsPerCaller: 1e6, MaxStreams: 1, MaxStreamsPerCaller: 1, MaxCallers: 100}, func() time.Time { return now })
	admit := func(from netip.Addr) bool {
		release, refused := l.admit(from, unary, 1)
		if refused == nil {
			release()
		}
		return refused == nil
	}
	known := netip.MustParseAddr("192.0.2.1")
	if !admit(known) {
		t.Fatal("the first call is refused")
	}
	admitted := 0
	for i := range 10_000 {
		if admit(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})) {
			admitted++
		}
	}
	if len(l.callers) != 100 {
		t.Errorf("%d callers in the table, want 100", len(l.callers))
	}
	if admitted != 99+2 {
		t.Errorf("%d calls of the flood admitted, want 99 with a place and 2 of the shared bucket", admitted)
	}
	if !admit(known) {
		t.Error("a known caller suffers from the flood")
	}
	// Once buckets are full again their entries make room.
	now = now.Add(time.Minute)
	if !admit(netip.MustParseAddr("203.0.113.9")) || len(l.callers) != 1 {
		t.Errorf("%d callers after a minute, want the new one alone", len(l.callers))
	}
}

func TestCallerAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3::4": "2001:db8:1:2::", "fe80::1": "fe80::",
	} {
		if got := callerAddr(&net.TCPAddr{IP: net.ParseIP(addr), Port: 1}); got.String() != want {
			t.Errorf("%s counts as %s, want %s", addr, got, want)
		}
	}
	if got := callerAddr(&net.UnixAddr{Name: "x"}); got.IsValid() {
		t.Errorf("a unix socket counts as %s", got)
	}
}

// What every error of the table carries at worst fits into trailers of 8 KB.
func TestWorstStatusFits(t *testing.T) {
	for _, row := range Reasons {
		e := failure(row.Reason, strings.Repeat("€", 10_000))
		for i := range 50 {
			e.with(fmt.Sprintf("key_%02d", i), strings.Repeat("v", 5_000))
			e.Violations = append(e.Violations, Violation{strings.Repeat("f", 3_000), strings.Repeat("r", 3_000)})
		}
		e.at(ledger.Position{ParticipantID: strings.Repeat("p", 255), Offset: MaxOffset, UpdateID: strings.Repeat("u", 255), RecordTime: time.Now()})
		st := e.GRPCStatus()
		size := len(st.Message()) * 3
		for _, d := range st.Proto().GetDetails() {
			size += (len(d.GetValue()) + len(d.GetTypeUrl()) + 8) * 4 / 3
		}
		if size += len(st.Message()) * 4 / 3; size > 8_000 {
			t.Errorf("%s: %d bytes in trailers", row.Reason, size)
		}
		md := e.metadata()
		if md["offset"] == "" || md["participant_id"] == "" {
			t.Errorf("%s: the position is lost: %v", row.Reason, md)
		}
	}
}
