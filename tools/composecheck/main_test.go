package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const good = "services:\n  a:\n    image: a:1\n    profiles: [p]\n    ports: [\"127.0.0.1:1:1\"]\n  b:\n    image: b:1\n    profiles: [p, q]\n"
	for name, c := range map[string]struct{ file, want string }{
		"good":               {good, `profile "p"              a b`},
		"an unknown key":     {good + "    imagination: 1\n", "imagination"},
		"an absent service":  {good + "    depends_on: [a]\n", "depends on undefined service"},
		"an absent secret":   {good + "    secrets: [s]\n", "secret"},
		"a port for all":     {strings.Replace(good, "127.0.0.1:1:1", "1:1", 1), "loopback"},
		"an image unpinned":  {strings.Replace(good, "a:1", "a", 1), "not pinned"},
		"an unset mandatory": {strings.Replace(good, "a:1", "${NAME:?is needed}", 1), "is needed"},
	} {
		path := filepath.Join(t.TempDir(), "docker-compose.yml")
		if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := check(t.Context(), path, &out)
		said := out.String()
		if err != nil {
			said += err.Error()
		}
		if !strings.Contains(said, c.want) || (err == nil) != (name == "good") {
			t.Errorf("%s: %v, printed %q; want %q", name, err, said, c.want)
		}
	}
}
