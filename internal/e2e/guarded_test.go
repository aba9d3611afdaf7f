package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
)

// reader is the user as whom a service reads a guarded world.
const reader = "disclosured"

// newGuardedWorld makes a world whose participant asks for tokens (options.Auth is set). The world's own client has the tokens it needs;
// the service's come from token.
func newGuardedWorld(t testing.TB, options ledgersim.Options, thresholds ...int64) *world {
	t.Helper()
	w := &world{t: t, sim: ledgersim.New(options)}
	var err error
	if w.address, err = w.sim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.sim.Stop)
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(insecure.NewCredentials()), quickReconnect,
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			as := clientUser
			if strings.Contains(method, ".admin.") {
				as = ledgersim.AdminUser
			}
			return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+w.sim.Token(as, time.Minute)), method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.client = submit.New(conn, clientUser)
	_, namespace, _ := strings.Cut(w.sim.ParticipantID(), "::")
	var parties []string
	for _, hint := range []string{"operator", "guardianGovernance", "guardianObserver", "app1", "app2", "app3"} {
		parties = append(parties, hint+"::"+namespace)
	}
	w.sim.SetRights(clientUser, nil, parties)
	w.sim.SetRights(reader, parties[:1], nil)
	if w.World, err = devnet.Make(t.Context(), w.client, devnet.Options{Thresholds: thresholds}); err != nil {
		t.Fatal(err)
	}
	return w
}

// clientUser is the user of the world's own client.
const clientUser = "e2e"

// tokenFile is a file for the service's token; the setting names it.
func tokenFile(t testing.TB) (path, setting string) {
	path = filepath.Join(t.TempDir(), "token")
	return path, fmt.Sprintf("%q", path)
}

// grant writes a fresh token of the reader, as whatever renews tokens does: in one step.
func (w *world) grant(path string) {
	w.t.Helper()
	fresh := path + ".new"
	if err := os.WriteFile(fresh, []byte(w.sim.Token(reader, 4*time.Minute)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		w.t.Fatal(err)
	}
}
