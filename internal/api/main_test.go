package api_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
)

// unseen are the reasons that no test can see on the wire.
var unseen = []api.Reason{
	api.BlobIncomplete, // the last look before a blob leaves; entries that would fail it are not in views (TestDisclosable)
	api.Cancelled,      // who cancelled no longer listens
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := pgtest.Around(m).Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" {
		for _, row := range api.Reasons {
			if !seenReasons.seen[row.Reason] && !slices.Contains(unseen, row.Reason) {
				fmt.Fprintf(os.Stderr, "no test has seen the reason %s\n", row.Reason)
				code = 1
			}
		}
	}
	if code == 0 {
		// The tests' HTTP client keeps idle connections of its own.
		if err := goleak.Find(goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
