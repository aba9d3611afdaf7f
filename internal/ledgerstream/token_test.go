package ledgerstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/internal/secretfile"
)

// tokenFunc is a TokenSource.
type tokenFunc func() string

func (f tokenFunc) Token(context.Context) (string, error) { return f(), nil }

// authorization is the header that a call came with.
func authorization(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("authorization"); len(got) == 1 {
		return got[0]
	}
	return ""
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A token file is read at each call; what can't be a token is refused, without being quoted.
func TestFileToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	source := FileToken(path)
	if _, err := source.Token(t.Context()); err == nil {
		t.Error("a token from a file that isn't there")
	}
	for content, want := range map[string]string{"  eyJ.a.b\n": "eyJ.a.b", "eyJ.c.d": "eyJ.c.d"} {
		writeFile(t, path, content)
		if got, err := source.Token(t.Context()); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	for _, content := range []string{"", " \n", "secret secret", "secret\nsecret", "sécret", "secret" + strings.Repeat("x", 8<<10)} {
		writeFile(t, path, content)
		_, err := source.Token(t.Context())
		if err == nil {
			t.Errorf("took %.20q", content)
		} else if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), path) {
			t.Errorf("the error quotes the token, or doesn't name the file: %v", err)
		}
	}
}

// issuer is an OAuth 2.0 token endpoint.
type issuer struct {
	*httptest.Server
	forms  []string
	answer func(n int) (code int, body string)
}

func newIssuer(t *testing.T, answer func(n int) (int, string)) *issuer {
	i := &issuer{answer: answer}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		id, secret, _ := r.BasicAuth()
		i.forms = append(i.forms, r.PostForm.Encode()+" "+id+":"+secret)
		code, body := i.answer(len(i.forms))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(i.Close)
	return i
}

func clientCredentials(t *testing.T, i *issuer) ClientCredentials {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "secret"), "s3cret\n")
	writeFile(t, filepath.Join(dir, "ca.pem"), certificatePEM(i.Certificate()))
	return ClientCredentials{
		TokenURL: i.URL + "/token", ClientID: "disclosured", SecretFile: filepath.Join(dir, "secret"), CAFile: filepath.Join(dir, "ca.pem"),
		Audience: "https://daml.com/jwt/aud/participant/p", Scopes: []string{"daml_ledger_api"},
	}
}

// Client credentials: audience and scope are sent, a token is kept for half of its life, and dropped when the participant refuses it.
func TestClientCredentials(t *testing.T) {
	i := newIssuer(t, func(n int) (int, string) {
		return 200, fmt.Sprintf(`{"access_token":"T%d","token_type":"Bearer","expires_in":3600}`, n)
	})
	source, err := NewClientCredentials(clientCredentials(t, i), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := source.Token(t.Context()); err != nil || got != "T1" {
			t.Fatalf("got %q, %v; want T1", got, err)
		}
	}
	want := "audience=https%3A%2F%2Fdaml.com%2Fjwt%2Faud%2Fparticipant%2Fp&grant_type=client_credentials&scope=daml_ledger_api disclosured:s3cret"
	if len(i.forms) != 1 || i.forms[0] != want {
		t.Errorf("asked with %q, want once %q", i.forms, want)
	}

	p := newParticipant()
	refuse := true
	p.onEnd = func(ctx context.Context, _ int) error {
		if refuse {
			refuse = false
			return status.Error(codes.Unauthenticated, "redacted")
		}
		if got := authorization(ctx); got != "Bearer T2" {
			return status.Errorf(codes.Internal, "came with %s", got)
		}
		return nil
	}
	conn := p.serve(t, grpc.WithPerRPCCredentials(bearer{source: source}), grpc.WithUnaryInterceptor(tellRejected(source.(rejectable))))
	states := ledgerapi.NewStateServiceClient(conn)
	if _, err := states.GetLedgerEnd(t.Context(), &ledgerapi.GetLedgerEndRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Fatalf("refused: %v", err)
	}
	if _, err := states.GetLedgerEnd(t.Context(), &ledgerapi.GetLedgerEndRequest{}); err != nil {
		t.Errorf("after a new token: %v", err)
	}
}

// An expired token is not used, and one that expires soon only for half of that time.
func TestClientCredentialsExpiry(t *testing.T) {
	i := newIssuer(t, func(n int) (int, string) {
		return 200, fmt.Sprintf(`{"access_token":"T%d","token_type":"Bearer","expires_in":60}`, n)
	})
	source, err := NewClientCredentials(clientCredentials(t, i), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Token(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := source.(*clientToken)
	s.until = s.until.Add(-tokenTimeout * 3) // half a minute has passed
	if got, err := source.Token(t.Context()); err != nil || got != "T2" {
		t.Errorf("got %q, %v; want T2", got, err)
	}
}

// What the issuer refuses is the operator's to mend, what it could not answer is tried again; neither error has a secret.
func TestClientCredentialsRefused(t *testing.T) {
	for answer, want := range map[string]codes.Code{
		`401 {"error":"invalid_client","error_description":"unknown client"}`: codes.Unauthenticated,
		`400 {"error":"invalid_scope"}`:                                       codes.Unauthenticated,
		`503 s3cret`:                                                          codes.Unavailable,
		`429 {}`:                                                              codes.Unavailable,
		`200 not json`:                                                        codes.Unavailable,
		`200 {"access_token":"two words"}`:                                    codes.Unknown,
	} {
		i := newIssuer(t, func(int) (int, string) {
			var code int
			_, _ = fmt.Sscan(answer, &code)
			return code, answer[4:]
		})
		source, err := NewClientCredentials(clientCredentials(t, i), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = source.Token(t.Context())
		if err == nil || status.Code(err) != want {
			t.Errorf("%s: got %v, want code %s", answer, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "two words")) {
			t.Errorf("%s: a secret in the error: %v", answer, err)
		}
	}
}

// A31: no audience is warned of. A secret goes to https, or to this machine.
func TestClientCredentialsSettings(t *testing.T) {
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	good := ClientCredentials{TokenURL: "https://issuer.example/token", ClientID: "c", SecretFile: "f"}
	if _, err := NewClientCredentials(good, log); err != nil || !strings.Contains(logged.String(), "audience") {
		t.Errorf("got %v, logged %q; want a warning about the audience", err, logged.String())
	}
	logged.Reset()
	good.Audience = "a"
	if _, err := NewClientCredentials(good, log); err != nil || logged.Len() > 0 {
		t.Errorf("got %v, logged %q", err, logged.String())
	}
	good.TokenURL = "http://127.0.0.1:8080/token"
	if _, err := NewClientCredentials(good, log); err != nil {
		t.Errorf("loopback: %v", err)
	}
	for _, bad := range []func(*ClientCredentials){
		func(c *ClientCredentials) { c.TokenURL = "http://issuer.example/token" },
		func(c *ClientCredentials) { c.TokenURL = "issuer.example/token" },
		func(c *ClientCredentials) { c.TokenURL = ":" },
		func(c *ClientCredentials) { c.TokenURL = "https://c:hunter2@issuer.example/token" },
		func(c *ClientCredentials) { c.TokenURL = "https://c:hunter2@issuer.example:port/token" },
		func(c *ClientCredentials) { c.TokenURL = "c:hunter2@issuer.example/token" },
		func(c *ClientCredentials) { c.ClientID = "" },
		func(c *ClientCredentials) { c.SecretFile = "" },
		func(c *ClientCredentials) { c.CAFile = "/nowhere/ca.pem" },
	} {
		c := good
		bad(&c)
		if _, err := NewClientCredentials(c, log); err == nil {
			t.Errorf("took %+v", c)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

// A pipe in the place of a token or a secret would hold every call for ever.
func TestSecretsComeFromRegularFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero"} {
		if _, err := FileToken(path).Token(t.Context()); !errors.Is(err, secretfile.ErrNotRegular) {
			t.Errorf("a token from %s: got %v", path, err)
		}
		source, err := NewClientCredentials(ClientCredentials{TokenURL: "http://127.0.0.1:1/token", ClientID: "c", SecretFile: path, Audience: "a"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Token(t.Context()); !errors.Is(err, secretfile.ErrNotRegular) {
			t.Errorf("a client's secret from %s: got %v", path, err)
		}
	}
}
