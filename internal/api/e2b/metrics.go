package e2b

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// maxMetricIDs is how many sandboxes one request may ask for.
const maxMetricIDs = 100

// wireMetric is what a sandbox used at one moment; sizes are bytes.
type wireMetric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"` // 100 is all processors
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func encodeMetric(m sandbox.Metric) wireMetric {
	return wireMetric{
		Timestamp:     m.Time.UTC(),
		TimestampUnix: m.Time.Unix(),
		CPUCount:      m.CPUs,
		CPUUsedPct:    math.Round(m.CPUPercent*100) / 100,
		MemUsed:       m.MemoryBytes,
		MemTotal:      m.MemoryTotalBytes,
		MemCache:      m.MemoryCacheBytes,
		DiskUsed:      m.DiskBytes,
		DiskTotal:     m.DiskTotalBytes,
	}
}

// metrics answers what a sandbox used, from start to end, both included.
func (a *api) metrics(w http.ResponseWriter, r *http.Request, k store.Key) error {
	v := r.URL.Query()
	from, err := parseSeconds("start", v.Get("start"))
	if err != nil {
		return err
	}
	to, err := parseSeconds("end", v.Get("end"))
	if err != nil {
		return err
	}
	if !to.IsZero() {
		if to.Before(from) {
			return invalid("end is before start")
		}
		to = to.Add(time.Second - time.Nanosecond) // the whole of that second
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	points, err := a.sandboxes.Metrics(info.ID, from, to)
	if err != nil {
		return a.gone(r, k, info.ID, err)
	}
	answer := make([]wireMetric, len(points)) // an empty list is [], not null
	for i, point := range points {
		answer[i] = encodeMetric(point)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// latestMetrics answers the last point of each sandbox named. One that is not
// there, or has no point yet, is left out.
func (a *api) latestMetrics(w http.ResponseWriter, r *http.Request, k store.Key) error {
	ids, err := parseIDs(r.URL.Query()["sandbox_ids"])
	if err != nil {
		return err
	}
	latest := map[string]wireMetric{}
	for _, id := range ids {
		info, err := a.sandboxes.Get(id)
		if err != nil || info.KeyID != k.ID {
			continue
		}
		points, err := a.sandboxes.Metrics(id, time.Time{}, time.Time{})
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return err
		}
		if len(points) > 0 {
			latest[id] = encodeMetric(points[len(points)-1])
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Sandboxes map[string]wireMetric `json:"sandboxes"`
	}{latest})
	return nil
}

// parseIDs takes sandbox_ids=a,b as well as one id a parameter.
func parseIDs(values []string) ([]string, error) {
	var ids []string
	for id := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if id != "" {
			ids = append(ids, plainID(id))
		}
	}
	if len(ids) == 0 || len(ids) > maxMetricIDs {
		return nil, invalid("sandbox_ids names %d sandboxes: name 1 to %d, joined by commas", len(ids), maxMetricIDs)
	}
	return ids, nil
}

func parseSeconds(name, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(s, 10, 64)
	if err != nil || seconds < 0 || seconds > math.MaxInt32*100 {
		return time.Time{}, invalid("%s %q: use seconds since 1970", name, s)
	}
	return time.Unix(seconds, 0), nil
}
