package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/disclosured/disclosured/internal/ledgerstream"
)

// What gRPC says about a connection names neither the setting nor what to do. These functions add it; those of databaseadvice.go do for PostgreSQL.

// wrongTransport are what no waiting mends: what answers at the address speaks another protocol than we do.
var wrongTransport = []string{"first record does not look like a TLS handshake", "frame too large", "looked like an HTTP/1.1 header"}

// isWrongTransport tells whether what answers speaks another protocol.
func isWrongTransport(err error) bool {
	return slices.ContainsFunc(wrongTransport, func(s string) bool { return strings.Contains(err.Error(), s) })
}

// connectionAdvice is what to do about a connection that can't be made, by what gRPC says of it: to the service that a command asks, and to the
// participant.
var connectionAdvice = []struct{ said, server, participant string }{
	{
		"first record does not look like a TLS handshake",
		"the service talks without TLS there: leave out --tls, --server-ca-file and --cert-file",
		"the participant talks without TLS there: set participant.plaintext (--participant-plaintext), or correct participant.address",
	},
	{
		"looked like an HTTP/1.1 header",
		"that is a port for HTTP: --server is the API (api.listen, by default " + defaultConfig().API.Listen + "), not metrics and health (ops.listen)",
		"that is a port for HTTP: participant.address is the gRPC Ledger API, whose usual port is 6865",
	},
	{
		"error reading server preface",
		"does the service talk TLS there? then give --tls or --server-ca-file",
		"does the participant talk TLS there? then leave out participant.plaintext",
	},
	{
		"failed to verify certificate",
		"give the authority of the service's certificate with --server-ca-file, and in --server the name that the certificate has",
		"set participant.ca_file to the authority of the participant's certificate, and participant.server_name where its name is another",
	},
	{
		"connection refused",
		"nothing listens there: is `disclosured serve` running, and is --server its api.listen?",
		"nothing listens there: is the participant running, and is participant.address right?",
	},
	{
		"produced zero addresses",
		"the host's name does not resolve: correct --server",
		"the host's name does not resolve: correct participant.address",
	},
}

// serverAdvice is what to do about a service that can't be asked, "" where there is nothing to add.
func serverAdvice(said string) string {
	for _, advice := range connectionAdvice {
		if strings.Contains(said, advice.said) {
			return advice.server
		}
	}
	return ""
}

// participantAdvice is the same about a participant.
func participantAdvice(err error) string {
	for _, advice := range connectionAdvice {
		if strings.Contains(err.Error(), advice.said) {
			return advice.participant
		}
	}
	return ""
}

// advised is an error with what to do, in the same line: of a supervisor's log often only the last one is read.
func advised(err error, todo string) error {
	if todo == "" {
		return err
	}
	return fmt.Errorf("%w → %s", err, todo)
}

// settingsOfConn are the settings behind the fields of a ledgerstream.ConnConfig.
var settingsOfConn = map[string]string{
	"Target": "participant.address", "Plaintext": "participant.plaintext", "CAFile": "participant.ca_file",
	"CertFile and KeyFile": "participant.cert_file and key_file", "MaxReceiveBytes": "participant.max_message_bytes",
	"TokenURL": "participant.oauth_token_url", "ClientID": "participant.oauth_client_id", "SecretFile": "participant.oauth_client_secret_file",
}

// participantSetting is a fault of the connection's configuration with the name that the setting has here.
func participantSetting(err error) (setting string, fault error) {
	wrong := (*ledgerstream.ConfigError)(nil)
	if errors.As(err, &wrong) {
		if name, ok := settingsOfConn[wrong.Setting]; ok {
			return name, wrong.Err
		}
	}
	return "participant", err
}

// oneArgument takes exactly one argument, and says what it should be.
func oneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one argument, %s, and got %d: see `%s --help`", cmd.CommandPath(), what, len(args), cmd.CommandPath())
		}
		return nil
	}
}

// noArguments takes none. What looks like a configuration file is one whose flag was left out.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s takes no argument, and got %q", cmd.CommandPath(), args[0])
	if cmd.Flags().Lookup("config") == nil {
		return err
	}
	_, absent := os.Stat(args[0])
	if ext := filepath.Ext(args[0]); absent == nil || ext == ".yaml" || ext == ".yml" {
		return fmt.Errorf("%w: is --config %s meant?", err, args[0])
	}
	return err
}
