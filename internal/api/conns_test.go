package api

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/disclosured/disclosured/internal/telemetry"
)

// While a write is stuck nothing is read from the client; it ends with the send timeout.
func TestStuckWriteStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		owner := newConns(nil, room{timeout: time.Minute}, slog.New(slog.DiscardHandler), telemetry.New("test").API)
		c := newConn(ours, owner, netip.Addr{})
		began := time.Now()
		written, read := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := c.Write([]byte("answer"))
			written <- err
		}()
		synctest.Wait()
		go func() {
			_, err := c.Read(make([]byte, 8))
			read <- err
		}()
		if _, err := theirs.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-read:
			t.Error("a read ended while a write was stuck")
		default:
		}
		if err := <-written; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("the write ended after %s with %v", time.Since(began), err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
		c.Close()
	})
}

// Who makes room for whom.
func TestWhoMakesRoom(t *testing.T) {
	const free = "-"
	const refused = "refused"
	for name, test := range map[string]struct {
		room room
		// open are the connections that are there, in the order in which they came; * has a call, + had one since the last of them came.
		open string
		from string
		want string
	}{
		"there is room":                                 {room{max: 4, perCaller: 3}, "a1 a2 b1", "b", free},
		"a caller's own, longest without calls":         {room{max: 9, perCaller: 3}, "b1 a1 a2 a3", "a", "a1"},
		"a caller's own, not one with calls":            {room{max: 9, perCaller: 3}, "a1* a2 a3", "a", "a2"},
		"a call since makes it the last":                {room{max: 9, perCaller: 3}, "a1+ a2 a3", "a", "a2"},
		"a caller with calls on all":                    {room{max: 9, perCaller: 3}, "a1* a2* a3* b1", "a", refused},
		"a caller's limit goes before the listener's":   {room{max: 4, perCaller: 3}, "b1 a1 a2 a3", "a", "a1"},
		"the one with the most gives to who has none":   {room{max: 6, perCaller: 4}, "b1 a1 a2 a3 b2 c1", "d", "a1"},
		"and to who has less":                           {room{max: 6, perCaller: 4}, "b1 a1 a2 a3 b2 c1", "c", "a1"},
		"who has the most gets none but its own":        {room{max: 6, perCaller: 4}, "b1 b2 c1 a1 a2 a3", "a", "a1"},
		"the next, where the one with the most is busy": {room{max: 6, perCaller: 4}, "c1 a1* a2* a3* b1 b2", "d", "b1"},
		"among equals the longest":                      {room{max: 4, perCaller: 4}, "b1+ a1 c1 d1", "e", "a1"},
		"calls everywhere":                              {room{max: 4, perCaller: 4}, "a1* a2* a3* b1*", "c", refused},
		"calls are cut where that is allowed":           {room{max: 4, perCaller: 4, cuts: true}, "b1* a1* a2* a3*", "c", "a1"},
		"but not of who has as few":                     {room{max: 3, perCaller: 4, cuts: true}, "a1* b1* c1*", "d", refused},
		"and only where no other is left":               {room{max: 4, perCaller: 4, cuts: true}, "a1* a2* a3* b1", "c", "b1"},
		"a listener of one caller":                      {room{max: 3, perCaller: 3}, "a1 a2 a3*", "a", "a1"},
		"a caller's limit that is above the listener's": {room{max: 3, perCaller: 9}, "a1 a2 a3*", "a", "a1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newConns(nil, test.room, slog.New(slog.DiscardHandler), telemetry.New("test").API)
			add := func(from string) (*conn, *conn, bool) {
				raw, other := net.Pipe()
				t.Cleanup(func() { other.Close() })
				c := newConn(raw, l, netip.MustParseAddr("192.0.2."+strconv.Itoa(int(from[0]))))
				t.Cleanup(func() { c.Close() })
				displaced, ok := l.take(c)
				return c, displaced, ok
			}
			names := map[*conn]string{nil: free}
			var since []*conn
			for _, open := range strings.Fields(test.open) {
				c, displaced, ok := add(open)
				if displaced != nil || !ok {
					t.Fatalf("%s: no room for %s", name, open)
				}
				names[c] = open[:2]
				switch open[2:] {
				case "*":
					c.begin()
				case "+":
					since = append(since, c)
				}
				<-time.After(time.Second)
			}
			for _, c := range since {
				c.begin()
				c.end()
			}
			_, displaced, ok := add(test.from)
			got := names[displaced]
			if !ok {
				got = refused
			}
			if got != test.want {
				t.Errorf("%s: %s, want %s", name, got, test.want)
			}
			// Everything that is there can end, in any state, and leaves nothing.
			for c := range names {
				if c != nil {
					c.begin()
					c.Close()
					c.end()
				}
			}
			if ok {
				l.open--
			}
			if l.open != 0 {
				t.Errorf("%s: %d connections are left", name, l.open)
			}
		})
	}
}
