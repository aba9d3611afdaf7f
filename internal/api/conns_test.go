package api

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/disclosured/disclosured/internal/telemetry"
)

// While a write is stuck nothing is read from the client; it ends with the send timeout.
func TestStuckWriteStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		owner := newConns(nil, Config{SendTimeout: time.Minute}, slog.New(slog.DiscardHandler), telemetry.New("test").API)
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
