package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/disclosured/disclosured/internal/api"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/telemetry"
	"github.com/disclosured/disclosured/replayguard"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// guarding is a daemon whose guard serves an anonymous client.
func guarding(urlFile string) *daemon {
	cfg := defaultConfig()
	cfg.Guard.AllowAnonymous = true
	cfg.Database.URLFile = urlFile
	return &daemon{cfg: cfg, log: slog.New(slog.DiscardHandler)}
}

func request(id byte) replayguard.Request {
	return replayguard.Request{Client: "client", ID: replayguard.ID{id}, ExpiresAt: time.Now().Add(time.Minute).Unix()}
}

// Where there is a database the guard is in it, common to all processes, and its schema is part of what is migrated.
func TestGuardIsInTheDatabase(t *testing.T) {
	urlFile := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(urlFile, []byte(pgtest.Database(t)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	unmigrated := guarding(urlFile)
	unmigrated.cfg.Database.Migrate = false
	if _, err := unmigrated.openGuard(ctx, &guardStore{}); !errors.As(err, new(configError)) || !strings.Contains(err.Error(), "disclosured migrate") {
		t.Errorf("opening without the schema: got %v, want an error of the configuration that names the command", err)
	}
	for _, c := range []struct{ command, want string }{
		{"status", "replay guard: version 0, 1 pending"}, {"up", "replay guard: version 1\n00001"}, {"status", "replay guard: version 1\n00001"},
	} {
		if code, printed, said := outcome(t, "migrate", c.command, "--database-url-file", urlFile); code != exitOK || !strings.HasPrefix(printed, c.want) {
			t.Fatalf("migrate %s: exit %d, printed %q, said %q; want %q", c.command, code, printed, said, c.want)
		}
	}
	if code, printed, _ := outcome(t, "migrate", "status", "--guard", "--database-url-file", urlFile); code != exitOK || printed != "replay guard: version 1\n" {
		t.Errorf("migrate status --guard: exit %d, printed %q", code, printed)
	}
	var guards []*guardStore
	for range 2 {
		d := guarding(urlFile)
		var deps api.Deps
		guard := d.startGuard(&deps, telemetry.New("test"))
		if deps.Guard != guard {
			t.Fatal("the API has no guard")
		}
		if _, err := guard.Reserve(ctx, request(1)); !errors.Is(err, errGuardNotOpen) {
			t.Errorf("before the database is open: got %v, want %v", err, errGuardNotOpen)
		}
		closeGuard, err := d.openGuard(ctx, guard)
		if err != nil {
			t.Fatal(err)
		}
		defer closeGuard()
		guards = append(guards, guard)
	}
	if _, err := guards[0].Reserve(ctx, request(1)); err != nil {
		t.Fatal(err)
	}
	var refusal *replayguard.Refusal
	if _, err := guards[1].Reserve(ctx, request(1)); !errors.As(err, &refusal) || refusal.Reason != replayguard.AlreadyReceived {
		t.Errorf("the other process: got %v, want already received", err)
	}
}

// Without a database the guard is in memory, at once; without anybody whom it could tell apart it is nowhere.
func TestGuardInMemory(t *testing.T) {
	d := guarding("")
	var deps api.Deps
	guard := d.startGuard(&deps, telemetry.New("test"))
	if _, err := guard.Reserve(t.Context(), request(1)); err != nil {
		t.Error(err)
	}
	d.cfg.Guard.Enabled = false
	deps = api.Deps{}
	if d.startGuard(&deps, telemetry.New("test")); deps.Guard != nil {
		t.Error("the guard is off, and the API has one")
	}
	for _, c := range []struct {
		enabled, anonymous bool
		ca                 string
		want               bool
	}{{true, true, "", true}, {true, false, "ca.pem", true}, {true, false, "", false}, {false, true, "ca.pem", false}} {
		cfg := defaultConfig()
		cfg.Guard.Enabled, cfg.Guard.AllowAnonymous, cfg.API.ClientCAFile = c.enabled, c.anonymous, c.ca
		if got := cfg.guardServed(); got != c.want {
			t.Errorf("%+v: served %v", c, got)
		}
	}
}

// Limits that the store would refuse everything for are refused at the start.
func TestGuardFaultsNameTheirSetting(t *testing.T) {
	c, err := load(t, "", nil, "--guard-max-entries", "-1", "--guard-max-ttl", "500ms", "--guard-rate-per-client", "0", "--guard-lapse-cost", "0", "--guard-burst-per-client", "-1", "--guard-max-live-per-client", "-1")
	if err != nil {
		t.Fatal(err)
	}
	faults := c.validate().Error()
	for _, setting := range []string{"max_entries", "max_ttl", "rate_per_client", "lapse_cost", "burst_per_client", "max_live_per_client"} {
		if !strings.Contains(faults, "guard."+setting+":") {
			t.Errorf("no fault names guard.%s:\n%s", setting, faults)
		}
	}
	if _, err := defaultConfig().Guard.limits(guardClockSkew).WithDefaults(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
