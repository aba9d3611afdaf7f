package client_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// update rewrites docs/retries.md.
var update = flag.Bool("update", false, "rewrite docs/retries.md from the tables")

// soak runs the full counts.
var soak = os.Getenv("DISCLOSURED_SOAK") != ""

func TestMain(m *testing.M) {
	if os.Getenv(redeemerEnv) != "" {
		os.Exit(redeemerMain())
	}
	flag.Parse()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "client: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
