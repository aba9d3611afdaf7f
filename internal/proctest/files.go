package proctest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ConfigFile writes settings as a configuration file and returns its path. They are by their names in it, as "participant.address", and their
// values are as the file has them.
func ConfigFile(t testing.TB, settings map[string]string) string {
	t.Helper()
	var b strings.Builder
	section := ""
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		group, name, _ := strings.Cut(key, ".")
		if group != section {
			fmt.Fprintf(&b, "%s:\n", group)
			section = group
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, settings[key])
	}
	return File(t, "disclosured.yaml", b.String())
}

// File puts content into a file of the test's own, which only we can read, and returns its path.
func File(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FreeAddress is a loopback address that nobody listens on. Its port is below those that the kernel gives to clients and to
// listeners on port 0, so that nobody gets it by chance before a process does.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(15000)))
		var config net.ListenConfig
		if l, err := config.Listen(t.Context(), "tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port found")
	return ""
}
