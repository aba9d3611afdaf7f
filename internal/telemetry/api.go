package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API is the metrics of the service's calls. Its methods can be called concurrently.
type API struct {
	calls, refused   *prometheus.CounterVec
	seconds          *prometheus.HistogramVec
	inFlight         *prometheus.GaugeVec
	panics           prometheus.Counter
	connections      prometheus.Gauge
	levels           *sampled
	ready            *prometheus.Desc
	turnedAway       *prometheus.CounterVec
	methods, reasons bounded
	limits           bounded
}

func newAPI(registry *prometheus.Registry) *API {
	a := &API{
		levels:  &sampled{},
		calls:   counter(registry, "disclosured_api_calls_total", `Calls by method and outcome: "OK" or the error's reason.`, "method", "outcome"),
		refused: counter(registry, "disclosured_api_refused_total", "Calls refused by a limit, by reason.", "reason"),
		seconds: histogram(registry, "disclosured_api_call_seconds", `Time of calls by method and outcome: ok, limited (refused by a limit) or error. Waits that a caller asked for, or was put to by its rate, are left out.`, latency, "method", "outcome"),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "disclosured_api_calls_in_flight", Help: "Calls in progress, by method.",
		}, []string{"method"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "disclosured_api_panics_total", Help: "Panics in calls: faults of this service.",
		}),
	}
	a.ready = a.levels.desc("disclosured_ready", "1 where the service is ready, as /readyz and grpc.health say it, else 0.")
	registry.MustRegister(a.levels)
	a.connections = prometheus.NewGauge(prometheus.GaugeOpts{Name: "disclosured_api_connections", Help: "Open connections of callers."})
	registry.MustRegister(a.inFlight, a.panics, a.connections)
	a.turnedAway = counter(registry, "disclosured_api_connections_refused_total", "Connections closed because there were too many, as they came or to make room for one that came, by whose limit: server or caller.", "limit_of")
	fromZero(a.refused, &a.reasons, "RATE_LIMITED", "TOO_MANY_CALLS", "TOO_MANY_STREAMS")
	fromZero(a.turnedAway, &a.limits, "server", "caller")
	return a
}

// CallStarted is followed by one CallDone of the same method.
func (a *API) CallStarted(method string) {
	a.inFlight.WithLabelValues(a.methods.value(method)).Inc()
}

// CallDone reports a call's outcome, "OK" or an error's reason, and its time without waits.
func (a *API) CallDone(method, outcome string, took time.Duration) {
	method, outcome = a.methods.value(method), a.reasons.value(outcome)
	a.inFlight.WithLabelValues(method).Dec()
	a.calls.WithLabelValues(method, outcome).Inc()
	// Of the outcomes only their kinds: each series of a histogram is eighteen.
	kind := "error"
	switch outcome {
	case "OK":
		kind = "ok"
	case "RATE_LIMITED", "TOO_MANY_CALLS", "TOO_MANY_STREAMS":
		kind = "limited"
		a.refused.WithLabelValues(outcome).Inc()
	}
	a.seconds.WithLabelValues(method, kind).Observe(took.Seconds())
}

// WatchReady gives the function that is asked at each scrape whether the service is ready.
func (a *API) WatchReady(ready func() bool) {
	a.levels.watch(func(emit func(*prometheus.Desc, float64, ...string)) { emit(a.ready, oneIf(ready())) })
}

// Connected counts a connection that was opened or, where open is false, closed.
func (a *API) Connected(open bool) {
	if open {
		a.connections.Inc()
	} else {
		a.connections.Dec()
	}
}

// ConnectionRefused counts a connection that was one too many.
func (a *API) ConnectionRefused(limitOf string) {
	a.turnedAway.WithLabelValues(a.limits.value(limitOf)).Inc()
}

// Panicked counts a panic in a call.
func (a *API) Panicked() { a.panics.Inc() }
