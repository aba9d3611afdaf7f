package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
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
	if program, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code := pgtest.Around(m).Run()
	parent.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "integration: goroutines are left after the tests:", err)
			return 1
		}
	}
	return code
}

// build builds the program into the directory.
func build(dir string) (string, error) {
	path := filepath.Join(dir, "disclosured")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "-ldflags", "-X main.version=v0.0.0-integration", "./cmd/disclosured")
	cmd.Dir = filepath.Join("..", "..")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, output)
	}
	return path, nil
}
