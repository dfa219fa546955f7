package edge

import (
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the edge's figures. No label ever holds an id.
type metrics struct {
	states     *prometheus.GaugeVec        // sandboxes by state
	counts     map[api.State]*atomic.Int64 // the same, for who must not wait for a sandbox
	creates    *prometheus.CounterVec      // by result: "ok" or the error's code
	adoptions  *prometheus.CounterVec      // by result: adopted, gone, failed
	execs      *prometheus.CounterVec      // by kind (quick, kept) and result: "ok", "client_left" or the error's code
	pauses     *prometheus.CounterVec      // by result: "ok" or the error's code
	resumes    *prometheus.CounterVec      // as pauses
	durations  *prometheus.HistogramVec    // of create, pause, resume and stop
	saveFaults prometheus.Counter          // records and events that couldn't be written
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		states:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "dsec_sandboxes", Help: "Sandboxes by state."}, []string{"state"}),
		creates:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_sandbox_creates_total", Help: "Creates by result."}, []string{"result"}),
		adoptions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_sandbox_adoptions_total", Help: "Sandboxes found at start by result."}, []string{"result"}),
		execs:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_execs_total", Help: "Commands by kind and result."}, []string{"kind", "result"}),
		pauses:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_sandbox_pauses_total", Help: "Pauses by result."}, []string{"result"}),
		resumes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dsec_sandbox_resumes_total", Help: "Resumes by result, however many requests waited for each."}, []string{"result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dsec_sandbox_seconds", Help: "Time of sandbox operations.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"op"}),
		saveFaults: prometheus.NewCounter(prometheus.CounterOpts{Name: "dsec_record_faults_total", Help: "Records and events that couldn't be written."}),
	}
	for _, c := range []prometheus.Collector{m.states, m.creates, m.adoptions, m.execs, m.pauses, m.resumes, m.durations, m.saveFaults} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	m.counts = map[api.State]*atomic.Int64{}
	for _, s := range api.States() {
		m.states.WithLabelValues(string(s))
		m.counts[s] = new(atomic.Int64)
	}
	return m, nil
}

func (m *metrics) state(from, to api.State) {
	if from != "" {
		m.states.WithLabelValues(string(from)).Dec()
		m.counts[from].Add(-1)
	}
	if to != "" {
		m.states.WithLabelValues(string(to)).Inc()
		m.counts[to].Add(1)
	}
}

func (m *metrics) took(op string, since time.Time) {
	m.durations.WithLabelValues(op).Observe(time.Since(since).Seconds())
}

// turned notes a pause or a resume.
func (m *metrics) turned(of *prometheus.CounterVec, op string, since time.Time, err error) {
	of.WithLabelValues(result(err)).Inc()
	if err == nil {
		m.took(op, since)
	}
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return string(api.AsError(err).Code)
}
