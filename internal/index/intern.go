package index

import (
	"slices"
	"strings"
	"sync"

	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// interner keeps one copy of the strings that many entries have in common: parties, packages, synchronizers, namespaces. A line
// of Views shares one; each generation starts a new one, so that what is no longer used goes.
type interner struct {
	mu    sync.Mutex
	texts map[string]string
	lists map[string][]string
}

// internedMax bounds the interner: other people's parties pass through it, and anyone can make parties.
const internedMax = 100_000

func newInterner() *interner {
	return &interner{texts: map[string]string{}, lists: map[string][]string{}}
}

// entry is a new entry of the contract, of the class that the policy makes of it.
func (in *interner) entry(c *ledger.Contract, policy Policy) *Entry {
	e := &Entry{Contract: *c, Class: policy.Classify(c)}
	in.intern(e)
	return e
}

// intern makes the entry, which nobody else may have seen yet, share its strings.
func (in *interner) intern(e *Entry) {
	in.mu.Lock()
	defer in.mu.Unlock()
	e.TemplateID.PackageID = in.text(e.TemplateID.PackageID)
	e.TemplateID.Module = in.text(e.TemplateID.Module)
	e.TemplateID.Entity = in.text(e.TemplateID.Entity)
	e.PackageName = in.text(e.PackageName)
	e.SynchronizerID = in.text(e.SynchronizerID)
	e.Signatories = in.list(e.Signatories)
	e.Observers = in.list(e.Observers)
	if node, ok := e.Payload.(*wormhole.ReplayNode); ok {
		own := *node
		own.Consumer = in.text(own.Consumer)
		own.Operator = in.text(own.Operator)
		own.Namespace.Value = in.text(own.Namespace.Value)
		e.Payload = &own
	}
}

func (in *interner) text(s string) string {
	if s == "" {
		return ""
	}
	if kept, ok := in.texts[s]; ok {
		return kept
	}
	if len(in.texts) >= internedMax {
		return s
	}
	s = strings.Clone(s)
	in.texts[s] = s
	return s
}

func (in *interner) list(parties []string) []string {
	if len(parties) == 0 {
		return nil
	}
	var key []byte
	for _, p := range parties {
		key = appendText(key, p)
	}
	if kept, ok := in.lists[string(key)]; ok {
		return kept
	}
	own := slices.Clone(parties)
	for i, p := range own {
		own[i] = in.text(p)
	}
	if len(in.lists) < internedMax {
		in.lists[string(key)] = own
	}
	return own
}
