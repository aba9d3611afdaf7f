package secretfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadsRegularFilesAlsoThroughLinks(t *testing.T) {
	path := write(t, []byte(" a token\n"))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		if text, err := ReadText(p); err != nil || text != "a token" {
			t.Errorf("%s: got %q, %v", p, text, err)
		}
		if err := Check(p); err != nil {
			t.Errorf("%s: got %v", p, err)
		}
	}
}

// A pipe without a writer would hold whoever opens it for ever, and a device has no end.
func TestRefusesWhatIsNoRegularFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(pipe, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link, "/dev/zero", "/dev/null", t.TempDir()} {
		if _, err := Read(path); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), path) {
			t.Errorf("reading %s: got %v", path, err)
		}
		if err := Check(path); !errors.Is(err, ErrNotRegular) {
			t.Errorf("checking %s: got %v", path, err)
		}
		if _, err := KeyPair(path, path); !errors.Is(err, ErrNotRegular) {
			t.Errorf("a key pair from %s: got %v", path, err)
		}
		if _, err := CertPool(path); !errors.Is(err, ErrNotRegular) {
			t.Errorf("authorities from %s: got %v", path, err)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: got %v", err)
	}
}

func TestSizeIsBounded(t *testing.T) {
	if content, err := Read(write(t, bytes.Repeat([]byte("x"), MaxBytes))); err != nil || len(content) != MaxBytes {
		t.Errorf("at the bound: got %d bytes, %v", len(content), err)
	}
	over := write(t, bytes.Repeat([]byte("x"), MaxBytes+1))
	if _, err := Read(over); err == nil {
		t.Error("over the bound: got no error")
	}
	if err := Check(over); err == nil {
		t.Error("over the bound: checked without an error")
	}
}

func TestErrorsHoldNoContent(t *testing.T) {
	path := write(t, []byte("hunter2"))
	_, poolErr := CertPool(path)
	_, pairErr := KeyPair(path, path)
	for _, err := range []error{poolErr, pairErr} {
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	}
}
