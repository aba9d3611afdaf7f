package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// IndexLevels are the sizes of the index at one moment.
type IndexLevels struct {
	Offset                           int64
	Scopes, Nodes, Digests           int
	Contracts, Unverifiable, Missing int
	// Classes counts contracts by template and class, both of fixed sets.
	Classes map[TemplateClass]int
	// Findings counts the audit's findings by kind, zeroes included.
	Findings map[string]int
}

// TemplateClass is a template's name and what the policy makes of a contract.
type TemplateClass struct{ Template, Class string }

// Index is the metrics of the index. Its methods can be called concurrently.
type Index struct {
	levels                                  *sampled
	offset, scopes, nodes, digests          *prometheus.Desc
	contracts, unverifiable, missing, found *prometheus.Desc
	commitSeconds                           *prometheus.HistogramVec
	oddities                                *prometheus.CounterVec
	templates, classes, kinds, odd          bounded
}

func newIndex(registry *prometheus.Registry) *Index {
	x := &Index{levels: &sampled{}}
	x.offset = x.levels.desc("disclosured_index_offset", "The ledger offset at which the index stands.")
	x.scopes = x.levels.desc("disclosured_index_scopes", "Replay tries known.")
	x.nodes = x.levels.desc("disclosured_index_nodes", "Active replay nodes that count.")
	x.digests = x.levels.desc("disclosured_index_digests", "Digests that these nodes hold.")
	x.contracts = x.levels.desc("disclosured_index_contracts", "Contracts held, by template and by what the policy makes of them.", "template", "class")
	x.unverifiable = x.levels.desc("disclosured_index_unverifiable_contracts", "Contracts whose blob could not be checked in full and that are served all the same.")
	x.missing = x.levels.desc("disclosured_index_missing_digests", "Digests that a trie once held and holds no more.")
	x.found = x.levels.desc("disclosured_index_findings", "Findings of the audit by kind.", "kind")
	registry.MustRegister(x.levels)
	x.commitSeconds = histogram(registry, "disclosured_index_commit_seconds", "Time of one commit of the index's store.", latency)
	x.oddities = counter(registry, "disclosured_index_oddities_total", "What a stream brought that a clean one does not, and was tolerated.", "what")
	return x
}

// Watch gives the function that is asked for the levels at each scrape; ok is false where there is no index yet.
func (x *Index) Watch(levels func() (l IndexLevels, ok bool)) {
	x.levels.watch(func(emit func(*prometheus.Desc, float64, ...string)) {
		l, ok := levels()
		if !ok {
			return
		}
		emit(x.offset, float64(l.Offset))
		emit(x.scopes, float64(l.Scopes))
		emit(x.nodes, float64(l.Nodes))
		emit(x.digests, float64(l.Digests))
		emit(x.unverifiable, float64(l.Unverifiable))
		emit(x.missing, float64(l.Missing))
		// Values that are cut to "other" may meet: they are summed, for a scrape with a series twice fails whole.
		classes := map[TemplateClass]int{}
		for key, n := range l.Classes {
			classes[TemplateClass{x.templates.value(key.Template), x.classes.value(key.Class)}] += n
		}
		for key, n := range classes {
			emit(x.contracts, float64(n), key.Template, key.Class)
		}
		found := map[string]int{}
		for kind, n := range l.Findings {
			found[x.kinds.value(kind)] += n
		}
		for kind, n := range found {
			emit(x.found, float64(n), kind)
		}
	})
}

// Committed reports a commit of the store.
func (x *Index) Committed(took time.Duration) {
	x.commitSeconds.WithLabelValues().Observe(took.Seconds())
}

// Oddity counts n things of a kind, as an archive of a contract that was not known.
func (x *Index) Oddity(what string, n int) {
	if n > 0 {
		x.oddities.WithLabelValues(x.odd.value(what)).Add(float64(n))
	}
}
