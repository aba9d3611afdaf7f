//go:build ignore

// Extract gathers the distinct created event blobs of recorded calls, with the events that they came with, into
// recorded.jsonl.gz, and the blobs that were altered before they were submitted into altered.jsonl.gz:
//
//	go run testdata/extract.go <folder with the recordings>
//
// See README.md beside it for where the recordings are from.
package main

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

type call struct {
	N            int             `json:"n"`
	Note         string          `json:"note"`
	Request      json.RawMessage `json:"request"`
	RequestBody  string          `json:"request_body"`
	ResponseBody string          `json:"response_body"`
	Responses    []struct {
		Msg any `json:"msg"`
	} `json:"responses"`
	Status any `json:"status"`
}

type record struct {
	Scenario    string `json:"scenario"`
	Blob        string `json:"blob"`
	ContractID  any    `json:"contractId,omitempty"`
	TemplateID  any    `json:"templateId,omitempty"`
	PackageName any    `json:"packageName,omitempty"`
	Signatories any    `json:"signatories,omitempty"`
	Observers   any    `json:"observers,omitempty"`
	CreatedAt   any    `json:"createdAt,omitempty"`
	Argument    any    `json:"argument,omitempty"`
}

type altered struct {
	Scenario string `json:"scenario"`
	N        int    `json:"n"`
	Note     string `json:"note"`
	Blob     string `json:"blob"`
	// Verdict is the name of the participant's error, or "OK".
	Verdict string `json:"verdict"`
}

var (
	blobText    = regexp.MustCompile(`createdEventBlob"\s*:\s*"([^"]+)"`)
	verdictName = regexp.MustCompile(`[A-Z][A-Z_]{6,}`)
)

func main() {
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*", "calls.jsonl*"))
	if err != nil || len(files) == 0 {
		log.Fatalf("no recordings in %s: %v", os.Args[1], err)
	}
	sort.Strings(files)
	events := map[string]*record{}
	var order []string
	add := func(r *record) {
		old, ok := events[r.Blob]
		if !ok {
			order = append(order, r.Blob)
		}
		if !ok || !labelled(old.Argument) && labelled(r.Argument) {
			events[r.Blob] = r
		}
	}
	var calls []call
	var scenarios []string
	for _, file := range files {
		scenario := filepath.Base(filepath.Dir(file))
		for _, c := range read(file) {
			calls, scenarios = append(calls, c), append(scenarios, scenario)
			for _, r := range c.Responses {
				walk(r.Msg, func(event map[string]any) {
					add(&record{
						Scenario: scenario, Blob: event["createdEventBlob"].(string), ContractID: event["contractId"],
						TemplateID: event["templateId"], PackageName: event["packageName"], Signatories: event["signatories"],
						Observers: event["observers"], CreatedAt: event["createdAt"], Argument: event["createArguments"],
					})
				})
			}
			for _, m := range blobText.FindAllStringSubmatch(c.ResponseBody, -1) {
				add(&record{Scenario: scenario, Blob: m[1]})
			}
		}
	}
	var recorded, changed []any
	for _, blob := range order {
		recorded = append(recorded, events[blob])
	}
	seen := map[string]bool{}
	for i, c := range calls {
		text := c.Note
		if !strings.HasPrefix(text, "tampered") && !strings.HasPrefix(text, "blob ") && !strings.HasPrefix(text, "BLOB ") {
			continue
		}
		for _, m := range blobText.FindAllStringSubmatch(string(c.Request)+c.RequestBody, -1) {
			// What is not standard base64 is no blob at all.
			if _, err := base64.StdEncoding.DecodeString(m[1]); err != nil || events[m[1]] != nil || seen[m[1]] {
				continue
			}
			seen[m[1]] = true
			verdict := "OK"
			switch s := c.Status.(type) {
			case map[string]any:
				if s["code"] != "OK" {
					verdict = verdictName.FindString(s["message"].(string))
				}
			case float64:
				if s != 200 {
					verdict = verdictName.FindString(c.ResponseBody)
				}
			}
			changed = append(changed, altered{scenarios[i], c.N, c.Note, m[1], verdict})
		}
	}
	write("testdata/recorded.jsonl.gz", recorded)
	write("testdata/altered.jsonl.gz", changed)
	log.Printf("%d blobs, %d altered", len(recorded), len(changed))
}

func labelled(argument any) bool {
	r, ok := argument.(map[string]any)
	return ok && r["recordId"] != nil
}

// walk calls found for every created event in a message that has a blob.
func walk(v any, found func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		if blob, _ := v["createdEventBlob"].(string); blob != "" {
			found(v)
			return
		}
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			walk(v[k], found)
		}
	case []any:
		for _, e := range v {
			walk(e, found)
		}
	}
}

func read(file string) (calls []call) {
	f, err := os.Open(file)
	check(err)
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		r, err = gzip.NewReader(f)
		check(err)
	}
	lines := bufio.NewReader(r)
	d := json.NewDecoder(lines)
	for {
		var c call
		if err := d.Decode(&c); err == io.EOF {
			return calls
		} else {
			check(err)
		}
		calls = append(calls, c)
	}
}

func write(file string, rows []any) {
	f, err := os.Create(file)
	check(err)
	w, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	check(err)
	e := json.NewEncoder(w)
	for _, row := range rows {
		check(e.Encode(row))
	}
	check(w.Close())
	check(f.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
