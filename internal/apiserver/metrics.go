package apiserver

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics counts requests by route pattern and status; neither label grows with use.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	upgrades prometheus.Gauge
	handler  http.Handler
	cells    sync.Map // routeStatus -> cell, so that a request costs no label look-up
}

type routeStatus struct {
	route  string
	status int
}

type cell struct {
	count   prometheus.Counter
	seconds prometheus.Observer
}

func newMetrics(reg *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dsec_http_requests_total", Help: "Requests by route pattern and status; 499: the client left before the answer.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dsec_http_request_seconds", Help: "Time from a request's header to the end of its answer.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"route"}),
		upgrades: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dsec_aether_connections", Help: "Connections upgraded to the aether protocol that are open.",
		}),
		handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.seconds), reg.Register(m.upgrades))
}

func (m *metrics) observe(route string, status int, took time.Duration) {
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

// isPublic tells whether a request needs no token: the health checks, what the interface is, and the metrics for somebody
// on this very machine, because a scraper there has no token and the labels name no sandbox and no project. A proxy on
// this machine makes others look local, so what was forwarded needs the token.
func isPublic(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/readyz", "/openapi.json", "/docs":
		return true
	case "/metrics":
		return isLocal(r)
	}
	return false
}

func isLocal(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
