package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
)

// update rewrites docs/faults.md from what the tests of faults observed.
var update = flag.Bool("update", false, "rewrite docs/faults.md")

// soak runs the full counts.
var soak = os.Getenv("DISCLOSURED_SOAK") != ""

// program is the path of the built disclosured.
var program string

// sideBySide is how many of the parallel tests run at once: they wait far more than they compute.
func sideBySide() string {
	if proctest.Race { // which computes much
		return "4"
	}
	return "12"
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()
	if err := flag.Set("test.parallel", sideBySide()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "disclosured-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if program, err = proctest.Build(dir, testVersion); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := pgtest.Around(m).Run()
	proctest.Shutdown()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: goroutines are left after the tests:", err)
			return 1
		}
	}
	return code
}

// testVersion is what the built program says that it is.
const testVersion = "v0.0.0-e2e"

// until asks for a condition again and again until it holds, or fails the test with the condition's last complaint.
func until(t testing.TB, within time.Duration, what string, holds func() error) {
	t.Helper()
	if err := waitUntil(within, holds); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}

func waitUntil(within time.Duration, holds func() error) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	bound := time.NewTimer(within)
	defer bound.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-bound.C:
			return err
		}
	}
}

// errNotYet is the complaint of a condition that has no better one.
var errNotYet = errors.New("not yet")

// count is the first figure, or under DISCLOSURED_SOAK the second.
func count(reduced, full int) int {
	if soak {
		return full
	}
	return reduced
}
