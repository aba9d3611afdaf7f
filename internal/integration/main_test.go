package integration

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
)

// program is the path of the built disclosured.
var program string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()
	if err := checkEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, "integration: what was given can't work:", err)
		return 2
	}
	dir, err := os.MkdirTemp("", "disclosured-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if program, err = proctest.Build(dir, "v0.0.0-integration"); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code := pgtest.Around(m).Run()
	proctest.Shutdown()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "integration: goroutines are left after the tests:", err)
			return 1
		}
	}
	return code
}
