package integration

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/ledgerstream"
	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/record"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/pgserver/pgtest"
	"github.com/disclosured/disclosured/internal/proctest"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// TestStory tells the story to the participant that the environment names, else to `disclosured sim`, a process of its own.
func TestStory(t *testing.T) {
	t.Parallel()
	settings := settingsOf(t)
	if settings.address == "" {
		settings = simulated(t, settings)
	}
	tell(t, settings, []scene{
		{"the participant and its packages", (*story).meet},
		{"anchors and apps", (*story).found},
		{"the service starts", (*story).serve},
		{"a stranger redeems", (*story).redeems},
		{"splits", (*story).splits},
		{"a stale node", (*story).stale},
		{"contention", (*story).contends},
		{"replays", (*story).replays},
		{"wrong blobs", (*story).wrongBlobs},
		{"wrong disclosures", (*story).wrongDisclosures},
		{"wrong arguments", (*story).wrongArguments},
		{"bad VAAs", (*story).badVAAs},
		{"the ledger's own rules", (*story).ledgersOwn},
		{"governance in between", (*story).governs},
		{"a guardian set expires", (*story).expires},
		{"puppets and shadow tries", (*story).lookalikes},
		{"archived by both signatories", (*story).archives},
		{"from one synchronizer to another", (*story).reassigns},
		{"the service is killed", (*story).kills},
		{"the participant restarts", (*story).restarts},
		{"all of it read back", (*story).readsBack},
		{"pruning", (*story).prunes},
		{"the end", (*story).ends},
	})
}

// TestWithToken tells the beginning of the story to a simulated participant that asks for tokens, as its administrator: what TOKEN_FILE is for.
func TestWithToken(t *testing.T) {
	t.Parallel()
	settings := settingsOf(t)
	sim := ledgersim.New(ledgersim.Options{Seed: 2, Packages: []ledgersim.Package{}, Auth: &ledgersim.AuthOptions{Secret: []byte("integration")}})
	address, err := sim.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Stop)
	settings.address, settings.report, settings.lf = address, t.TempDir(), daml.LF22
	settings.token = proctest.File(t, "token", sim.Token(ledgersim.AdminUser, 290*time.Second))
	settings.ca, settings.cert, settings.key, settings.restart, settings.prune = "", "", "", nil, false
	settings.what, settings.patience = "a simulated participant that asks for tokens", 2*time.Minute
	tell(t, settings, []scene{
		{"the participant and its packages", (*story).meet},
		{"anchors and apps", (*story).found},
		{"the service starts", (*story).serve},
		{"a stranger redeems", (*story).redeems},
		{"a stale node", (*story).stale},
		{"wrong disclosures", (*story).wrongDisclosures},
		{"the ledger's own rules", (*story).ledgersOwn},
		{"the service is killed", (*story).kills},
		{"all of it read back", (*story).readsBack},
	})
	token, err := os.ReadFile(settings.token)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range left(t, settings.report) {
		if bytes.Contains(content, token) {
			t.Errorf("%s holds the token", path)
		}
		if strings.HasSuffix(path, record.CallsFile+".gz") && !bytes.Contains(content, []byte("authorization")) {
			t.Errorf("%s does not say that the calls were authorized", path)
		}
	}
}

// left are the files that a run has left, unpacked.
func left(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		var content io.Reader = file
		if strings.HasSuffix(path, ".gz") {
			if content, err = gzip.NewReader(file); err != nil {
				return err
			}
		}
		files[path], err = io.ReadAll(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 4 {
		t.Errorf("%d files were left, want report, calls, facts and README", len(files))
	}
	return files
}

// scene is a part of the story.
type scene struct {
	name string
	play func(*story)
}

// tell plays the scenes in their order, as far as it comes.
func tell(t *testing.T, settings settings, scenes []scene) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settings.patience)
	defer cancel()
	s := &story{root: t, t: t, ctx: ctx, settings: settings, report: newReport()}
	s.report.what = settings.what
	defer s.finish(t)
	for _, scene := range scenes {
		if !s.play(t, scene.name, scene.play) {
			return
		}
	}
}

// simulated starts a simulated participant.
func simulated(t *testing.T, s settings) settings {
	t.Helper()
	p := newProxy(t, startSim(t, "--commit-latency", "10ms", "--synchronizers", "2"))
	s.address, s.restart = p.address, p.restart
	s.what, s.patience = "`disclosured sim`, a simulated participant, as a process over TCP", 5*time.Minute
	s.prune = true
	return s
}

// play plays a scene, and tells whether the story can go on.
func (s *story) play(t *testing.T, name string, scene func(*story)) bool {
	begun := time.Now()
	s.report.scene = name
	ok := t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
		s.t = t
		scene(s)
	})
	s.report.scenes = append(s.report.scenes, sceneRow{name, s.report.outcome(ok), time.Since(begun)})
	return ok
}

// finish writes report and recording.
func (s *story) finish(t *testing.T) {
	if s.report.participant == "" {
		t.Logf("no participant was reached: there is no report of this run, and an earlier one in %s stays", s.settings.report)
		return
	}
	if err := s.report.write(s.settings.report, t.Failed()); err != nil {
		t.Error(err)
	}
	if s.recorder != nil {
		if err := s.recorder.Write(filepath.Join(s.settings.report, "recording")); err != nil {
			t.Error(err)
		}
	}
	t.Logf("report and recording are in %s", s.settings.report)
}

// meet connects to the participant, recorded, and asks who it is.
func (s *story) meet() {
	t := s.t
	s.recorder = record.New(record.Options{
		Name: "integration", Target: s.settings.address, Authorized: s.settings.token != "", Compress: true,
		About: "The integration test's story as it was told to " + s.settings.what + ".",
	})
	conn, err := ledgerstream.DialWith(s.settings.conn(), s.recorder.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	s.closeLater(conn)
	s.ledgerConn = conn
	// Whose rights count is known once there is a user; without authorization any name will do.
	client := submit.New(conn, "")
	user := ""
	if s.settings.token != "" {
		if user, err = client.OwnUser(s.ctx); err != nil {
			t.Fatal(err)
		}
		s.report.note("authorization is on; the token is user %s's", user)
	}
	name := user
	if name == "" {
		name = "integration"
	}
	s.user = user
	s.subject = newSide("the participant", submit.New(conn, name))
	if s.report.version, err = client.Version(s.ctx); err != nil {
		t.Fatal(err)
	}
	if s.participant, err = client.ParticipantID(s.ctx); err != nil {
		t.Fatal(err)
	}
	if s.synchronizers, err = client.Synchronizers(s.ctx); err != nil {
		t.Fatal(err)
	}
	if len(s.synchronizers) == 0 {
		t.Fatal("the participant is connected to no synchronizer")
	}
	s.report.participant, s.report.synchronizers = s.participant, s.synchronizers
	s.checkPackages(client)
	random := make([]byte, 3)
	_, _ = rand.Read(random) // never fails
	s.suffix = "-" + hex.EncodeToString(random)
}

// checkPackages refuses a participant that has the model in another build: of one name and version there can be one.
func (s *story) checkPackages(client *submit.Client) {
	known, err := client.Packages(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	var ours []string
	for _, name := range []string{daml.WormholeCorePackage, daml.ExampleIntegratorPackage} {
		dar, err := daml.Find(name, s.settings.lf)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, p := range known {
			if p.Name == dar.Name && p.Version == dar.Version && p.ID != dar.PackageID {
				s.t.Fatalf("the participant has package %s %s as %s, not as %s (LF %s): choose LF=%s or LF=%s as it has it, or another participant",
					p.Name, p.Version, p.ID, dar.PackageID, s.settings.lf, daml.LF23, daml.LF22)
			}
		}
		ours = append(ours, fmt.Sprintf("%s %s (LF %s, %.8s)", dar.Name, dar.Version, dar.LF, dar.PackageID))
	}
	s.report.packages = strings.Join(ours, " and ")
}

// startStandIn starts the simulated participant that stands beside the subject: of the same id and synchronizers, first of all the one on
// which the subject has put its contracts.
func (s *story) startStandIn() {
	ids := slices.Clone(s.synchronizers)
	slices.SortStableFunc(ids, func(a, b string) int {
		used := s.subject.coreState().SynchronizerID
		return cmp.Compare(btoi(a != used), btoi(b != used))
	})
	s.sim = ledgersim.New(ledgersim.Options{ParticipantID: s.participant, SynchronizerIDs: ids, Packages: []ledgersim.Package{}, Seed: 1})
	address, err := s.sim.Start()
	if err != nil {
		s.t.Fatal(err)
	}
	s.root.Cleanup(s.sim.Stop)
	standIn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.closeLater(standIn)
	s.standInConn = standIn
	s.standIn = newSide("the stand-in", submit.New(standIn, "integration"))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Guardian sets of the CoreState beside set 0.
const (
	// expiredSet is the development guardian's too, and has expired.
	expiredSet = 5
	// unknownSet is none.
	unknownSet = 7
)

// found makes anchors and apps on both sides.
func (s *story) found() {
	expired := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	sets := map[int64]wormhole.GuardianSet{expiredSet: {Keys: []string{wormhole.DevnetGuardian().Address()}, Expiration: &expired}}
	if err := s.subject.prepare(s.ctx, s.settings.lf, s.suffix, s.user, sets); err != nil {
		s.t.Fatal(err)
	}
	s.startStandIn()
	if err := s.standIn.prepare(s.ctx, s.settings.lf, s.suffix, "", sets); err != nil {
		s.t.Fatalf("the stand-in: %v", err)
	}
	for i, app := range s.subject.world.Apps {
		if other := s.standIn.world.Apps[i]; app.Consumer != other.Consumer {
			s.t.Fatalf("the participant allocates party %s, the stand-in %s: the story needs parties in the participant's own namespace", app.Consumer, other.Consumer)
		}
		s.recorder.Fact(fmt.Sprintf("app%d", i+1), map[string]any{"consumer": app.Consumer, "threshold": app.Threshold, "root": app.Root, "integrator": app.Integrator.ContractID})
	}
	w := s.subject.world
	for name, id := range map[string]string{
		"operator": w.Operator, "guardian_governance": w.GuardianGovernance, "guardian_observer": w.GuardianObserver,
		"core_state": w.CoreState, "replay_root_registry": w.ReplayRootRegistry, "emitter_registry": w.EmitterRegistry,
		"participant_id": s.participant, "version": s.report.version,
	} {
		s.recorder.Fact(name, id)
	}
}

// serve starts the service with a database of its own. It reads as app 1's consumer beside the operator, so that it sees what others make in
// that consumer's name.
func (s *story) serve() {
	w := s.subject.world
	config := s.settings.participant()
	for key, value := range map[string]string{
		"participant.read_as":         fmt.Sprintf("[%q, %q]", w.Operator, w.Apps[0].Consumer),
		"participant.poll_interval":   "200ms",
		"anchors.operators":           fmt.Sprintf("[%q]", w.Operator),
		"anchors.guardian_governance": fmt.Sprintf("%q", w.GuardianGovernance),
		"database.url_file":           fmt.Sprintf("%q", proctest.File(s.root, "database-url", pgtest.Database(s.root))),
		"database.lease_ttl":          "3s",
		"api.expiry_margin":           "1m",
		"api.rate_per_caller":         "0",
	} {
		config[key] = value
	}
	s.service = newService(s.root, config)
	if err := s.service.waitReady(s.ctx); err != nil {
		s.t.Fatal(err)
	}
	s.connectService(s.root)
}
