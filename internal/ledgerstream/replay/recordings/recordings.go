// Package recordings holds recordings of a real participant, for tests: nothing but test code imports it, so that no binary carries
// them. README.md tells where they come from.
package recordings

import (
	"embed"
	"fmt"
	"sync"

	"github.com/disclosured/disclosured/internal/ledgerstream/replay"
)

//go:embed *.jsonl.gz
var files embed.FS

// All are all recordings, in the order of their names. They are loaded once; callers must not change them.
func All() ([]*replay.Recording, error) { return load() }

var load = sync.OnceValues(func() ([]*replay.Recording, error) {
	all, err := replay.LoadAll(files)
	if err != nil {
		return nil, fmt.Errorf("recordings: %w", err)
	}
	return all, nil
})

// Get is the recording of that name, as "02-consume-split".
func Get(name string) (*replay.Recording, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("recordings: no %q", name)
}
