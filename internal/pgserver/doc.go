// Package pgserver runs a private PostgreSQL server that is thrown away with its owner. Tests, benchmarks and the demo
// use it: real PostgreSQL, nothing installed by hand, nothing left behind.
//
// # What a server is
//
// One directory below the temporary directory holds everything: the data directory, the log, the socket. The postgres
// program runs as a direct child of this process (no pg_ctl between, so its end is seen at once), on a loopback port
// or on a socket in that directory, with a random superuser password, so that other users of the machine cannot use it.
//
// # States
//
//	Start ──▶ running ──Kill, crash──▶ down ──Restart──▶ running
//	             └──────────Stop──────────┴──▶ gone (the directory too)
//
// Stop is the only way out, may be called in each state and any number of times, and removes the directory even where the
// server had to be ended by force.
//
// # Invariants
//
//   - PostgreSQL refuses to run as root. Where this process is root, the server runs as the user postgres, else as nobody,
//     and the directory belongs to that user.
//   - A server does not outlive its owner. On Linux the kernel sends it a quit signal when this process dies, however it
//     dies. That signal is bound to the thread that started the child, so one locked goroutine per run starts it and waits
//     for it.
//   - A directory does not outlive its owner for long. The owner holds a file lock in it; each Start removes the
//     directories whose lock nobody holds. A directory gets its final name only after the lock is taken, so no Start can
//     mistake a fresh one for a leftover.
//   - Parallel starts, in one process or several, share nothing. PostgreSQL cannot be asked to choose a port, so a free one
//     is chosen for it; where another program takes it first, the next one is tried.
//
// # Where the programs come from
//
// Options.BinDir, the environment variable DISCLOSURED_POSTGRES_BIN, PATH, and the usual places of Debian, Red Hat and
// Homebrew, newest version first. Where there are none, and only if Options.Download allows it, a build is fetched once
// into the cache directory.
package pgserver
