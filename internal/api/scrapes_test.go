package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whose page goes where all are too much.
func TestWhosePageGoes(t *testing.T) {
	bounds := scrapeBounds{page: 50, perCaller: 100, all: 200}
	for name, test := range map[string]struct {
		// held are the pages that are being written: caller, number and bytes; ! is written before the last comes.
		held string
		last string
		want string
	}{
		"there is room":                           {"a1:40 b1:50", "a2:50", ""},
		"the caller's own, the longest":           {"b1:10 a1:40 a2:40", "a3:40", "a1"},
		"as many as it takes":                     {"a1:20 a2:20 a3:50", "a4:50", "a1 a2"},
		"not one that is written":                 {"a1:40! a2:40 a3:40", "a4:40", "a2"},
		"of the caller with the most":             {"b1:50 a1:40 a2:50 c1:50", "d1:50", "a1"},
		"which may be the last's":                 {"b1:50 a1:40 a2:40 c1:50", "a3:20", ""},
		"and is the last's where it has the most": {"b1:50 c1:50 a1:40 a2:45", "a3:15", ""},
		"more than one caller's":                  {"a1:50 a2:30 b1:50 b2:20 c1:50", "d1:50", "a1"},
	} {
		s := newScrapes(nil, bounds)
		var cuts []string
		add := func(page string) func() {
			page, size, _ := strings.Cut(page, ":")
			var bytes int
			if _, err := fmt.Sscan(size, &bytes); err != nil {
				t.Fatal(err)
			}
			from := netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", page[0]))
			mine := s.enter(from)
			release := s.hold(mine, bytes, func() { cuts = append(cuts, page) })
			return func() {
				release()
				s.leave(from, mine)
			}
		}
		var releases []func()
		for _, page := range strings.Fields(test.held) {
			release := add(strings.TrimSuffix(page, "!"))
			if strings.HasSuffix(page, "!") {
				release()
				continue
			}
			releases = append(releases, release)
		}
		if len(cuts) > 0 {
			t.Fatalf("%s: %q go before the last is there", name, cuts)
		}
		releases = append(releases, add(test.last))
		if got := strings.Join(cuts, " "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		for _, release := range releases {
			release()
		}
		if s.held != 0 || len(s.callers) != 0 {
			t.Errorf("%s: %d bytes of %d callers are left", name, s.held, len(s.callers))
		}
	}
}

// A caller with many scrapes waits for itself: another one's page is made as soon as one of the first is. Who waits too long hears so.
func TestScrapesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		makes := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(3 * time.Second)
			fmt.Fprint(w, "page")
		})
		s := newScrapes(makes, scrapeBounds{atOnce: 2, wait: 8 * time.Second, page: 10, perCaller: 10, all: 10})
		began := time.Now()
		type answer struct {
			from  byte
			code  int
			after time.Duration
		}
		answers := make(chan answer, 20)
		scrape := func(from byte) {
			c := &conn{from: netip.AddrFrom4([4]byte{192, 0, 2, from})}
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(withConn(t.Context(), c), "GET", "/metrics", nil)
			go func() {
				s.ServeHTTP(w, r)
				answers <- answer{from, w.Code, time.Since(began)}
			}()
			synctest.Wait()
		}
		for range 5 {
			scrape(1)
		}
		scrape(2)
		scrape(3)
		var got []answer
		for range 7 {
			got = append(got, <-answers)
		}
		for _, want := range []answer{
			{1, 200, 3 * time.Second}, {2, 200, 3 * time.Second}, {3, 200, 6 * time.Second}, {1, 200, 6 * time.Second}, {1, 200, 9 * time.Second}, {1, 503, 8 * time.Second},
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no answer %+v; the answers are %+v", want, got)
			}
		}
	})
}

// A page beyond its bound is refused, and not cut short; what is no page comes as it was made.
func TestPagesAreWhole(t *testing.T) {
	for _, test := range []struct {
		status, bytes, want int
	}{{200, 10, 200}, {200, 11, 500}, {500, 3, 500}} {
		s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x")
			w.WriteHeader(test.status)
			for range test.bytes {
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
			}
		}), scrapeBounds{atOnce: 1, wait: time.Second, page: 10, perCaller: 100, all: 100})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		whole := w.Body.String() == strings.Repeat("x", test.bytes) && w.Header().Get("Content-Type") == "text/x"
		if w.Code != test.want || whole != (test.bytes <= 10) {
			t.Errorf("%d with %d bytes: %d %q", test.status, test.bytes, w.Code, w.Body)
		}
	}
}
