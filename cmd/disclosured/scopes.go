package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// scopesAttempts is how often a list of several pages is begun: the service keeps the place of a list for a while only, and a restarted service
// or another replica behind the same address does not have it.
const scopesAttempts = 3

// A list is kept whole until it is printed. These bound it, by pages, by all that they hold and by what one holds: a trie takes some 300 bytes, and at
// most api.MaxPageSize of them are a page.
const (
	maxScopesPages     = 1000
	maxScopesBytes     = 32 << 20
	maxScopesPageBytes = 4 << 20
)

// scopesReport is what `disclosured scopes --json` prints.
type scopesReport struct {
	ParticipantID string        `json:"participant_id"`
	Offset        int64         `json:"offset,string"`
	Fresh         bool          `json:"fresh"`
	Scopes        []scopeReport `json:"scopes"`
}

// scopeReport is one replay trie.
type scopeReport struct {
	Consumer    string `json:"consumer"`
	Operator    string `json:"operator"`
	PackageName string `json:"package_name"`
	// Namespace is null for package versions without namespaces; "" is a namespace of its own.
	Namespace       *string `json:"namespace"`
	ActiveNodes     int64   `json:"active_nodes"`
	ConsumedDigests int64   `json:"consumed_digests"`
	DeepestPrefix   int32   `json:"deepest_prefix"`
	// Findings are the audit's, by kind.
	Findings map[string]int64 `json:"findings"`
}

func newScopesCommand() *cobra.Command {
	var (
		server  serverFlags
		request disclosurev1.ListScopesRequest
		asJSON  bool
		stale   bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "scopes",
		Short: "List the replay tries that a running service knows",
		Long: "List the replay tries that a running service knows, of all consumers or of those that the flags name: how many nodes are active, how many digests\n" +
			"they hold, how long the longest prefix is, and the audit's findings. The list is of one offset, however many pages it has. An empty list is no error.",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkParty("--consumer", request.Consumer), checkParty("--operator", request.Operator)); err != nil {
				return err
			}
			conn, err := server.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := contextWithTimeout(cmd.Context(), timeout)
			defer cancel()
			request.PageSize, request.Read = api.MaxPageSize, &disclosurev1.ReadOptions{AllowStale: stale}
			list, err := listScopes(ctx, disclosurev1.NewDisclosureServiceClient(conn), &request)
			if err != nil {
				return overdue(ctx, timeout, explain("asking "+server.address+" for its replay tries", err))
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), scopesJSON(list))
			}
			return printScopes(cmd.OutOrStdout(), list)
		},
	}
	server.add(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&request.Consumer, "consumer", "", "only tries of this app's party")
	flags.StringVar(&request.Operator, "operator", "", "only tries under this operator of the bridge")
	flags.StringVar(&request.PackageName, "package", "", "only tries of the package of this name")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.BoolVar(&stale, "allow-stale", false, "take an answer although the service can't prove it complete just now")
	addTimeout(flags, &timeout, 30*time.Second, "how long to wait for the whole list")
	return cmd
}

// listScopes reads a list to its end. What it gives is the last page, with the scopes of all. What is no list of one offset that ends is an error.
func listScopes(ctx context.Context, client disclosurev1.DisclosureServiceClient, request *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
	for attempt := 1; ; attempt++ {
		request.PageToken = ""
		list, err := readScopes(ctx, client, request)
		again := errors.Is(err, errScopesMoved) || reasonOf(err) == string(api.PageTokenExpired)
		if !again || attempt == scopesAttempts {
			return list, err
		}
	}
}

// errScopesMoved: the pages of one list are of different places on the ledger, as when another replica answers that keeps no place.
var errScopesMoved = errors.New("the list's pages are not of one offset of one participant")

// readScopes reads a list once.
func readScopes(ctx context.Context, client disclosurev1.DisclosureServiceClient, request *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
	var (
		scopes []*disclosurev1.ScopeInfo
		first  *disclosurev1.Position
		bytes  int
		seen   = map[string]bool{}
	)
	for {
		page, err := client.ListScopes(ctx, request, grpc.MaxCallRecvMsgSize(maxScopesPageBytes))
		if err != nil {
			return nil, err
		}
		position := page.GetAnswer().GetPosition()
		if len(seen) == 0 {
			first = position
		} else if position.GetOffset() != first.GetOffset() || position.GetParticipantId() != first.GetParticipantId() {
			return nil, fmt.Errorf("%w: first %d of %s, then %d of %s", errScopesMoved, first.GetOffset(), first.GetParticipantId(), position.GetOffset(), position.GetParticipantId())
		}
		scopes = append(scopes, page.Scopes...)
		if page.NextPageToken == "" {
			page.Scopes = scopes
			return page, nil
		}
		bytes += proto.Size(page)
		switch {
		case seen[page.NextPageToken]:
			return nil, fmt.Errorf("after page %d the list leads back to a page of it: what answers there is no service that works", len(seen)+1)
		case len(seen)+1 >= maxScopesPages, bytes > maxScopesBytes:
			return nil, fmt.Errorf("the list does not end within %d pages and %d MiB: narrow it by --consumer, --operator or --package", maxScopesPages, maxScopesBytes>>20)
		}
		seen[page.NextPageToken] = true
		request.PageToken = page.NextPageToken
	}
}

func scopesJSON(list *disclosurev1.ListScopesResponse) scopesReport {
	position := list.Answer.GetPosition()
	report := scopesReport{
		ParticipantID: position.GetParticipantId(), Offset: position.GetOffset(), Fresh: list.Answer.GetFreshness().GetFresh(), Scopes: []scopeReport{},
	}
	for _, s := range list.Scopes {
		findings := map[string]int64{} // {} and not null where there is none
		maps.Copy(findings, s.Findings)
		scope := scopeReport{
			Consumer: s.Scope.GetConsumer(), Operator: s.Scope.GetOperator(), PackageName: s.Scope.GetPackageName(),
			ActiveNodes: s.ActiveNodes, ConsumedDigests: s.ConsumedDigests, DeepestPrefix: s.DeepestPrefix, Findings: findings,
		}
		if s.Scope != nil {
			scope.Namespace = s.Scope.Namespace
		}
		report.Scopes = append(report.Scopes, scope)
	}
	return report
}

// printScopes prints a table whose short columns come first: parties, which are printed whole to be copied, are wider than a terminal.
func printScopes(out io.Writer, list *disclosurev1.ListScopesResponse) error {
	position, freshness := list.Answer.GetPosition(), list.Answer.GetFreshness()
	what := "replay tries"
	if len(list.Scopes) == 1 {
		what = "replay trie"
	}
	printfLine(out, "%d %s at offset %d of %s, proven %s ago (bound %s)", len(list.Scopes), what, position.GetOffset(), position.GetParticipantId(),
		freshness.GetAge().AsDuration().Round(time.Millisecond), freshness.GetBound().AsDuration())
	if len(list.Scopes) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODES\tCONSUMED\tDEEPEST\tFINDINGS\tPACKAGE\tNAMESPACE\tCONSUMER\tOPERATOR")
	for _, s := range list.Scopes {
		var findings []string
		for _, kind := range slices.Sorted(maps.Keys(s.Findings)) {
			findings = append(findings, fmt.Sprintf("%s=%d", kind, s.Findings[kind]))
		}
		fmt.Fprintf(table, "%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", s.ActiveNodes, s.ConsumedDigests, s.DeepestPrefix, printable(orList(findings, "none")),
			printable(s.Scope.GetPackageName()), namespaceText(s.Scope), printable(s.Scope.GetConsumer()), printable(s.Scope.GetOperator()))
	}
	return table.Flush()
}
