package ledgerstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/secretfile"
)

// maxTokenBytes keeps a token, with the rest of a call's headers, within the 8 KiB of metadata that a participant accepts; beyond them
// the call fails inside the client with a message that doesn't name the token.
const maxTokenBytes = 7 << 10

// TokenSource gives the access token of each call. It is asked anew for every call and stream, so that none begins with a token
// that was kept while something else took time. It is safe for concurrent use. No error of it contains a token or secret.
type TokenSource interface {
	// Token returns the token without "Bearer ". An error that carries a gRPC status keeps its code; another one counts as
	// Unauthenticated.
	Token(ctx context.Context) (string, error)
}

// rejectable is a TokenSource that keeps tokens and wants to know when the participant refused one.
type rejectable interface{ rejected() }

// FileToken is a TokenSource that reads the file at each call: another process renews it. White space around the token is
// dropped.
type FileToken string

// Token implements TokenSource.
func (path FileToken) Token(context.Context) (string, error) {
	token, err := secretfile.ReadText(string(path))
	if err != nil {
		return "", fmt.Errorf("reading the access token: %w", err)
	}
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("the access token in %s %w", string(path), err)
	}
	return token, nil
}

func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("is empty")
	case len(token) > maxTokenBytes:
		return fmt.Errorf("has %d bytes: a participant accepts 8 KiB of headers in all, so that %d is the limit", len(token), maxTokenBytes)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("contains a character that a header can't carry (a space, a line break?)")
	}
	return nil
}

// ClientCredentials says how to get tokens by OAuth 2.0's client credentials grant (RFC 6749, 4.4).
type ClientCredentials struct {
	// TokenURL is the issuer's token endpoint: https, or http to a loopback address.
	// It can't hold a user or a password.
	TokenURL string
	ClientID string
	// SecretFile holds the client's secret; it is read for each token.
	SecretFile string
	// Audience is sent as the parameter "audience". Participants from Canton 3.7 on refuse tokens without one.
	Audience string
	Scopes   []string
	// CAFile is a PEM file of authorities to trust for TokenURL; the system's where empty.
	CAFile string
}

// keptWithoutExpiry is how long a token is kept whose issuer doesn't say when it expires.
const keptWithoutExpiry = 30 * time.Second

// clientToken is a TokenSource by client credentials. It keeps a token for the first half of its life, so that a stream always
// begins with a good part of it ahead.
type clientToken struct {
	cfg    ClientCredentials
	client *http.Client
	// lock holds a token while nobody renews: a channel, because a caller's context must be able to end its wait.
	lock  chan struct{}
	token string
	until time.Time
}

// tokenTimeout bounds one request to the token endpoint.
const tokenTimeout = 10 * time.Second

// NewClientCredentials makes a TokenSource that gets tokens from an OAuth 2.0 issuer. It checks the settings, and warns where no
// audience is asked for; it doesn't call the issuer yet.
func NewClientCredentials(cfg ClientCredentials, log *slog.Logger) (TokenSource, error) {
	u, err := url.Parse(cfg.TokenURL)
	switch {
	// Nothing here quotes the URL: a password may be in it, which is said to whoever reads the log from then on.
	case err != nil, u != nil && u.Host == "":
		return nil, &ConfigError{Setting: "TokenURL", Err: errors.New("can't be read as an absolute URL, as https://issuer.example/token")}
	case u.User != nil:
		return nil, &ConfigError{Setting: "TokenURL", Err: errors.New("holds a user or a password before the host: they belong into ClientID and SecretFile")}
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return nil, &ConfigError{Setting: "TokenURL", Err: errors.New("must be https: the client's secret is sent to it")}
	case cfg.ClientID == "":
		return nil, &ConfigError{Setting: "ClientID", Err: errMissing}
	case cfg.SecretFile == "":
		return nil, &ConfigError{Setting: "SecretFile", Err: errMissing}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if cfg.CAFile != "" {
		roots, err := secretfile.CertPool(cfg.CAFile)
		if err != nil {
			return nil, &ConfigError{Setting: "CAFile", Err: err}
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	if cfg.Audience == "" && log != nil {
		log.Warn("no audience is asked for with the access token: participants deprecate tokens that only have a scope, and refuse them from " +
			"Canton 3.7 on; set the audience")
	}
	return &clientToken{
		cfg: cfg, client: &http.Client{Transport: transport, Timeout: tokenTimeout}, lock: make(chan struct{}, 1),
	}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// Token implements TokenSource.
func (t *clientToken) Token(ctx context.Context) (string, error) {
	select {
	case t.lock <- struct{}{}:
		defer func() { <-t.lock }()
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	if t.token != "" && time.Now().Before(t.until) {
		return t.token, nil
	}
	secret, err := secretfile.ReadText(t.cfg.SecretFile)
	if err != nil {
		return "", fmt.Errorf("reading the client's secret: %w", err)
	}
	if secret == "" {
		return "", fmt.Errorf("the client's secret in %s is empty", t.cfg.SecretFile)
	}
	cc := clientcredentials.Config{
		ClientID: t.cfg.ClientID, ClientSecret: secret, TokenURL: t.cfg.TokenURL, Scopes: t.cfg.Scopes,
	}
	if t.cfg.Audience != "" {
		cc.EndpointParams = url.Values{"audience": {t.cfg.Audience}}
	}
	asked := time.Now()
	got, err := cc.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
	if err != nil {
		return "", tokenError(t.cfg.TokenURL, err)
	}
	if err := checkToken(got.AccessToken); err != nil {
		return "", fmt.Errorf("the access token from %s %w", t.cfg.TokenURL, err)
	}
	t.token, t.until = got.AccessToken, asked.Add(keptWithoutExpiry)
	if !got.Expiry.IsZero() {
		t.until = asked.Add(got.Expiry.Sub(asked) / 2)
	}
	return t.token, nil
}

// rejected drops the token that is kept: the participant refused it, whatever its expiry says.
func (t *clientToken) rejected() {
	t.lock <- struct{}{}
	t.token = ""
	<-t.lock
}

// tokenError says what went wrong at the issuer, without the body of its answer. What the issuer refuses is Unauthenticated, what
// it could not answer is Unavailable.
func tokenError(tokenURL string, err error) error {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		// What net/http says in front names the address once more, or one that the issuer redirected to.
		if request := (*url.Error)(nil); errors.As(err, &request) {
			err = request.Err
		}
		return status.Errorf(codes.Unavailable, "asking %s for an access token: %v", tokenURL, err)
	}
	code := codes.Unauthenticated
	answer := "no answer"
	if refused.Response != nil {
		answer = refused.Response.Status
		if refused.Response.StatusCode >= 500 || refused.Response.StatusCode == http.StatusTooManyRequests {
			code = codes.Unavailable
		}
	}
	return status.Errorf(code, "asking %s for an access token: %s %s %s", tokenURL, answer, refused.ErrorCode, refused.ErrorDescription)
}

// bearer puts a source's token on every call.
type bearer struct {
	source TokenSource
	secure bool
}

var _ credentials.PerRPCCredentials = bearer{}

func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := b.source.Token(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }

// tellRejected tells a source that its token was refused.
func tellRejected(source rejectable) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, request, reply, cc, options...)
		if status.Code(err) == codes.Unauthenticated {
			source.rejected()
		}
		return err
	}
}
