package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// serving starts a service that follows a devnet with an app for each threshold.
func serving(t *testing.T, thresholds ...int64) (*service, *devnet.World) {
	t.Helper()
	_, participant := startSim(t, ledgersim.Options{})
	world, err := makeWorld(t.Context(), participant, thresholds)
	if err != nil {
		t.Fatal(err)
	}
	svc, err := startService(t.Context(), followWorld(participant, world), "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := svc.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return svc, world
}

func consumersOf(w *devnet.World) (consumers []string) {
	for _, app := range w.Apps {
		consumers = append(consumers, app.Consumer)
	}
	return consumers
}

func TestScopes(t *testing.T) {
	svc, world := serving(t, 4, 16)
	scopes := func(more ...string) (printed string) {
		t.Helper()
		code, printed, said := outcome(t, append([]string{"scopes", "--server", svc.address}, more...)...)
		if code != exitOK {
			t.Fatalf("%q: exit %d: %s", more, code, said)
		}
		return printed
	}
	all := consumersOf(world)
	lines := strings.Split(strings.TrimSpace(scopes()), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "2 replay tries at offset ") || !strings.HasPrefix(lines[1], "NODES  CONSUMED  DEEPEST  FINDINGS") {
		t.Errorf("printed %q", lines)
	}
	for i, row := range lines[2:] {
		want := []string{"1", "0", "0", "none", "wormhole-core", "(none)", all[i], world.Operator}
		if got := strings.Fields(row); !slices.Equal(got, want) {
			t.Errorf("row %d is %q, want %q", i, got, want)
		}
	}
	var report scopesReport
	if err := json.Unmarshal([]byte(scopes("--json", "--consumer", all[1], "--operator", world.Operator, "--package", "wormhole-core")), &report); err != nil {
		t.Fatal(err)
	}
	if printed := scopes("--json"); !strings.Contains(printed, fmt.Sprintf(`"offset": "%d"`, report.Offset)) {
		t.Errorf("the offset is no text: %s", printed)
	}
	if len(report.Scopes) != 1 || report.Scopes[0].Consumer != all[1] || report.Scopes[0].ActiveNodes != 1 || !report.Fresh || report.Offset == 0 || report.ParticipantID == "" {
		t.Errorf("the second app's are %+v", report)
	}
	for _, other := range [][]string{{"--consumer", world.Operator}, {"--operator", all[0]}, {"--package", "other"}} {
		if printed := scopes(other...); !strings.HasPrefix(printed, "0 replay tries ") || strings.Contains(printed, "NODES") {
			t.Errorf("%q: printed %s", other, printed)
		}
		if printed := scopes(append(other, "--json")...); !strings.Contains(printed, `"scopes": []`) {
			t.Errorf("%q: printed %s", other, printed)
		}
	}
	if code, said := exit(t, "resolve", "--server", svc.address, "--consumer", world.Operator, "--digest", strings.Repeat("0", 64)); code != exitFailure || !strings.Contains(said, "`disclosured scopes`") {
		t.Errorf("an unknown scope: exit %d: %s", code, said)
	}
}

// expiring is a client whose tokens are foreign to the service for as often as it says, as they are to another replica.
type expiring struct {
	disclosurev1.DisclosureServiceClient
	times, asked int
}

func (e *expiring) ListScopes(ctx context.Context, in *disclosurev1.ListScopesRequest, options ...grpc.CallOption) (*disclosurev1.ListScopesResponse, error) {
	e.asked++
	if in.PageToken != "" && e.times > 0 {
		e.times--
		in = proto.CloneOf(in)
		in.PageToken = "MSBhYiBjZCAxIDE" // well-formed, of no view that is kept
	}
	return e.DisclosureServiceClient.ListScopes(ctx, in, options...)
}

// All pages are read, and a list whose place is gone is begun again, from its first page and not for ever.
func TestScopesOfSeveralPages(t *testing.T) {
	svc, world := serving(t, 4, 5, 6, 7, 8)
	for _, c := range []struct{ expires, asked int }{{0, 3}, {1, 5}, {2, 7}, {3, 6}} {
		client := &expiring{DisclosureServiceClient: svc.api, times: c.expires}
		list, err := listScopes(t.Context(), client, &disclosurev1.ListScopesRequest{PageSize: 2})
		if client.asked != c.asked {
			t.Errorf("%d tokens expire: asked %d times, want %d", c.expires, client.asked, c.asked)
		}
		if c.expires >= scopesAttempts {
			if reasonOf(err) != "PAGE_TOKEN_EXPIRED" {
				t.Errorf("%d tokens expire: %v, %v", c.expires, list, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range list.Scopes {
			got = append(got, s.Scope.Consumer)
		}
		if want := consumersOf(world); !slices.Equal(got, want) {
			t.Errorf("%d tokens expire: listed %q, want %q", c.expires, got, want)
		}
	}
}

// paging is a service that answers as the function says, which gets the number of the call.
type paging struct {
	disclosurev1.UnimplementedDisclosureServiceServer
	asked  int
	answer func(n int, in *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error)
}

func (p *paging) ListScopes(_ context.Context, in *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
	p.asked++
	return p.answer(p.asked, in)
}

// serve serves it.
func (p *paging) serve(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	disclosurev1.RegisterDisclosureServiceServer(server, p)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return listener.Addr().String()
}

func pageAt(offset int64, next string, scopes ...*disclosurev1.ScopeInfo) *disclosurev1.ListScopesResponse {
	return &disclosurev1.ListScopesResponse{Scopes: scopes, NextPageToken: next,
		Answer: &disclosurev1.Answer{Position: &disclosurev1.Position{ParticipantId: "p::1220", Offset: offset}}}
}

// A list without an end, one that leads back, and one whose pages are of several offsets are errors, soon and in little memory.
func TestScopesOfAHostileServer(t *testing.T) {
	large := &disclosurev1.ScopeInfo{Scope: &disclosurev1.Scope{Consumer: strings.Repeat("c", 3<<20)}}
	for _, c := range []struct {
		what, want string
		most       int // calls
		answer     func(n int, in *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error)
	}{
		{"endless pages", "does not end within", maxScopesPages, func(n int, _ *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return pageAt(7, fmt.Sprint(n)), nil
		}},
		{"endless bytes", "does not end within", 12, func(n int, _ *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return pageAt(7, fmt.Sprint(n), large), nil
		}},
		{"a page without an end", "larger than max", 1, func(int, *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return pageAt(7, "", large, large), nil
		}},
		{"a circle", "leads back", 4, func(n int, _ *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return pageAt(7, fmt.Sprint(n%3)), nil
		}},
		{"pages of several offsets", "not of one offset", 2 * scopesAttempts, func(n int, _ *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return pageAt(int64(n), fmt.Sprint(n)), nil
		}},
		{"a deadline that the service sees first", "--timeout 30s was over", 1, func(int, *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
			return nil, status.Error(codes.DeadlineExceeded, "the call's deadline passed")
		}},
	} {
		p := &paging{answer: c.answer}
		code, printed, said := outcome(t, "scopes", "--server", p.serve(t))
		if code != exitFailure || printed != "" || !strings.Contains(said, c.want) || p.asked > c.most {
			t.Errorf("%s: exit %d after %d calls, want at most %d and words about %q; it said %s", c.what, code, p.asked, c.most, c.want, said)
		}
	}
}

// A list that moved once is begun anew, and is whole.
func TestScopesThatMove(t *testing.T) {
	p := &paging{answer: func(n int, in *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
		if in.PageToken == "" {
			return pageAt(int64(min(n, 3)), "more", &disclosurev1.ScopeInfo{ActiveNodes: 1}), nil
		}
		return pageAt(3, "", &disclosurev1.ScopeInfo{ActiveNodes: 2}), nil
	}}
	code, printed, said := outcome(t, "scopes", "--server", p.serve(t))
	if code != exitOK || !strings.HasPrefix(printed, "2 replay tries at offset 3 of p::1220") || p.asked != 4 {
		t.Errorf("exit %d after %d calls: %s%s", code, p.asked, printed, said)
	}
}

func TestScopesPrintsFindingsAndNamespaces(t *testing.T) {
	empty := ""
	list := &disclosurev1.ListScopesResponse{Scopes: []*disclosurev1.ScopeInfo{
		{Scope: &disclosurev1.Scope{Consumer: "c", Operator: "o", PackageName: "p", Namespace: &empty}, Findings: map[string]int64{"LOSS": 2, "GAP": 1}},
		{}, // no scope: nothing of ours sends it
	}}
	var out strings.Builder
	if err := printScopes(&out, list); err != nil || !strings.Contains(out.String(), "GAP=1, LOSS=2") || !strings.Contains(out.String(), `  ""  `) {
		t.Errorf("%v: %s", err, out.String())
	}
	report := scopesJSON(list).Scopes
	if n := report[0].Namespace; n == nil || *n != "" {
		t.Errorf("the empty namespace is %v", n)
	}
	if n := report[1].Namespace; n != nil {
		t.Errorf("no namespace is %q", *n)
	}
}

// Shells complete commands and flags by asking the program.
func TestCompletion(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"sco"}, []string{"scopes"}},
		{[]string{"scopes", "--"}, []string{"--consumer", "--operator", "--package", "--json", "--server"}},
	} {
		code, printed, _ := outcome(t, append([]string{"__complete"}, c.args...)...)
		for _, want := range c.want {
			if code != exitOK || !strings.Contains("\n"+printed, "\n"+want+"\t") {
				t.Errorf("%q: exit %d, %q is not in %s", c.args, code, want, printed)
			}
		}
	}
}
