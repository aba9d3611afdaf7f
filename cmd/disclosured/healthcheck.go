package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// maxHealthText is how much of a service's answer is shown: it is one line.
const maxHealthText = 4 << 10

func newHealthcheckCommand() *cobra.Command {
	var (
		live    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the service on this host whether it is ready, for a container without a shell",
		Long: "Ask the service on this host, at its ops.listen, whether it is ready to answer (/readyz).\n" +
			"A service that is not ready is not mended by a restart: supervisors that restart should ask with --live.",
		Annotations: map[string]string{answersNo: "the service is not ready"},
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return configError{err}
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			url, err := opsURL(config.Ops.Listen, path)
			if err != nil {
				return configError{fmt.Errorf("ops.listen: %w", err)}
			}
			ctx, cancel := contextWithTimeout(cmd.Context(), timeout)
			defer cancel()
			said, err := askHealth(ctx, url)
			if err != nil {
				return overdue(ctx, timeout, err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printableLines(said))
			return err
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process serves (/livez)")
	addTimeout(cmd.Flags(), &timeout, 3*time.Second, "how long the answer may take")
	addConfigFlags(cmd.Flags(), "ops")
	return cmd
}

// opsURL is where this host reaches what listens at the address: an address of all interfaces is asked at loopback.
func opsURL(listen, path string) (string, error) {
	if listen == "" {
		return "", errors.New("is empty: the service has no such endpoint")
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port: %w", listen, err)
	}
	switch host {
	case "0.0.0.0":
		host = "127.0.0.1"
	case "", "::":
		host = "localhost" // by either protocol
	}
	return "http://" + net.JoinHostPort(host, port) + path, nil
}

// askHealth gives the service's one line, or as an error where it says no.
func askHealth(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", url, err)
	}
	// No proxy from the environment stands between a process and its own host.
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		network := (*net.OpError)(nil)
		switch {
		case ctx.Err() == nil && !errors.As(err, &network): // connected, and what came was not HTTP
			err = advised(err, "what answers there is no HTTP server: is it the API (api.listen)? ops.listen is another port, by default "+defaultConfig().Ops.Listen)
		case strings.Contains(err.Error(), "connection refused"):
			err = advised(err, "nothing listens there: is `disclosured serve` running, with this ops.listen?")
		}
		return "", fmt.Errorf("asking %s: %w", url, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxHealthText))
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", url, err)
	}
	said := strings.TrimSpace(string(text))
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, answer.Status, said)
	}
	return said, nil
}
