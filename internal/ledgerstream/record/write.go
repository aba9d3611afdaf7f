package record

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The files of a scenario's folder.
const (
	CallsFile  = "calls.jsonl"
	FactsFile  = "facts.json"
	ReadmeFile = "README.md"
)

// Write writes the scenario's folder, making it where it is not. It can be called again later: it then writes all anew.
func (r *Recorder) Write(dir string) error {
	calls, err := r.callsFile()
	if err != nil {
		return fmt.Errorf("write recording %s: %w", r.options.Name, err)
	}
	r.mu.Lock()
	facts, err := json.MarshalIndent(r.facts, "", " ")
	readme := r.readme()
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write recording %s: its facts: %w", r.options.Name, err)
	}
	if r.options.Compress {
		if calls, err = compressed(calls); err != nil {
			return fmt.Errorf("write recording %s: %w", r.options.Name, err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write recording %s: %w", r.options.Name, err)
	}
	for name, content := range map[string][]byte{r.CallsFile(): calls, FactsFile: append(facts, '\n'), ReadmeFile: []byte(readme)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write recording %s: %w", r.options.Name, err)
		}
	}
	return nil
}

// CallsFile is the name of the folder's file of calls: CallsFile, or that with ".gz" where they are compressed.
func (r *Recorder) CallsFile() string {
	if r.options.Compress {
		return CallsFile + ".gz"
	}
	return CallsFile
}

func compressed(content []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return out.Bytes(), nil
}

// callsFile is the content of calls.jsonl.
func (r *Recorder) callsFile() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out bytes.Buffer
	for _, c := range r.calls {
		written := c.line
		if !c.ended {
			written.Status = statusLine{Code: "Canceled", CodeNumber: 1, Message: "context canceled", EndedByClient: "the call was still open when the recording was written"}
			written.ElapsedMS = inMilliseconds(time.Since(c.begun))
		}
		if left := c.received - len(written.Responses); left > 0 {
			written.ResponsesCapped = fmt.Sprintf("%d of %d responses kept", len(written.Responses), c.received)
		}
		encoded, err := json.Marshal(written)
		if err != nil {
			return nil, fmt.Errorf("call %d (%s): %w", written.N, written.Method, err)
		}
		out.Write(encoded)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// readme is the folder's description. The lock must be held.
func (r *Recorder) readme() string {
	failed := 0
	byMethod := map[string]int{}
	for _, c := range r.calls {
		byMethod[strings.TrimPrefix(c.line.Method, "/com.daml.ledger.api.v2.")]++
		if c.line.Status.CodeNumber != 0 {
			failed++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", r.options.Name, r.options.About)
	if len(r.calls) > 0 {
		fmt.Fprintf(&b, "Recorded %s UTC: %d calls in %s, %d of them not OK.", r.calls[0].line.StartedAt.Format("2006-01-02 15:04"), len(r.calls), r.CallsFile(), failed)
	} else {
		b.WriteString("Nothing was recorded.")
	}
	fmt.Fprintf(&b, " Ids in %s.\n\n"+
		"One RPC a line, in the order of start. A response's raw_b64 is the message's bytes as they came, msg the same by the stubs, stub_unknown the fields\n"+
		"that those do not know. Tokens are removed; request_note and responses_capped say what else was left out.\n\n| method | calls |\n|---|---|\n", FactsFile)
	for _, method := range slices.Sorted(maps.Keys(byMethod)) {
		fmt.Fprintf(&b, "| %s | %d |\n", method, byMethod[method])
	}
	return b.String()
}
