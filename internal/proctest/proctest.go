package proctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Build builds the program into the directory and returns its path, with the race detector where the tests have it. The working directory
// is that of a package two levels below the module's root, and version is what the program will say that it is.
func Build(dir, version string) (string, error) {
	path := filepath.Join(dir, "disclosured")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"build", "-o", path, "-ldflags", "-X main.version=" + version}
	if Race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/disclosured")...)
	cmd.Dir = filepath.Join("..", "..")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, output)
	}
	return path, nil
}

// Output is what a process writes, safe to read while it does.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Process is a run of the program.
type Process struct {
	t           testing.TB
	cmd         *exec.Cmd
	Out, ErrOut Output // standard output and standard error
	done        chan struct{}
	code        int
}

// Options are what differs between runs of one program. The zero value will do.
type Options struct {
	// Env are entries beside the tests' own environment, of which the program's own variables are left out.
	Env []string
	// Stdout, if not nil, takes standard output in place of Process.Out.
	Stdout io.Writer
}

// Start runs the program with the arguments. It is killed when the test ends.
func Start(t testing.TB, program string, o Options, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = io.Writer(&p.Out), &p.ErrOut
	if o.Stdout != nil {
		p.cmd.Stdout = o.Stdout
	}
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "DISCLOSURED_") && !strings.HasPrefix(entry, "DISCLOSURED_POSTGRES_BIN=") || strings.HasPrefix(entry, "DATABASE_URL=")
	}), o.Env...)
	p.cmd.SysProcAttr = dieWithParent()
	if err := parent.start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			fmt.Fprintf(&p.ErrOut, "waiting for the process: %v", err)
		}
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.done
		p.checkLog()
		if t.Failed() && args[0] == "serve" { // what other commands write, their tests show
			t.Logf("log of disclosured %s:\n%s", strings.Join(args, " "), Tail(p.ErrOut.String(), 60))
		}
	})
	return p
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended tells whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// State is how the process ended, in words; nothing before it has.
func (p *Process) State() string {
	if !p.Ended() {
		return ""
	}
	return p.cmd.ProcessState.String()
}

// Code is the exit code of a process that has ended, -1 where a signal ended it.
func (p *Process) Code() int {
	<-p.done
	return p.code
}

// Signal sends a signal; a process that has ended is left alone.
func (p *Process) Signal(s syscall.Signal) {
	if !p.Ended() {
		_ = p.cmd.Process.Signal(s)
	}
}

// Wait waits for the end and returns the exit code.
func (p *Process) Wait(within time.Duration) int {
	p.t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.code
	case <-timer.C:
		p.t.Fatalf("the process did not end within %s", within)
		return 0
	}
}

// Kill ends the process as kill -9 does, and waits for the end.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.Wait(time.Minute)
}

// checkLog fails the test where the process panicked or raced.
func (p *Process) checkLog() {
	p.t.Helper()
	log := p.ErrOut.String()
	for _, bad := range []string{"panic:", "WARNING: DATA RACE", "closed pool", "fatal error:"} {
		if at := strings.Index(log, bad); at >= 0 {
			p.t.Errorf("the log has %q:\n%s", bad, log[at:min(len(log), at+4000)])
		}
	}
}

// Tail is the last lines of a log, without those of its calls.
func Tail(text string, lines int) string {
	all := slices.DeleteFunc(strings.Split(strings.TrimRight(text, "\n"), "\n"), func(line string) bool { return strings.Contains(line, " msg=call ") })
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// parent starts all processes from one thread: the package comment says why.
var parent starter

type starter struct {
	once  sync.Once
	tasks chan func()
}

func (s *starter) start(cmd *exec.Cmd) error {
	s.once.Do(func() {
		s.tasks = make(chan func())
		go func() {
			runtime.LockOSThread()
			for task := range s.tasks {
				task()
			}
		}()
	})
	started := make(chan error)
	s.tasks <- func() { started <- cmd.Start() }
	return <-started
}

// Shutdown ends the thread that starts processes, and with it whatever process is left. Nothing can be started after it.
func Shutdown() {
	if parent.tasks != nil {
		close(parent.tasks)
	}
}
