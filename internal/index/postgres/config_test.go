package postgres

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/disclosured/disclosured/internal/secretfile"
)

// What can't be a URL is refused before anything is connected to, as the configuration's fault, and none of it is shown: the part that
// looks like a host or a database may be the password.
func TestBadURLFilesAreRefusedWithoutBeingShown(t *testing.T) {
	for name, content := range map[string]string{
		"empty":                    "",
		"no URL":                   "hunter2",
		"two lines":                "postgres://u:pw@127.0.0.1:1/db\nhunter2\n",
		"a comment below":          "postgres://u:pw@127.0.0.1:1/db\r\n# hunter2",
		"a slash in the password":  "postgres://u:1/hunter2@127.0.0.1:1/db",
		"a slash in the user":      "postgres://u/x:hunter2@127.0.0.1:1/db",
		"an @ in the password":     "postgres://u:1@hunter2@127.0.0.1:1/db",
		"of several hosts":         "postgres://u:1@127.0.0.1:1,hunter2@127.0.0.1:1/db",
		"an @ in a parameter":      "postgres://u:1@127.0.0.1:1/db?hunter2@x=1",
		"a database with an @":     "host=127.0.0.1 port=1 dbname=hunter2@db",
		"a port that is none":      "postgres://u:hunter2@127.0.0.1:port/db",
		"an encoded break in it":   "postgres://u:1/hunter2%0A@127.0.0.1:1/db",
		"an encoded @ in the name": "postgres://u:1@127.0.0.1:1/hunter2%40db",
	} {
		path := filepath.Join(t.TempDir(), "url")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, openErr := Open(t.Context(), Config{URLFile: path})
		_, migrateErr := Migrate(t.Context(), Config{URLFile: path}, Status)
		for _, err := range []error{openErr, migrateErr} {
			if fault := (*ConfigError)(nil); !errors.As(err, &fault) {
				t.Errorf("%s: got %v, want a ConfigError", name, err)
			} else if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: the error shows a part of the file: %v", name, err)
			}
		}
	}
}

func TestURLFileIsARegularFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		_, err := Open(t.Context(), Config{URLFile: path})
		if fault := (*ConfigError)(nil); !errors.As(err, &fault) || !errors.Is(err, secretfile.ErrNotRegular) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// Names and passwords that are written as they should be are taken.
func TestURLsWithEncodedPasswords(t *testing.T) {
	for _, url := range []string{
		"postgres://user%40tenant:p%40%2F%3F%23w@127.0.0.1:1/db?sslmode=disable", "postgres://user:p?#w@127.0.0.1:1/db",
		"host=127.0.0.1 user=u@tenant password='#@/' dbname=db",
	} {
		if cfg, err := (Config{URL: url}).poolConfig(nil); err != nil || cfg.ConnConfig.Host != "127.0.0.1" || cfg.ConnConfig.Database != "db" {
			t.Errorf("%s: got %v", url, err)
		}
	}
}
