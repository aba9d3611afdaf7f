package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// GuardLevels are the sizes of the replay guard at one moment. With a shared store they are the store's, and each process that shares it
// shows the same ones.
type GuardLevels struct {
	// Live is how many reservations are live, MaxEntries how many there may be at most.
	Live, MaxEntries int
	// Clients is how many clients are remembered, MaxLive how many live reservations each of them may have.
	Clients, MaxLive int
	// HighestShare is the greatest share of its quota of live reservations that any client has, ClientsAtLimit how many clients can't
	// reserve another id now because of their quota. Who they are is told nowhere.
	HighestShare   float64
	ClientsAtLimit int
	// Lapsed is how many reservations were forgotten unsettled since the store began.
	Lapsed int64
}

// Guard is the metrics of the replay guard. Its methods can be called concurrently.
type Guard struct {
	levels                                     *sampled
	live, maxEntries, clients, maxLive, lapsed *prometheus.Desc
	highestShare, clientsAtLimit               *prometheus.Desc
	reservations                               *prometheus.CounterVec
	takeovers                                  prometheus.Counter
	settleAge                                  *prometheus.HistogramVec
	outcomes, settled                          bounded
}

func newGuard(registry *prometheus.Registry) *Guard {
	g := &Guard{levels: &sampled{}}
	g.live = g.levels.desc("disclosured_guard_live_reservations", "Live reservations of the replay guard; its store's, where several processes share one.")
	g.maxEntries = g.levels.desc("disclosured_guard_max_reservations", "How many live reservations there may be at most.")
	g.clients = g.levels.desc("disclosured_guard_clients", "Clients that the replay guard remembers.")
	g.maxLive = g.levels.desc("disclosured_guard_max_reservations_per_client", "How many live reservations each client may have.")
	g.highestShare = g.levels.desc("disclosured_guard_quota_highest_share", "Greatest share of its quota of live reservations that any client has, from 0 to 1.")
	g.clientsAtLimit = g.levels.desc("disclosured_guard_clients_at_quota", "Clients that can't reserve another id now because of their quota: live reservations, rate or standing.")
	g.lapsed = g.levels.counter("disclosured_guard_lapsed_total", "Reservations that were forgotten without having been settled, since the store began.")
	registry.MustRegister(g.levels)
	g.reservations = counter(registry, "disclosured_guard_reservations_total", "Requests for a reservation by outcome: reserved, again, already_received, consumed, why the guard could not take it, or an error's reason.", "outcome")
	g.takeovers = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "disclosured_guard_takeovers_total", Help: "Reservations of what an earlier holder had let lapse, where that was still known.",
	})
	registry.MustRegister(g.takeovers)
	g.settleAge = histogram(registry, "disclosured_guard_settle_age_seconds", "Age of a reservation when it was settled, by outcome.",
		[]float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200}, "outcome")
	return g
}

// Watch gives the function that is asked for the levels at each scrape; ok is false where they can't be had.
func (g *Guard) Watch(levels func() (l GuardLevels, ok bool)) {
	g.levels.watch(func(emit func(*prometheus.Desc, float64, ...string)) {
		l, ok := levels()
		if !ok {
			return
		}
		emit(g.live, float64(l.Live))
		emit(g.maxEntries, float64(l.MaxEntries))
		emit(g.clients, float64(l.Clients))
		emit(g.maxLive, float64(l.MaxLive))
		emit(g.highestShare, l.HighestShare)
		emit(g.clientsAtLimit, float64(l.ClientsAtLimit))
		emit(g.lapsed, float64(l.Lapsed))
	})
}

// Reserved reports the end of a request for a reservation.
func (g *Guard) Reserved(outcome string) {
	g.reservations.WithLabelValues(g.outcomes.value(outcome)).Inc()
}

// TookOver counts a reservation of what an earlier holder had let lapse.
func (g *Guard) TookOver() { g.takeovers.Inc() }

// Settled reports how old a reservation was when it was settled.
func (g *Guard) Settled(outcome string, age time.Duration) {
	g.settleAge.WithLabelValues(g.settled.value(outcome)).Observe(age.Seconds())
}
