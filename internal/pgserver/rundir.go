package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Directories of running servers are called runPrefix and a random rest; while one is being made it has freshPrefix.
const (
	runPrefix   = "disclosured-pg-"
	freshPrefix = "disclosured-fresh-pg-"
)

// runDir is one server's directory, held by a lock for as long as its owner lives.
type runDir struct {
	path string
	lock *os.File
}

func (d *runDir) data() string { return filepath.Join(d.path, "data") }
func (d *runDir) log() string  { return filepath.Join(d.path, "log") }

// newRunDir makes and locks a directory below parent that belongs to owner.
func newRunDir(parent string, owner *account) (_ *runDir, err error) {
	fresh, err := os.MkdirTemp(parent, freshPrefix)
	if err != nil {
		return nil, fmt.Errorf("making a directory for the server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	lock, err := os.OpenFile(filepath.Join(fresh, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the server's directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	if owner != nil {
		if err := os.Chown(fresh, owner.uid, owner.gid); err != nil {
			return nil, fmt.Errorf("giving the server's directory to %s: %w", owner.name, err)
		}
	}
	path := filepath.Join(parent, runPrefix+strings.TrimPrefix(filepath.Base(fresh), freshPrefix))
	if err := os.Rename(fresh, path); err != nil {
		return nil, fmt.Errorf("naming the server's directory: %w", err)
	}
	return &runDir{path: path, lock: lock}, nil
}

// remove deletes the directory and then gives up the lock.
func (d *runDir) remove() error {
	var err error
	// Backends of a killed postmaster end by themselves, and may write a last file while the directory is being removed.
	for range 20 {
		if err = os.RemoveAll(d.path); err == nil {
			break
		}
		if !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		err = fmt.Errorf("removing the server's directory: %w", err)
	}
	return errors.Join(err, d.lock.Close())
}

// sweep removes the directories below parent whose owners died. What cannot be judged or removed is left for another time:
// a leftover must not keep a new server from starting.
func sweep(parent string, owner *account) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), runPrefix) {
			continue
		}
		path := filepath.Join(parent, entry.Name())
		if ours(entry, owner) && abandoned(path) {
			_ = os.RemoveAll(path)
		}
	}
}

// ours tells whether a directory belongs to us or to the user that our servers run as. The temporary directory is
// everybody's, and others may have put theirs there under such a name.
func ours(entry fs.DirEntry, owner *account) bool {
	info, err := entry.Info()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	return int(stat.Uid) == os.Geteuid() || owner != nil && int(stat.Uid) == owner.uid
}

// abandoned tells whether nobody holds the directory's lock and no server runs in it.
func abandoned(path string) bool {
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return false
	}
	// The first line of postmaster.pid is the server's process id.
	content, err := os.ReadFile(filepath.Join(path, "data", "postmaster.pid"))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return true
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// lockFile takes an exclusive lock on a file, which it makes where it is missing, and gives the function that ends it.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
}
