package api

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// ListScopes implements DisclosureService. A list of several pages is of one view: the server keeps the view for a while, and a
// page token names it.
func (s *Service) ListScopes(ctx context.Context, req *disclosurev1.ListScopesRequest) (*disclosurev1.ListScopesResponse, error) {
	var c checks
	filter := index.ScopeSelector{
		Consumer:    c.party("consumer", req.GetConsumer(), false),
		Operator:    c.party("operator", req.GetOperator(), false),
		PackageName: c.packageName("package_name", req.GetPackageName()),
	}
	size := c.bounded("page_size", req.GetPageSize(), MaxPageSize, DefaultPageSize)
	token, continued := c.pageToken("page_token", req.GetPageToken())
	opts := c.read("read", req.GetRead())
	if err := c.err(); err != nil {
		return nil, err
	}
	return answerWith(ctx, s, opts, nil, func(ctx context.Context, r *reading) (*disclosurev1.ListScopesResponse, error) {
		if continued {
			kept, ok := s.pages.get(token.view)
			if !ok || token.view.filter != filterSum(filter) || !r.view.Continues(kept.view) ||
				// A list that was fresh when it was begun may be read to its end; each page tells how old it is by then.
				unready(kept.status, kept.view, r.now, s.cfg.FreshnessBound+keptViewTime, opts.allowStale) != nil {
				return nil, failure(PageTokenExpired, "the page token's place on the ledger is no longer kept, or it belongs to another filter or replica")
			}
			r.view, r.status = kept.view, kept.status
		}
		scopes := slices.DeleteFunc(r.view.Scopes(), func(scope index.Scope) bool { return !filter.Matches(scope) })
		answer := &disclosurev1.ListScopesResponse{Answer: s.answer(r)}
		from := min(token.next, len(scopes))
		to := min(from+size, len(scopes))
		for _, scope := range scopes[from:to] {
			stats, err := r.view.ScopeStats(scope)
			if err != nil {
				return nil, err
			}
			answer.Scopes = append(answer.Scopes, &disclosurev1.ScopeInfo{
				Scope:           scopeMessage(scope),
				ActiveNodes:     int64(stats.Nodes),
				ConsumedDigests: int64(stats.Digests),
				DeepestPrefix:   int32(stats.Deepest),
				Findings: countMap(map[index.FindingKind]int{
					index.FindingGap: stats.Gaps, index.FindingFork: stats.Forks, index.FindingLoss: stats.Losses,
				}),
			})
		}
		if to < len(scopes) {
			if !continued {
				token.view = s.pages.keep(r, filterSum(filter))
			}
			token.next = to
			answer.NextPageToken = token.String()
		}
		return answer, nil
	})
}

// filterSum ties a token to the filter of its list.
func filterSum(f index.ScopeSelector) uint64 {
	h := fnv.New64a()
	for _, part := range []string{f.Consumer, f.Operator, f.PackageName} {
		io.WriteString(h, part) // does not fail
		h.Write([]byte{0})      // no part has a NUL
	}
	return h.Sum64()
}

// pageView names a kept view: of this process, the serial-th, for lists of one filter.
type pageView struct{ process, filter, serial uint64 }

// pages keeps the views of lists that were begun. Views share what they have in common, so a kept one costs what has changed
// since.
type pages struct {
	process uint64
	now     func() time.Time

	mu     sync.Mutex
	serial uint64
	kept   []keptView // oldest first
}

type keptView struct {
	name   pageView
	view   *index.View
	status Status
	until  time.Time
}

const (
	maxKeptViews = 16
	keptViewTime = time.Minute
)

func newPages(now func() time.Time) *pages {
	var id [8]byte
	rand.Read(id[:]) // does not fail
	return &pages{process: binary.BigEndian.Uint64(id[:]), now: now}
}

// keep keeps the reading's view; lists of one view and filter share one place.
func (p *pages) keep(r *reading, filter uint64) pageView {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.kept = slices.DeleteFunc(p.kept, func(k keptView) bool { return now.After(k.until) })
	for i := range p.kept {
		if p.kept[i].view == r.view && p.kept[i].name.filter == filter {
			p.kept[i].until = now.Add(keptViewTime)
			return p.kept[i].name
		}
	}
	if len(p.kept) >= maxKeptViews {
		p.kept = slices.Delete(p.kept, 0, 1)
	}
	p.serial++
	name := pageView{p.process, filter, p.serial}
	p.kept = append(p.kept, keptView{name, r.view, r.status, now.Add(keptViewTime)})
	return name
}

func (p *pages) get(name pageView) (keptView, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kept {
		if k.name == name {
			return k, !p.now().After(k.until)
		}
	}
	return keptView{}, false
}

// Audit implements DisclosureService.
func (s *Service) Audit(ctx context.Context, req *disclosurev1.AuditRequest) (*disclosurev1.AuditResponse, error) {
	var c checks
	selector := c.scope("scope", req.GetScope(), false)
	limit := c.bounded("limit", req.GetLimit(), MaxFindings, DefaultFindings)
	opts := c.read("read", req.GetRead())
	if req.GetActivations() && !req.GetFull() {
		c.add("activations", "must not be set without full")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	// In full it walks the whole index, else all that there is to find, of which anyone can make more.
	running, refused := s.audits, "other audits are running"
	if req.GetFull() {
		running, refused = s.auditing, "another full audit is running"
	}
	return answerWith(ctx, s, opts, nil, func(_ context.Context, r *reading) (*disclosurev1.AuditResponse, error) {
		// Only now: an audit that waits for what its caller asked for would keep all others out meanwhile.
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
		default:
			return nil, failure(TooManyCalls, refused).with("limit_of", "server")
		}
		var only *index.Scope
		if selector != nil {
			scope, err := r.view.Scope(*selector)
			if err != nil {
				return nil, err
			}
			only = &scope
		}
		answer := &disclosurev1.AuditResponse{Answer: s.answer(r), Clean: true}
		var given []index.Finding
		var counts map[index.FindingKind]int
		if req.GetFull() {
			anew := r.view.Audit()
			answer.IncrementalAgrees = slices.EqualFunc(r.view.Findings(), anew, equalFindings)
			given, counts = someOf(anew, only, limit)
			hash, activations := r.view.StateHash()
			answer.StateHash, answer.Activations = hex.EncodeToString(hash[:]), int64(activations)
			if req.GetActivations() {
				if activations*activationBytes > s.cfg.MaxAnswerBytes {
					return nil, failure(AnswerTooLarge, fmt.Sprintf("the list of %d activations exceeds %d bytes", activations, s.cfg.MaxAnswerBytes)).
						with("limit_bytes", strconv.Itoa(s.cfg.MaxAnswerBytes))
				}
				for e := range r.view.Each {
					hash := e.StateHash()
					answer.Listed = append(answer.Listed, &disclosurev1.Activation{ContractId: e.ContractID, Hash: hash[:16]})
				}
			}
		} else {
			given, counts = r.view.SomeFindings(only, limit)
		}
		total := 0
		for kind, n := range counts {
			total += n
			answer.Clean = answer.Clean && (n == 0 || !kind.Serious())
		}
		answer.Truncated = total > len(given)
		answer.Counts = countMap(counts)
		answer.Findings = findings(given)
		return answer, nil
	})
}

// someOf are the first of the findings, of one scope where one is given, and how many there are of each kind.
func someOf(found []index.Finding, only *index.Scope, limit int) (given []index.Finding, counts map[index.FindingKind]int) {
	counts = map[index.FindingKind]int{}
	for _, f := range found {
		if only != nil && (f.Scope == nil || *f.Scope != *only) {
			continue
		}
		counts[f.Kind]++
		if len(given) < limit {
			given = append(given, f)
		}
	}
	return given, counts
}

// maxAudits is how many audits that are not full run at once.
const maxAudits = 4

// activationBytes is what an activation takes in an answer, with a contract id of V12.
const activationBytes = 162

// countMap has the counts that are not zero.
func countMap(counts map[index.FindingKind]int) map[string]int64 {
	m := make(map[string]int64, len(counts))
	for kind, n := range counts {
		if n > 0 {
			m[string(kind)] = int64(n)
		}
	}
	return m
}

func equalFindings(a, b index.Finding) bool {
	sameScope := a.Scope == b.Scope || a.Scope != nil && b.Scope != nil && *a.Scope == *b.Scope
	return sameScope && a.Kind == b.Kind && a.Prefix == b.Prefix && a.Count == b.Count && a.Detail == b.Detail && slices.Equal(a.ContractIDs, b.ContractIDs)
}
