package kernel_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// chart runs code that leaves one figure and returns its chart.
func (b *box) chart(code string) map[string]any {
	b.t.Helper()
	r := b.run("import matplotlib.pyplot as plt, datetime\n" + code)
	for _, line := range r.find("result") {
		if chart, ok := line["chart"].(map[string]any); ok {
			require.NotEmpty(b.t, line["png"])
			return chart
		}
	}
	b.t.Fatalf("no chart from %s: %.2000v", code, r.lines)
	return nil
}

func TestChartsOfFigures(t *testing.T) {
	b := start(t)
	point := func(x, y any) any { return []any{x, y} }
	element := func(chart map[string]any, i int) map[string]any { return chart["elements"].([]any)[i].(map[string]any) }

	line := b.chart("plt.plot([1, 2], [3, 4], label='a'); plt.plot([1], [1]); plt.axhline(2)\nplt.xlabel('Time (s)'); plt.ylabel('Level'); plt.title('T')")
	require.Equal(t, "line", line["type"])
	require.Equal(t, "T", line["title"])
	require.Equal(t, "Time (s)", line["x_label"])
	require.Equal(t, "s", line["x_unit"])
	require.Nil(t, line["y_unit"])
	require.Contains(t, line, "y_unit", "the clients want the key")
	require.Equal(t, "linear", line["x_scale"])
	require.Len(t, line["x_tick_labels"], len(line["x_ticks"].([]any)))
	require.Len(t, line["elements"], 2)
	require.Equal(t, map[string]any{"label": "a", "points": []any{point(1.0, 3.0), point(2.0, 4.0)}}, element(line, 0))

	dated := b.chart("plt.plot([datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 3)], [1, 2]); plt.yscale('log')")
	require.Equal(t, "datetime", dated["x_scale"])
	require.Equal(t, "log", dated["y_scale"])
	require.Equal(t, point("2024-01-02T00:00:00+00:00", 1.0), element(dated, 0)["points"].([]any)[0])

	scatter := b.chart("plt.scatter(['x', 'y'], [3, 4], label='s')")
	require.Equal(t, "scatter", scatter["type"])
	require.Equal(t, "categorical", scatter["x_scale"])
	require.Equal(t, []any{point("x", 3.0), point("y", 4.0)}, element(scatter, 0)["points"])

	bar := b.chart("plt.bar(['p', 'q'], [5, 6], label='books')")
	require.Equal(t, "bar", bar["type"])
	require.Equal(t, map[string]any{"label": "q", "group": "books", "value": 6.0}, element(bar, 1))
	require.Equal(t, "p", element(b.chart("plt.barh(['p', 'q'], [5, 6])"), 0)["label"])

	pie := b.chart("plt.pie([1, 3], labels=['u', 'v'])")
	require.Equal(t, "pie", pie["type"])
	require.Equal(t, "v", element(pie, 1)["label"])
	require.InDelta(t, 270, element(pie, 1)["angle"], 0.01)

	for _, style := range []string{"", ", patch_artist=True", ", orientation='horizontal'"} {
		boxes := b.chart("r = plt.boxplot([[1, 2, 3, 4, 5, 30], [2, 4, 6]]" + style + ")")
		require.Equal(t, "box_and_whisker", boxes["type"], style)
		require.Equal(t, map[string]any{"label": "1", "min": 1.0, "first_quartile": 2.25, "median": 3.5, "third_quartile": 4.75, "max": 5.0, "outliers": []any{30.0}}, element(boxes, 0))
		require.Equal(t, "2", element(boxes, 1)["label"])
	}

	super := b.chart("f, (l, r) = plt.subplots(1, 2); l.plot([1]); r.bar(['a'], [1]); f.suptitle('both')")
	require.Equal(t, "superchart", super["type"])
	require.Equal(t, "both", super["title"])
	require.Equal(t, "line", element(super, 0)["type"])
	require.Equal(t, "bar", element(super, 1)["type"])

	require.Equal(t, "unknown", b.chart("plt.imshow([[1, 2]])")["type"])
}
