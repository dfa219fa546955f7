// Package metrics are the figures of the API server.
package metrics

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics counts requests by route pattern and status; neither label grows with use.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	Upgrades prometheus.Gauge // connections upgraded to the aether protocol that are open
	Handler  http.Handler     // shows the whole registry
	cells    sync.Map         // routeStatus -> cell, so that a request costs no label look-up
}

type routeStatus struct {
	route  string
	status int
}

type cell struct {
	count   prometheus.Counter
	seconds prometheus.Observer
}

// New makes the metrics and registers them.
func New(reg *prometheus.Registry) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dsec_http_requests_total", Help: "Requests by route pattern and status; 499: the client left before the answer.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dsec_http_request_seconds", Help: "Time from a request's header to the end of its answer.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"route"}),
		Upgrades: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dsec_aether_connections", Help: "Connections upgraded to the aether protocol that are open.",
		}),
		Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.seconds), reg.Register(m.Upgrades))
}

// Observe counts a request; the route is "" where none matched.
func (m *Metrics) Observe(route string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	key := routeStatus{route, status}
	v, ok := m.cells.Load(key)
	if !ok {
		v, _ = m.cells.LoadOrStore(key, cell{m.requests.WithLabelValues(route, strconv.Itoa(status)), m.seconds.WithLabelValues(route)})
	}
	c := v.(cell) // the map holds nothing else
	c.count.Inc()
	c.seconds.Observe(took.Seconds())
}
