package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/devnet"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/telemetry"
)

const (
	// bootstrapUser is who submits where the participant's authorization is off.
	bootstrapUser = "disclosured-bootstrap"
	// bootstrapRetry is how long after a failed attempt the next is made, where the participant does not say.
	bootstrapRetry = 500 * time.Millisecond
)

func newBootstrapCommand() *cobra.Command {
	b := &bootstrap{}
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make a small Wormhole on a participant: packages, parties, anchors, apps",
		Long: "Make a small Wormhole for development and tests on a participant: upload the packages, allocate the parties, create the anchors (a CoreState with the public\n" +
			"development guardian, which guards nothing, and the registries) and an app with a replay trie for each threshold. Run again it takes what is there and makes\n" +
			"what is missing, so it can be run at each start. It waits for a participant that is still starting. Prints the settings with which `disclosured serve` follows it.\n\n" +
			"Where the participant's authorization is on, the token must be an administrator's; it lets its own user act as the parties. Run one at a time.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := loadConfig(cmd.Flags(), os.Environ())
			if err != nil {
				return configError{err}
			}
			var faults []error
			config.Participant.validateConnection(func(setting, format string, args ...any) {
				faults = append(faults, fmt.Errorf("%s: %s", setting, fmt.Sprintf(format, args...)))
			})
			if err := errors.Join(append(faults, b.validate())...); err != nil {
				return configError{err}
			}
			b.log, err = telemetry.NewLogger(cmd.ErrOrStderr(), telemetry.LogConfig{Format: config.Log.Format, Level: config.Log.Level})
			if err != nil {
				return configError{err}
			}
			ctx, cancel := contextWithTimeout(cmd.Context(), b.timeout)
			defer cancel()
			b.config, b.said = config, cmd.ErrOrStderr()
			return overdue(ctx, b.timeout, b.run(ctx, cmd.OutOrStdout()))
		},
	}
	flags := cmd.Flags()
	flags.Int64SliceVar(&b.options.Thresholds, "thresholds", []int64{4, 16, 128}, "an app for each, with a replay trie that splits at it")
	flags.StringVar(&b.options.Suffix, "suffix", "", "ends the names of all parties, so that several can be made on one participant")
	flags.StringVar(&b.lf, "lf", daml.DefaultLF, "the Daml-LF version of the packages: 2.2 for a synchronizer of protocol version 34, which takes no other; a participant gets one of them")
	flags.StringVar(&b.reader, "reader", "", "also make this user of the participant, who may read as the operator and nothing else, for the service")
	flags.StringVar(&b.out, "out", "", "write the settings to this file, and not to standard output: YAML, or variables where its name ends in .env")
	addTimeout(flags, &b.timeout, 5*time.Minute, "how long all of it may take, the wait for the participant included; 0 is for ever")
	addConfigFlags(flags, "participant", "log")
	return cmd
}

// bootstrap is one run of the command.
type bootstrap struct {
	options         devnet.Options
	lf, reader, out string
	timeout         time.Duration
	config          Config
	log             *slog.Logger
	// said is where it is said what was made and what was found.
	said io.Writer
}

func (b *bootstrap) validate() error {
	var faults []error
	if slices.ContainsFunc(b.options.Thresholds, func(n int64) bool { return n < 1 || n > maxSimThreshold }) {
		faults = append(faults, fmt.Errorf("--thresholds must each be in 1..%d, are %d", maxSimThreshold, b.options.Thresholds))
	}
	if b.lf != daml.LF23 && b.lf != daml.LF22 {
		faults = append(faults, fmt.Errorf("--lf must be %s or %s, is %q", daml.LF23, daml.LF22, b.lf))
	}
	if b.out != "" {
		if info, err := os.Stat(filepath.Dir(b.out)); err != nil || !info.IsDir() {
			faults = append(faults, fmt.Errorf("--out: %s is not in a folder that exists", b.out))
		}
	}
	return errors.Join(faults...)
}

// run makes what is missing. Everything in it can be done again, so whatever passes by itself is answered by doing all of it again.
func (b *bootstrap) run(ctx context.Context, out io.Writer) error {
	conn, err := dialParticipant(b.config, b.log)
	if err != nil {
		return err
	}
	defer conn.Close()
	// One tells who the user is; with authorization off there is none to ask for.
	client := submit.New(conn, bootstrapUser)
	participant, err := b.await(ctx, client)
	if err != nil {
		return err
	}
	if p := b.config.Participant; p.TokenFile != "" || p.OAuthTokenURL != "" {
		own, err := client.OwnUser(ctx)
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		b.options.User = own
		client = submit.New(conn, own)
	}
	if err := b.again(ctx, "uploading the packages", func() error { return b.upload(ctx, client) }); err != nil {
		return err
	}
	var world *devnet.World
	err = b.again(ctx, "making the devnet", func() error {
		world, err = devnet.Ensure(ctx, client, b.options, b.report)
		return err
	})
	if err != nil {
		return err
	}
	if b.reader != "" {
		made, err := client.EnsureReader(ctx, b.reader, world.Operator)
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		b.report("user", b.reader, made)
	}
	return b.write(out, participant, world)
}

func (b *bootstrap) report(what, id string, made bool) {
	did := "found"
	if made {
		did = "made"
	}
	if id == "" {
		id = "(its first root was replaced)" // of a trie: its id is its root's
	}
	fmt.Fprintf(b.said, "%-5s  %-26s %s\n", did, what, id)
}

// await asks until the participant answers and is connected to a synchronizer, without which nothing can be made.
func (b *bootstrap) await(ctx context.Context, client *submit.Client) (participant string, err error) {
	err = b.again(ctx, "waiting for the participant at "+b.config.Participant.Address, func() error {
		asking, cancel := context.WithTimeout(ctx, b.config.Participant.CallTimeout)
		defer cancel()
		if participant, err = client.ParticipantID(asking); err != nil {
			return err
		}
		synchronizers, err := client.Synchronizers(asking)
		if err == nil && len(synchronizers) == 0 {
			err = errNoSynchronizer
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if want := b.config.Participant.ID; want != "" && want != participant {
		return "", configError{fmt.Errorf("participant.id is %s, and at %s answers %s: correct one of the two", want, b.config.Participant.Address, participant)}
	}
	return participant, nil
}

var errNoSynchronizer = errors.New("it is not connected to a synchronizer yet")

// again does something until it is done, fails for good, or the context ends. What may pass is said in the log once in a while.
func (b *bootstrap) again(ctx context.Context, doing string, do func() error) error {
	var logged time.Time
	for {
		err := do()
		if err == nil {
			return nil
		}
		if config := (configError{}); errors.As(err, &config) {
			return err
		}
		pause, passes := passing(err)
		if ctx.Err() != nil || !passes {
			return advised(fmt.Errorf("bootstrap: %s: %w", doing, err), participantAdvice(err))
		}
		if time.Since(logged) >= identifyLogged {
			logged = time.Now()
			b.log.Info("trying again: "+doing, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				err = fmt.Errorf("interrupted: %w", err)
			}
			return advised(fmt.Errorf("bootstrap: %s: %w", doing, err), participantAdvice(err))
		}
	}
}

// passing tells whether an error may pass by itself, and how long to wait for that.
func passing(err error) (pause time.Duration, passes bool) {
	if errors.Is(err, errNoSynchronizer) {
		return bootstrapRetry, true
	}
	rejection := (*submit.Rejection)(nil)
	if !errors.As(err, &rejection) {
		return 0, false
	}
	if isWrongTransport(err) {
		return 0, false // whatever answers will go on to
	}
	switch rejection.Code {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		return max(rejection.RetryAfter, bootstrapRetry), true
	}
	return max(rejection.RetryAfter, bootstrapRetry), rejection.Retryable
}

// upload uploads the packages. Uploading what is there already changes nothing; another build of the same version would be refused.
func (b *bootstrap) upload(ctx context.Context, client *submit.Client) error {
	known, err := client.Packages(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{daml.WormholeCorePackage, daml.ExampleIntegratorPackage} {
		dar, err := daml.Find(name, b.lf)
		if err != nil {
			return configError{err}
		}
		found := false
		for _, p := range known {
			if p.ID == dar.PackageID {
				found = true
			} else if p.Name == dar.Name && p.Version == dar.Version {
				return configError{fmt.Errorf("the participant has another build of %s %s, %s: a version can be there once (our build for the other Daml-LF? see --lf)", p.Name, p.Version, p.ID)}
			}
		}
		if err := client.UploadDAR(ctx, dar.Bytes()); err != nil {
			return fmt.Errorf("%s %s: %w", dar.Name, dar.Version, err)
		}
		b.report("package "+dar.Name, dar.PackageID, !found)
	}
	return nil
}

// write writes what the service needs to follow the devnet.
func (b *bootstrap) write(out io.Writer, participant string, world *devnet.World) error {
	config := followWorld(b.config.Participant.Address, world)
	p := b.config.Participant
	config.Participant.ID = participant
	config.Participant.Plaintext, config.Participant.CAFile, config.Participant.ServerName = p.Plaintext, p.CAFile, p.ServerName
	tries, err := worldTries(world)
	if err != nil {
		return err
	}
	settings := config.renderChanges()
	if strings.HasSuffix(b.out, ".env") {
		settings = config.renderEnvironment()
	}
	text := "# made by `disclosured bootstrap`: the settings for `disclosured serve`, beside its token where the participant wants one\n" + settings + tries
	if b.out == "" {
		_, err := io.WriteString(out, text)
		return err
	}
	if err := replaceFile(b.out, text); err != nil {
		return fmt.Errorf("bootstrap: --out: %w", err)
	}
	fmt.Fprintf(b.said, "wrote  %s\n", b.out)
	return nil
}

// replaceFile writes a file that others may read, and whoever reads it at this moment reads the old one or the new one.
func replaceFile(path, content string) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.WriteString(content)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
