package integration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// output is what a process writes, safe to read while it does.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a run of the program.
type process struct {
	cmd  *exec.Cmd
	log  output // standard error
	out  output // standard output
	done chan struct{}
}

// start runs the program. The environment is ours without the program's own variables. It is killed when the test ends.
func start(t *testing.T, stdout io.Writer, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = io.Writer(&p.out), &p.log
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "DISCLOSURED_") || strings.HasPrefix(entry, "DATABASE_URL=")
	})
	p.cmd.SysProcAttr = dieWithUs()
	if err := parent.start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is in its state
	}()
	t.Cleanup(func() {
		p.kill()
		if log := p.log.String(); strings.Contains(log, "panic:") || strings.Contains(log, "fatal error:") {
			t.Errorf("disclosured %s: %s", args[0], log)
		} else if t.Failed() {
			t.Logf("the end of the log of disclosured %s:\n%s", args[0], tail(log, 30))
		}
	})
	return p
}

// kill ends the process as kill -9 does, and waits for the end.
func (p *process) kill() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-p.done
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func tail(text string, lines int) string {
	all := slices.DeleteFunc(strings.Split(strings.TrimRight(text, "\n"), "\n"), func(line string) bool { return strings.Contains(line, " msg=call ") })
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// parent starts all processes from one thread that lasts as long as the tests: see dieWithUs.
var parent = &starter{}

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

func (s *starter) stop() {
	if s.tasks != nil {
		close(s.tasks)
	}
}

// shell runs a command of the user's.
func shell(command string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if output, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, output)
	}
	return nil
}

// startSim starts a simulated participant without any contract, and returns its address.
func startSim(t *testing.T, args ...string) string {
	t.Helper()
	lines, writer := io.Pipe()
	p := start(t, writer, append([]string{"sim", "--listen", "127.0.0.1:0", "--empty"}, args...)...)
	first := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		scanner := bufio.NewScanner(lines)
		for scanner.Scan() {
			select {
			case first <- scanner.Text():
			default:
			}
		}
		close(first)
	})
	t.Cleanup(func() {
		p.kill()
		writer.Close()
		reading.Wait()
	})
	go func() {
		<-p.done
		writer.Close()
	}()
	line, ok := <-first
	_, address, found := strings.Cut(line, ", at ")
	if !ok || !found {
		t.Fatalf("the simulated participant does not say where it is: %q\n%s", line, p.log.String())
	}
	return address
}

// service is `disclosured serve`, which can be killed and started again.
type service struct {
	t       *testing.T
	config  string
	conn    *grpc.ClientConn
	address string
	api     disclosurev1.DisclosureServiceClient
	*process
}

// newService writes the configuration and starts the service.
func newService(t *testing.T, config map[string]string) *service {
	t.Helper()
	s := &service{t: t, address: freeAddress(t)}
	config = maps.Clone(config)
	config["api.listen"], config["ops.listen"] = s.address, freeAddress(t)
	var b strings.Builder
	section := ""
	for _, key := range slices.Sorted(maps.Keys(config)) {
		group, name, _ := strings.Cut(key, ".")
		if group != section {
			fmt.Fprintf(&b, "%s:\n", group)
			section = group
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, config[key])
	}
	s.config = write(t, "disclosured.yaml", b.String())
	var err error
	s.conn, err = grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	s.api = disclosurev1.NewDisclosureServiceClient(s.conn)
	s.start()
	return s
}

// start starts the service, the first time or again.
func (s *service) start() {
	s.t.Helper()
	s.process = start(s.t, nil, "serve", "--config", s.config)
}

// waitReady waits until the service says that it serves, by its health stream.
func (s *service) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a process that ends will not become ready
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		watch, err := healthpb.NewHealthClient(s.conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var answer *healthpb.HealthCheckResponse
			if answer, err = watch.Recv(); err == nil && answer.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				return nil
			}
		}
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("the service is not ready: %w", err), fmt.Errorf("its log ends: %s", tail(s.log.String(), 5)))
		}
	}
}

// command runs a command of the program against the service with its configuration, and returns what it wrote.
func (s *service) command(ctx context.Context, args ...string) (string, error) {
	p := start(s.t, nil, append(args, "--config", s.config)...)
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return "", ctx.Err()
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return p.out.String(), fmt.Errorf("disclosured %s: exit code %d: %s", strings.Join(args, " "), code, p.log.String())
	}
	return p.out.String(), nil
}

// write puts content into a file of the test's own.
func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freeAddress is a loopback address that nobody listens on, with a port below those that the kernel gives away.
func freeAddress(t *testing.T) string {
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
