package e2b

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	// maxMetricIDs is how many sandboxes one request may ask for.
	maxMetricIDs = 100
	// maxPoints is the most of one answer: two hours' at one in 5 s. Points of a
	// longer time are put together, as E2B does.
	maxPoints = 1440
	// recent is how far back the latest point of a sandbox may lie.
	recent = time.Minute
)

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
	points = thin(points)
	answer := make([]wireMetric, len(points)) // an empty list is [], not null
	for i, point := range points {
		answer[i] = encodeMetric(point)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// thin puts neighbouring points together until there are no more than maxPoints:
// the mean of processor time, the most of everything else, at the last one's time.
func thin(points []sandbox.Metric) []sandbox.Metric {
	together := (len(points) + maxPoints - 1) / maxPoints
	if together <= 1 {
		return points
	}
	var thinned []sandbox.Metric
	for group := range slices.Chunk(points, together) {
		one := group[len(group)-1]
		one.CPUPercent = 0
		for _, p := range group {
			one.CPUPercent += p.CPUPercent / float64(len(group))
			one.MemoryBytes = max(one.MemoryBytes, p.MemoryBytes)
			one.MemoryCacheBytes = max(one.MemoryCacheBytes, p.MemoryCacheBytes)
			one.DiskBytes = max(one.DiskBytes, p.DiskBytes)
		}
		thinned = append(thinned, one)
	}
	return thinned
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
		end := time.Now()
		if info.State == sandbox.Paused {
			end = info.EndAt // of the pause
		}
		points, err := a.sandboxes.Metrics(id, end.Add(-recent), time.Time{})
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
