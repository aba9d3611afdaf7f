// Mutants proves that the tests of the replay guard would notice if it were wrong. It breaks the guard in one way after the
// other, without touching the tree (go test -overlay), runs the tests, and wants each break to be noticed.
//
//	go run ./replayguard/testdata/mutants            the guard in memory, less than two minutes
//	go run ./replayguard/testdata/mutants -postgres  the store in PostgreSQL as well, some ten minutes more
//
// It is run from the module's root. It prints a line per mutant, with the first test that noticed it, and fails if one
// lives, or if a mutant no longer fits the code.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutant is one way to be wrong.
type mutant struct {
	name  string
	edits []edit
}

// edit replaces a text, which must be in the file exactly so many times (0 is once).
type edit struct {
	file, old, new string
	times          int
}

const (
	config = "replayguard/config.go"
	memory = "replayguard/memory.go"
	schema = "replayguard/postgres/migrations/00001_guard.sql"
)

const authentication = "\tif err := c.guard.authenticator.Authenticate(ctx, m); err != nil {\n\t\treturn false, &Refusal{Reason: NotAuthenticated, Cause: CauseAuthentication, Err: err}\n\t}\n"

// The first eight are the ways in which guards of this kind are known to have been wrong.
var inMemory = []mutant{
	{"expire one second early", []edit{{file: memory, old: "e.second.at < now;", new: "e.second.at <= now;"}, {file: memory, old: "found.expiresAt >= now", new: "found.expiresAt > now"}}},
	{"never prune", []edit{{file: memory, old: "e.second.at < now;", new: "e.second.at < now-1<<40;"}, {file: memory, old: " && found.expiresAt >= now", new: ""}}},
	{"capacity off by one: one more", []edit{{file: memory, old: "len(m.entries) >= m.limits.MaxEntries", new: "len(m.entries) > m.limits.MaxEntries"}}},
	{"capacity off by one: one less", []edit{{file: memory, old: "len(m.entries) >= m.limits.MaxEntries", new: "len(m.entries)+1 >= max(2, m.limits.MaxEntries)"}}},
	{"capacity decided before duplicate", []edit{{
		file: memory, old: "\tif ok && found.expiresAt >= now {",
		new: "\tif len(m.entries) >= m.limits.MaxEntries {\n\t\treturn Reservation{}, &Refusal{Reason: Other, Cause: CauseCapacity}\n\t}\n\tif ok && found.expiresAt >= now {",
	}}},
	{"a duplicate extends the expiry", []edit{{
		file: memory, old: "\t\treturn found.asked(r)\n",
		new: "\t\tfound.expiresAt = max(found.expiresAt, r.ExpiresAt)\n\t\tm.expiries.remove(found.entry)\n\t\tm.expiries.add(found.entry, found.expiresAt)\n\t\tm.entries[r.ID] = found\n\t\treturn found.asked(r)\n",
	}}},
	{"evict when full", []edit{{
		file: memory, old: "\t\treturn nil, &Refusal{Reason: Other, Cause: CauseCapacity,",
		new: "\t\tif first := m.expiries.next(); first != nil {\n\t\t\tm.forget(first)\n\t\t}\n\t\t_ = Refusal{Reason: Other, Cause: CauseCapacity,",
	}}},
	{"reserve before authentication", []edit{
		{file: config, old: authentication, new: ""},
		{file: config, old: "\treturn true, c.guard.submit(", new: authentication + "\treturn true, c.guard.submit("},
	}},
	{"release on rejection", []edit{{
		file: config, old: "\treturn true, c.guard.submit(ctx, m, reservation)\n",
		new: "\terr = c.guard.submit(ctx, m, reservation)\n\tif s, ok := c.guard.store.(*Memory); ok && err != nil {\n\t\ts.mu.Lock()\n\t\tdefer s.mu.Unlock()\n\t\ts.forget(s.entries[m.ID].entry)\n\t}\n\treturn true, err\n",
	}}},

	{"release on panic", []edit{{
		file: config, old: "\treturn true, c.guard.submit(ctx, m, reservation)\n",
		new: "\tdefer func() {\n\t\tif r := recover(); r != nil {\n\t\t\ts := c.guard.store.(*Memory)\n\t\t\ts.mu.Lock()\n\t\t\ts.forget(s.entries[m.ID].entry)\n\t\t\ts.mu.Unlock()\n\t\t\tpanic(r)\n\t\t}\n\t}()\n\treturn true, c.guard.submit(ctx, m, reservation)\n",
	}}},
	{"no second look at the time to live", []edit{{file: config, old: "\tif err := c.guard.validateTTL(m); err != nil {\n\t\treturn false, err\n\t}\n\treservation, err", new: "\treservation, err"}}},
	{"the sender says who it is", []edit{{file: config, old: "\tm.Client = c.client\n", new: ""}}},
	{"a nil authenticator lets everything pass", []edit{{file: config, old: "\tcase isNil(g.authenticator):\n\t\treturn errors.New(\"there is no authenticator\")\n", new: "\tcase isNil(g.authenticator):\n\t\tg.authenticator = AuthenticatorFunc(func(context.Context, Message) error { return nil })\n"}}},
	{"readmit after the clock went back", []edit{{file: memory, old: "if now < m.horizon {", new: "if false {"}}},
	{"check, then insert", []edit{
		{file: memory, old: "\t\"math\"\n", new: "\t\"math\"\n\t\"runtime\"\n"},
		{file: memory, old: "\tholder, err := m.admit(r, quota, now)\n", new: "\tm.mu.Unlock()\n\truntime.Gosched()\n\tm.mu.Lock()\n\tholder, err := m.admit(r, quota, now)\n"},
	}},
	{"another client's key opens a reservation", []edit{{file: memory, old: " && r.Client == s.holder.name", new: ""}}},
	{"quota of live reservations off by one", []edit{{file: memory, old: "holder.live >= quota.MaxLive", new: "holder.live > quota.MaxLive"}}},
	{"a refusal costs", []edit{{file: memory, old: "\tif quota.MaxLive != NoLimit &&", new: "\tholder.bucket = after\n\tif quota.MaxLive != NoLimit &&"}}},
	{"lapses cost nothing", []edit{{file: memory, old: "\t\t\te.holder.lapses++\n", new: ""}}},
	{"lapses cost for ever", []edit{{file: memory, old: "holder.bucket, holder.lapses = after, 0", new: "holder.bucket = after"}}},
	{"a token is not compared", []edit{{file: memory, old: " || e.token != c.Token", new: ""}}},
}

var inPostgres = []mutant{
	{"expire one second early", []edit{
		{file: schema, old: "IF r.expires_at >= o_now THEN", new: "IF r.expires_at > o_now THEN"},
		{file: schema, old: "AND r.expires_at < p_now", new: "AND r.expires_at <= p_now"},
	}},
	{"never prune when full", []edit{{file: schema, old: "WHERE expires_at < o_now\n            ORDER BY", new: "WHERE false ORDER BY"}}},
	{"capacity off by one: one more", []edit{{file: schema, old: "p.retained >= p_max_entries", new: "p.retained > p_max_entries", times: 2}}},
	{"capacity decided before duplicate", []edit{{
		file: schema, old: "        SELECT * INTO r FROM replayguard.reservation WHERE id = p_id;\n",
		new: "        IF NOT locked AND (SELECT retained >= p_max_entries FROM replayguard.pool) THEN\n            o_answer := 'capacity';\n            RETURN;\n        END IF;\n        SELECT * INTO r FROM replayguard.reservation WHERE id = p_id;\n",
	}}},
	{"a duplicate extends the expiry", []edit{{
		file: schema, old: "            o_expires_at := r.expires_at;\n",
		new: "            UPDATE replayguard.reservation SET expires_at = greatest(expires_at, p_expires_at) WHERE id = p_id;\n            o_expires_at := r.expires_at;\n",
	}}},
	{"evict when full", []edit{{
		file: schema, old: "        IF p.retained >= p_max_entries THEN\n            o_answer := 'capacity';\n",
		new: "        IF p.retained >= p_max_entries THEN\n            UPDATE replayguard.reservation SET expires_at = o_now - 1 WHERE id = (SELECT id FROM replayguard.reservation ORDER BY expires_at LIMIT 1);\n            PERFORM replayguard.forget(ARRAY(SELECT id FROM replayguard.reservation WHERE expires_at < o_now), o_now);\n",
	}}},
	{"reserve before authentication", inMemory[7].edits},
	{"readmit after the clock went back", []edit{{file: schema, old: "o_answer IS NULL AND o_now < p.horizon", new: "false"}}},
	{"no lock on the pool", []edit{{file: schema, old: "        PERFORM FROM replayguard.pool FOR UPDATE;\n        locked := true;", new: "        locked := true;"}}},
	{"tokens drawn before the locks", []edit{
		{file: schema, old: "    SELECT * INTO c FROM replayguard.client WHERE name = p_client FOR UPDATE;\n    LOOP\n", new: "    o_token := nextval('replayguard.token');\n    SELECT * INTO c FROM replayguard.client WHERE name = p_client FOR UPDATE;\n    LOOP\n"},
		{file: schema, old: "    o_token := nextval('replayguard.token');\n    o_reserved_at", new: "    o_reserved_at"},
	}},
	{"another client's key opens a reservation", []edit{{file: schema, old: " AND r.client = p_client THEN", new: " THEN"}}},
	{"reservations do not wait for the disk", []edit{{file: schema, old: "    PERFORM set_config('synchronous_commit', durably, true);\n", new: ""}}},
}

func main() {
	alsoPostgres := flag.Bool("postgres", false, "the store in PostgreSQL as well")
	only := flag.String("run", "", "only mutants whose name this regular expression matches")
	flag.Parse()
	if err := run(*only, *alsoPostgres); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only string, alsoPostgres bool) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	suites := []struct {
		pkg     string
		mutants []mutant
	}{{"./replayguard", inMemory}}
	if alsoPostgres {
		suites = append(suites, struct {
			pkg     string
			mutants []mutant
		}{"./replayguard/postgres", inPostgres})
	}
	lived := 0
	for _, suite := range suites {
		// A suite that fails anyway would kill them all.
		if output, err := test(suite.pkg, nil); err != nil {
			return fmt.Errorf("the tests of %s fail without any mutant: %w\n%s", suite.pkg, err, output)
		}
		for _, m := range suite.mutants {
			if !wanted.MatchString(m.name) {
				continue
			}
			output, err := test(suite.pkg, m.edits)
			var failed *exec.ExitError
			verdict := "killed by " + firstFailure(output)
			switch {
			case err == nil:
				lived++
				verdict = "LIVES"
			case !errors.As(err, &failed) || bytes.Contains(output, []byte("[build failed]")) || bytes.Contains(output, []byte("[setup failed]")):
				return fmt.Errorf("mutant %q of %s can't be tested: %w\n%s", m.name, suite.pkg, err, output)
			}
			fmt.Printf("%-20s  %-42s  %s\n", strings.TrimPrefix(suite.pkg, "./"), m.name, verdict)
		}
	}
	if lived > 0 {
		return fmt.Errorf("%d mutants live", lived)
	}
	return nil
}

// test runs a package's tests over the edited files, and gives what they said.
func test(pkg string, edits []edit) ([]byte, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, edits)
	if err != nil {
		return nil, err
	}
	const timeout = 5 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Minute)
	defer cancel()
	// A mutant is dead at its first failure, and a random test that found it need not look for a smaller example.
	return exec.CommandContext(ctx, "go", "test", "-count=1", "-failfast", "-overlay="+overlay, "-timeout="+timeout.String(), pkg,
		"-rapid.nofailfile", "-rapid.shrinktime=1ms").CombinedOutput()
}

// writeOverlay writes the edited files, and the file that tells go where they are.
func writeOverlay(dir string, edits []edit) (path string, err error) {
	edited := map[string]string{}
	for _, e := range edits {
		text, ok := edited[e.file]
		if !ok {
			original, err := os.ReadFile(e.file)
			if err != nil {
				return "", fmt.Errorf("reading what is to be mutated, from the module's root: %w", err)
			}
			text = string(original)
		}
		if n := strings.Count(text, e.old); n != max(1, e.times) {
			return "", fmt.Errorf("%s has this %d times and not %d times; adapt the mutant:\n%s", e.file, n, max(1, e.times), e.old)
		}
		edited[e.file] = strings.ReplaceAll(text, e.old, e.new)
	}
	replace := map[string]string{}
	for file, text := range edited {
		original, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		replace[original] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, content, 0o600)
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// firstFailure is the name of the test that failed first, with the names of the subtests that did.
func firstFailure(output []byte) string {
	all := failure.FindAllSubmatch(output, -1)
	if len(all) == 0 {
		return "a panic or the time limit"
	}
	name := string(all[0][1])
	for _, match := range all[1:] {
		if !strings.HasPrefix(string(match[1]), name+"/") {
			break
		}
		name = string(match[1])
	}
	return name
}
