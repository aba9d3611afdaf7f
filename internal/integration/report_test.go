package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// report is what the run leaves behind, as it is gathered.
type report struct {
	begun                                time.Time
	what, participant, version, packages string
	synchronizers                        []string
	scene                                string
	scenes                               []sceneRow
	refusals                             []refusalRow
	notes                                []string
	commits                              int
	// unplayed are the scenes that a note says were not played.
	unplayed map[string]bool

	mu        sync.Mutex
	latencies map[string][]time.Duration
}

type sceneRow struct {
	name, outcome string
	took          time.Duration
}

type refusalRow struct {
	scene, what, predicted string
	answer                 answer
	differences            []string
	took                   time.Duration
}

func newReport() *report {
	return &report{begun: time.Now(), latencies: map[string][]time.Duration{}, unplayed: map[string]bool{}}
}

// took keeps how long something of a kind took.
func (r *report) took(what string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latencies[what] = append(r.latencies[what], d)
}

// note keeps something worth telling of the present scene; a note that begins with "not played" says why the scene was left out.
func (r *report) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.HasPrefix(format, "not played") {
		r.unplayed[r.scene] = true
	}
	r.notes = append(r.notes, r.scene+": "+fmt.Sprintf(format, args...))
}

// outcome is the present scene's in a word or two.
func (r *report) outcome(ok bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !ok:
		return "FAILED"
	case r.unplayed[r.scene]:
		return "not played: see the notes"
	}
	return "passed"
}

// notProvoked are the refusals of a participant to disclosures and submissions that the story can't bring about, and why.
var notProvoked = [][2]string{
	{"FAILED_TO_DETERMINE_LEDGER_TIME", "a local input that is archived while the submission is interpreted: a race inside of the participant"},
	{"LOCAL_VERDICT_LEDGER_TIME_OUT_OF_BOUND", "needs a clock that is wrong, or a confirmation that takes longer than the synchronizer's tolerance"},
	{"INCONSISTENT", "the participant's own view of an input changed between interpretation and submission: a race inside of it"},
	{"UNRESOLVED_PACKAGE_NAME, PACKAGE_NAME_DISCARDED_DUE_TO_UNVETTED_PACKAGES", "an unknown name gives PACKAGE_SELECTION_FAILED, which is provoked; these come from unvetted packages and topologies of several participants"},
	{"DISCLOSED_CONTRACT_AUTHENTICATION_FAILED, INVALID_DISCLOSED_CONTRACT", "declared by Canton 3.5 and not raised; a changed blob gives the INTERPRETATION_UPGRADE_ERRORs, which are provoked"},
	{"SEQUENCER_REQUEST_FAILED", "a transaction over the synchronizer's maxRequestSize that passes the participant's own limit of a request: both are 10 MiB by default"},
	{"INVALID_DEDUPLICATION_PERIOD", "100 days were accepted by a participant whose maximum is 7 (transcript 05); nothing else makes one invalid"},
	{"REQUEST_TIME_OUT", "a submission that takes longer than the participant's tracking timeout of 5 minutes"},
}

// notWithOneSynchronizer are those beyond, where the participant is connected to one.
var notWithOneSynchronizer = [2]string{
	"SUBMITTER_ALWAYS_STAKEHOLDER, NO_SYNCHRONIZER_FOR_SUBMISSION, UNKNOWN_CONTRACT_SYNCHRONIZERS", "need a participant that is connected to two synchronizers",
}

// write writes report.md.
func (r *report) write(dir string, failed bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "report.md"), []byte(r.text(failed)), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func (r *report) text(failed bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	verdict := "passed"
	if failed {
		verdict = "FAILED"
	}
	differing := 0
	for _, row := range r.refusals {
		if len(row.differences) > 0 {
			differing++
		}
	}
	fmt.Fprintf(&b, "# Integration: %s\n\nAgainst %s: participant %s, version %s, packages %s,\nsynchronizers %s.\n\n"+
		"Begun %s UTC, took %s. %d transactions were committed on both sides; %d refusals were provoked, %d of them not as expected, predicted and simulated.\n",
		verdict, r.what, r.participant, r.version, r.packages, strings.Join(r.synchronizers, ", "),
		r.begun.UTC().Format("2006-01-02 15:04"), time.Since(r.begun).Round(time.Second), r.commits, len(r.refusals), differing)
	if failed {
		b.WriteString("Why it failed is in the test's output.\n")
	}
	b.WriteString("\n## Scenes\n\n| scene | outcome | took |\n|---|---|---|\n")
	for _, s := range r.scenes {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.name, s.outcome, s.took.Round(time.Millisecond))
	}
	if len(r.notes) > 0 {
		b.WriteString("\n## Notes\n\n")
		for _, n := range r.notes {
			fmt.Fprintf(&b, "- %s\n", n)
		}
	}
	b.WriteString("\n## Refusals\n\nPredicted is what the service had said; simulated, how the simulated participant answers the same request.\n\n" +
		"| scene | what | code | reason | the model's words | predicted | simulated | took |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.refusals {
		simulated := "the same"
		if len(row.differences) > 0 {
			simulated = "DIFFERENT: " + strings.Join(row.differences, "; ")
		}
		reason := row.answer.reason
		if reason == "" {
			reason = "(none told)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", row.scene, row.what, row.answer.code, reason, row.answer.message,
			row.predicted, simulated, row.took.Round(time.Millisecond))
	}
	b.WriteString("\nNot provoked:\n\n| reason | why |\n|---|---|\n")
	missing := notProvoked
	if len(r.synchronizers) < 2 {
		missing = append(slices.Clone(missing), notWithOneSynchronizer)
	}
	for _, n := range missing {
		fmt.Fprintf(&b, "| %s | %s |\n", n[0], n[1])
	}
	b.WriteString("\n## Latencies\n\n| what | count | median | p99 | longest |\n|---|---|---|---|---|\n")
	kinds := make([]string, 0, len(r.latencies))
	for kind := range r.latencies {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		all := slices.Sorted(slices.Values(r.latencies[kind]))
		at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].Round(100 * time.Microsecond) }
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", kind, len(all), at(0.5), at(0.99), at(1))
	}
	return b.String()
}
