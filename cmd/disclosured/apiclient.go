package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/secretfile"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// maxAnswerBytes bounds one answer of the service: a batch of 1,000 full nodes is about 12 MB.
const maxAnswerBytes = 64 << 20

// serverFlags say which service a client command asks.
type serverFlags struct {
	address, caFile, certFile, keyFile string
	tls                                bool
}

func (s *serverFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&s.address, "server", defaultConfig().API.Listen, "the service's address")
	flags.BoolVar(&s.tls, "tls", false, "talk TLS, trusting the system's authorities")
	flags.StringVar(&s.caFile, "server-ca-file", "", "talk TLS, trusting these authorities (PEM)")
	flags.StringVar(&s.certFile, "cert-file", "", "our certificate (PEM), where the service asks for one")
	flags.StringVar(&s.keyFile, "key-file", "", "the private key of --cert-file (PEM)")
}

// dial connects lazily: an address that nobody answers at shows with the first call.
func (s *serverFlags) dial() (*grpc.ClientConn, error) {
	if err := s.checkAddress(); err != nil {
		return nil, configError{err}
	}
	transport := insecure.NewCredentials()
	if (s.certFile == "") != (s.keyFile == "") {
		return nil, configError{errors.New("--cert-file and --key-file go together: give both or neither")}
	}
	if s.tls || s.caFile != "" || s.certFile != "" {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if s.caFile != "" {
			authorities, err := secretfile.CertPool(s.caFile)
			if err != nil {
				return nil, configError{fmt.Errorf("reading --server-ca-file: %w", err)}
			}
			config.RootCAs = authorities
		}
		if s.certFile != "" {
			pair, err := secretfile.KeyPair(s.certFile, s.keyFile)
			if err != nil {
				return nil, configError{fmt.Errorf("reading --cert-file and --key-file: %w", err)}
			}
			config.Certificates = []tls.Certificate{pair}
		}
		transport = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, configError{fmt.Errorf("--server %q: %w", s.address, err)}
	}
	return conn, nil
}

// checkAddress refuses what gRPC would take for a name with a port of its own choice.
func (s *serverFlags) checkAddress() error {
	if strings.Contains(s.address, "://") && !strings.HasPrefix(s.address, "http") || strings.HasPrefix(s.address, "unix:") {
		return nil // a gRPC name
	}
	host, port, err := net.SplitHostPort(s.address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("--server %q: the form is host:port, as %s", s.address, defaultConfig().API.Listen)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return fmt.Errorf("--server %q: %q is not a port: give host:port, as %s", s.address, port, defaultConfig().API.Listen)
	}
	return nil
}

// scopeFlags pick a replay trie.
type scopeFlags struct {
	consumer, operator, packageName, namespace string
	withoutNamespace                           bool
}

func (s *scopeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.consumer, "consumer", "", "the app's party whose replay trie it is")
	flags.StringVar(&s.operator, "operator", "", "the bridge's operator, where a consumer has tries under several")
	flags.StringVar(&s.packageName, "package", "", "the package's name, where there are several")
	flags.StringVar(&s.namespace, "namespace", "", "the trie's namespace, which may be empty")
	flags.BoolVar(&s.withoutNamespace, "without-namespace", false, "only tries of package versions without namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "without-namespace")
}

// check refuses what no party can be, before anything is asked for it.
func (s *scopeFlags) check() error {
	return errors.Join(checkParty("--consumer", s.consumer), checkParty("--operator", s.operator))
}

// partyHint is what to do about a party that nothing is found for.
const partyHint = "a party is name::fingerprint; `disclosured scopes` lists the tries that there are"

// checkParty refuses a text that is no party of a Canton participant; an empty one is none given.
func checkParty(flag, party string) error {
	if party == "" {
		return nil
	}
	var faults []error
	parties(func(_, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: "+format, append([]any{flag}, args...)...))
	}, "", []string{party})
	if name, fingerprint, ok := strings.Cut(party, "::"); len(faults) == 0 && (!ok || name == "" || fingerprint == "") {
		faults = append(faults, fmt.Errorf("%s: %q is not a party", flag, party))
	}
	if len(faults) == 0 {
		return nil
	}
	return configError{advised(errors.Join(faults...), partyHint)}
}

// given tells whether anything narrows a scope.
func (s *scopeFlags) given(flags *pflag.FlagSet) bool {
	return slices.ContainsFunc([]string{"consumer", "operator", "package", "namespace", "without-namespace"}, flags.Changed)
}

func (s *scopeFlags) selector(flags *pflag.FlagSet) *disclosurev1.ScopeSelector {
	selector := &disclosurev1.ScopeSelector{Consumer: s.consumer, Operator: s.operator, PackageName: s.packageName}
	switch {
	case flags.Changed("namespace"):
		selector.NamespaceChoice = &disclosurev1.ScopeSelector_Namespace{Namespace: s.namespace}
	case s.withoutNamespace:
		selector.NamespaceChoice = &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}
	}
	return selector
}

// serviceError is a call's status as it is told.
type serviceError struct {
	text   string
	status *status.Status
}

func (e *serviceError) Error() string { return e.text }

// explain makes one readable error of the service's status: what it says, its reason, and the rest of what it tells.
func explain(doing string, err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s: %w", doing, err)
	}
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		var more strings.Builder
		for _, key := range slices.Sorted(maps.Keys(info.Metadata)) {
			fmt.Fprintf(&more, "\n  %s: %s", printable(key), printable(info.Metadata[key]))
		}
		if info.Reason == "UNKNOWN_SCOPE" {
			more.WriteString("\n  → " + partyHint)
		}
		return &serviceError{fmt.Sprintf("%s: %s: %s%s", doing, printable(info.Reason), printable(st.Message()), more.String()), st}
	}
	return advised(&serviceError{fmt.Sprintf("%s: %s: %s", doing, st.Code(), printable(st.Message())), st}, serverAdvice(st.Message()))
}

// reasonOf is the service's reason for an error, "" where there is none.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// errNo is returned by commands whose answer is no, after they have printed it.
var errNo = errors.New("the answer is no")
