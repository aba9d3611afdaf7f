package telemetry

import (
	"net/http"
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is the process's metrics.
type Metrics struct {
	Stream *Stream
	Index  *Index
	API    *API
	Guard  *Guard

	registry *prometheus.Registry
}

// New makes the metrics of a process of this version.
func New(version string) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "disclosured_build_info",
		Help:        "1, with the version as labels.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	registry.MustRegister(build)
	return &Metrics{Stream: newStream(registry), Index: newIndex(registry), API: newAPI(registry), Guard: newGuard(registry), registry: registry}
}

// Handler serves the metrics to Prometheus. How many are served at once is for who uses it to bound: a bound in here would count
// those whose clients don't read too, and refuse everybody else.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Gatherer is the metrics to read within the process.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// latency are the buckets of what should take between half a millisecond and a minute.
var latency = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// maxValues is how many values one label takes.
const maxValues = 64

// bounded is a label whose values come from outside: the first maxValues that are plain words count, everything else is "other".
type bounded struct {
	mu     sync.Mutex
	values map[string]struct{}
}

func (b *bounded) value(s string) string {
	if !plain(s) {
		return "other"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.values[s]; ok {
		return s
	}
	if len(b.values) >= maxValues {
		return "other"
	}
	if b.values == nil {
		b.values = map[string]struct{}{}
	}
	b.values[s] = struct{}{}
	return s
}

func plain(s string) bool {
	if s == "" || len(s) > 80 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}

// sampled is a collector that asks a function for its levels at each scrape. Before Watch it has none.
type sampled struct {
	descs []*prometheus.Desc
	// counters are those of descs that only grow.
	counters map[*prometheus.Desc]bool
	mu       sync.Mutex
	read     func(emit func(desc *prometheus.Desc, value float64, labels ...string))
}

func (s *sampled) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range s.descs {
		ch <- desc
	}
}

func (s *sampled) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	read := s.read
	s.mu.Unlock()
	if read == nil {
		return
	}
	read(func(desc *prometheus.Desc, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if s.counters[desc] {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	})
}

func (s *sampled) desc(name, help string, labels ...string) *prometheus.Desc {
	desc := prometheus.NewDesc(name, help, labels, nil)
	s.descs = append(s.descs, desc)
	return desc
}

// counter is a level that only grows.
func (s *sampled) counter(name, help string, labels ...string) *prometheus.Desc {
	desc := s.desc(name, help, labels...)
	if s.counters == nil {
		s.counters = map[*prometheus.Desc]bool{}
	}
	s.counters[desc] = true
	return desc
}

func (s *sampled) watch(read func(emit func(desc *prometheus.Desc, value float64, labels ...string))) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = read
}

func counter(registry prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	registry.MustRegister(c)
	return c
}

// fromZero makes the series of the values that an alert waits for. One that is first seen at 1 has not increased, to Prometheus.
func fromZero(c *prometheus.CounterVec, label *bounded, values ...string) {
	for _, v := range values {
		c.WithLabelValues(label.value(v))
	}
}

func histogram(registry prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	registry.MustRegister(h)
	return h
}
