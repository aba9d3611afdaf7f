package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/disclosured/disclosured/internal/proctest"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

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
	p := proctest.Start(t, program, proctest.Options{Stdout: writer}, append([]string{"sim", "--listen", "127.0.0.1:0", "--empty"}, args...)...)
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
		p.Kill()
		writer.Close()
		reading.Wait()
	})
	go func() {
		<-p.Done()
		writer.Close()
	}()
	line, ok := <-first
	_, address, found := strings.Cut(line, ", at ")
	if !ok || !found {
		t.Fatalf("the simulated participant does not say where it is: %q\n%s", line, p.ErrOut.String())
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
	*proctest.Process
}

// newService writes the configuration and starts the service.
func newService(t *testing.T, config map[string]string) *service {
	t.Helper()
	s := &service{t: t, address: proctest.FreeAddress(t)}
	config = maps.Clone(config)
	config["api.listen"], config["ops.listen"] = s.address, proctest.FreeAddress(t)
	s.config = proctest.ConfigFile(t, config)
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
	s.Process = proctest.Start(s.t, program, proctest.Options{}, "serve", "--config", s.config)
}

// waitReady waits until the service says that it serves, by its health stream.
func (s *service) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a process that ends will not become ready
		select {
		case <-s.Done():
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
			return errors.Join(fmt.Errorf("the service is not ready: %w", err), fmt.Errorf("its log ends: %s", proctest.Tail(s.ErrOut.String(), 5)))
		}
	}
}

// command runs a command of the program against the service with its configuration, and returns what it wrote.
func (s *service) command(ctx context.Context, args ...string) (string, error) {
	p := proctest.Start(s.t, program, proctest.Options{}, append(args, "--config", s.config)...)
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return "", ctx.Err()
	}
	if code := p.Code(); code != 0 {
		return p.Out.String(), fmt.Errorf("disclosured %s: exit code %d: %s", strings.Join(args, " "), code, p.ErrOut.String())
	}
	return p.Out.String(), nil
}
