package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// BinDirVariable is the environment variable that names the directory of initdb and postgres, before any search.
const BinDirVariable = "DISCLOSURED_POSTGRES_BIN"

// ErrNoBinaries says that no PostgreSQL server programs were found on this machine.
var ErrNoBinaries = errors.New("no PostgreSQL server programs (initdb, postgres) found")

// usualPlaces are the directories that packagers install server programs in, without being in PATH.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin",              // Debian, Ubuntu
	"/usr/pgsql-*/bin",                       // Red Hat, from the PostgreSQL project
	"/usr/libexec/postgresql*",               // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",     // Homebrew, ARM
	"/usr/local/opt/postgresql@*/bin",        // Homebrew, Intel
	"/Library/PostgreSQL/*/bin",              // EDB's installer
	"/Applications/Postgres.app/*/*/*/*/bin", // Postgres.app
}

// FindBinaries gives the directory that holds initdb and postgres: that of DISCLOSURED_POSTGRES_BIN, else of PATH, else the
// newest of the usual places, else one that an earlier download left in the cache. The error is ErrNoBinaries where there
// is none; a variable that names a directory without them is an error of its own, not a reason to look elsewhere.
func FindBinaries() (string, error) {
	if dir := os.Getenv(BinDirVariable); dir != "" {
		if !hasBinaries(dir) {
			return "", fmt.Errorf("%s=%s: initdb and postgres are not both there", BinDirVariable, dir)
		}
		return dir, nil
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		// A link farm such as /usr/local/bin may hold some of the programs only, the real directory holds all.
		if real, err := filepath.EvalSymlinks(initdb); err == nil && hasBinaries(filepath.Dir(real)) {
			return filepath.Dir(real), nil
		}
		if hasBinaries(filepath.Dir(initdb)) {
			return filepath.Dir(initdb), nil
		}
	}
	for _, pattern := range usualPlaces {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("looking for PostgreSQL in %s: %w", pattern, err)
		}
		slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
		for _, dir := range dirs {
			if hasBinaries(dir) {
				return dir, nil
			}
		}
	}
	if cache, err := cacheDir(); err == nil {
		if dir := filepath.Join(cache, string(downloadVersion), "bin"); hasBinaries(dir) {
			return dir, nil
		}
	}
	return "", ErrNoBinaries
}

func hasBinaries(dir string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionPattern = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// versionIn gives the first number in a path as PostgreSQL's version, 0 where there is none.
func versionIn(path string) float64 {
	v, err := strconv.ParseFloat(versionPattern.FindString(path), 64)
	if err != nil {
		return 0
	}
	return v
}

// downloadVersion is the build that is fetched where the machine has no server.
const downloadVersion = embeddedpostgres.V17

// cacheDir is where a fetched build is kept. Root's own cache directory is closed to the user that the server runs as.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/disclosured/postgres", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache directory: %w", err)
	}
	return filepath.Join(dir, "disclosured", "postgres"), nil
}

// download fetches and unpacks a server build into the cache directory and gives its bin directory. Processes that
// want it at the same time wait for the first one's.
//
// The library that fetches has no call for that alone: its Start fetches, checks the archive's SHA-256, unpacks, and then
// initialises and starts. It must not do the latter two for us (they fail as root, and leave a server without owner), so it
// is given a data directory that is already "initialised" and empty: its start then fails at once, after the unpacking. What
// counts is not its error but whether the programs are there. It leaves a small log in the temporary directory.
func download(ctx context.Context) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory for PostgreSQL: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", fmt.Errorf("waiting for another download of PostgreSQL: %w", err)
	}
	final := filepath.Join(cache, string(downloadVersion))
	if hasBinaries(filepath.Join(final, "bin")) {
		unlock()
		return filepath.Join(final, "bin"), nil
	}

	// The library's download knows no context. Where ours ends first, the goroutine is left to finish and to clean up after
	// itself; it holds the lock until then, so nobody sees a half of its work.
	fetched := make(chan error, 1)
	go func() {
		defer unlock()
		fetched <- fetchInto(cache, final)
	}()
	select {
	case err := <-fetched:
		if err != nil {
			return "", fmt.Errorf("fetching PostgreSQL %s: %w", downloadVersion, err)
		}
		return filepath.Join(final, "bin"), nil
	case <-ctx.Done():
		return "", fmt.Errorf("fetching PostgreSQL %s: %w", downloadVersion, context.Cause(ctx))
	}
}

func fetchInto(cache, final string) (err error) {
	work, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	data := filepath.Join(work, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	major := fmt.Sprintf("%d", int(versionIn(string(downloadVersion))))
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "unpacked")
	startErr := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		Port(uint32(port)).
		CachePath(filepath.Join(work, "archive")).
		RuntimePath(filepath.Join(work, "run")).
		BinariesPath(unpacked).
		DataPath(data).
		Logger(io.Discard)).Start()
	http.DefaultClient.CloseIdleConnections() // the library's, which would stay with goroutines for a while
	if !hasBinaries(filepath.Join(unpacked, "bin")) {
		if startErr == nil {
			startErr = errors.New("the archive held no server programs")
		}
		return startErr
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return err
	}
	// A directory without the programs may be there from an interrupted unpacking.
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	return os.Rename(unpacked, final)
}
