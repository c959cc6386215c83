package kernel_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chart runs code that leaves one figure and returns its chart, nil when it has none.
func (b *box) chart(code string) map[string]any {
	b.t.Helper()
	r := b.run("import matplotlib.pyplot as plt, numpy as np, datetime\n" + code + ";")
	require.Empty(b.t, r.errorName(), "%s: %.2000v", code, r.lines)
	for _, line := range r.find("result") {
		if line["png"] == nil {
			continue
		}
		chart, _ := line["chart"].(map[string]any)
		return chart
	}
	b.t.Fatalf("no picture from %s: %.2000v", code, r.lines)
	return nil
}

// A figure is code that draws one, and where our chart is to differ from the
// one of E2B's e2b_charts: the keys of the chart, or "all" when theirs fails.
type figure struct {
	name, code string
	differs    []string
	because    string
}

const (
	noName    = "they name the n-th bar or box by the n-th tick, we by its place"
	positions = "theirs has positions on an axis of names or dates, and a line has names and dates"
	theyFail  = "they raise an exception"
	lineKeys  = "elements type x_scale x_tick_labels x_ticks y_scale y_tick_labels y_ticks"
)

var figures = []figure{
	{"line", "plt.plot([1,2,3],[4,5,6],label='a'); plt.plot([1,2],[1,3]); plt.xlabel('Time (s)'); plt.ylabel('Speed [m/s]'); plt.title('T'); plt.axhline(2); plt.grid()", nil, ""},
	{"markers", "plt.plot([1,2,3],[4,5,6],'ro')", nil, ""},
	{"level line", "plt.plot([1,2],[3,3]); plt.plot([1,2,3],[1,2,3])", []string{"elements"}, "they take a level line of two points for a grid"},
	{"log", "plt.semilogy([1,2,3],[10,100,1000]); plt.xscale('log')", nil, ""},
	{"symlog", "plt.plot([-10,0,10],[1,2,3]); plt.xscale('symlog')", nil, ""},
	{"logit", "plt.plot([1,2,3],[.1,.5,.9]); plt.yscale('logit')", nil, ""},
	{"asinh", "plt.plot([1,2,3],[.1,.5,.9]); plt.yscale('asinh')", nil, ""},
	{"function", "plt.plot([1,2,3],[1,5,9]); plt.yscale('function', functions=(lambda a: a*2, lambda a: a/2))", nil, ""},
	{"datetimes", "plt.plot([datetime.datetime(2024,1,i) for i in (1,2,3)],[1,2,3])", nil, ""},
	{"dates", "plt.plot([datetime.date(2024,1,i) for i in (1,2,3)],[1,2,3])", nil, ""},
	{"datetime64", "plt.plot(np.array(['2024-01-01','2024-01-02'],dtype='datetime64[D]'),[1,2])", nil, ""},
	{"categories", "plt.plot(['a','b','c'],[1,2,3])", nil, ""},
	{"named ticks", "plt.plot([0,1,2],[1,2,3]); plt.xticks([0,1,2],['x','y','z'])", []string{"x_scale"}, "theirs is linear when the ticks are numpy's integers"},
	{"scatter", "plt.scatter([1,2,3],[4,5,6],label='s'); plt.scatter([1,2],[1,2]); plt.axvline(2)", nil, ""},
	{"scatter of categories", "plt.scatter(['a','b'],[4,5])", []string{"elements"}, positions},
	{"scatter of dates", "plt.scatter([datetime.datetime(2024,1,1),datetime.datetime(2024,1,2)],[4,5])", []string{"elements"}, positions},
	{"bar", "plt.bar(['p','q','r'],[5,6,7],label='books'); plt.xlabel('Kind'); plt.ylabel('n (k)')", nil, ""},
	{"barh", "plt.barh(['p','q','r'],[5,6,7]); plt.xlabel('n (k)'); plt.ylabel('Kind')", nil, ""},
	{"grouped", "x=np.arange(3); plt.bar(x-.2,[1,2,3],.4,label='a'); plt.bar(x+.2,[3,2,1],.4,label='b'); plt.xticks(x,['A','B','C'])", nil, ""},
	{"stacked", "plt.bar(['A','B'],[1,2],label='lo'); plt.bar(['A','B'],[3,4],bottom=[1,2],label='hi')", nil, ""},
	{"grouped barh", "x=np.arange(3); plt.barh(x-.2,[1,2,3],.4); plt.barh(x+.2,[3,2,1],.4); plt.yticks(x,['A','B','C']); plt.xlabel('v'); plt.ylabel('k')", []string{"x_label", "y_label"}, "they swap the labels once for each group"},
	{"equal bars", "plt.bar(['a','b'],[2,2])", []string{"elements"}, "they take equal bars for horizontal ones"},
	{"bars at numbers", "plt.bar([1,2,3],[3,1,2])", []string{"elements"}, noName},
	{"hist", "plt.hist([1,1,2,3,3,3,4],bins=4)", []string{"elements"}, noName},
	{"bars with errors", "plt.bar(['a','b'],[2,3],yerr=[.1,.2])", nil, ""},
	{"bars and a line", "plt.bar(['a','b','c'],[2,3,1]); plt.plot(['a','b','c'],[1,2,3])", nil, ""},
	{"pie", "plt.pie([1,3,2.5],labels=['u','v','w'],autopct='%d%%',explode=[0,.1,0])", nil, ""},
	{"ring", "plt.pie([1,3],labels=['u','v'],wedgeprops={'width':.4},radius=1.5)", nil, ""},
	{"boxes of lines", "plt.boxplot([[1,2,3,4,5],[2,4,6,7]])", strings.Fields(lineKeys), "theirs is a line chart of the edges"},
	{"boxes", "plt.boxplot([[1,2,3,4,5],[2,4,6,7]],patch_artist=True, tick_labels=['m','f']); plt.xlabel('sex'); plt.ylabel('h (m)')", nil, ""},
	{"flat boxes", "plt.boxplot([[1,2,3,4,5],[2,4,6,7]],patch_artist=True, tick_labels=['m','f'],orientation='horizontal'); plt.ylabel('sex'); plt.xlabel('h (m)')", []string{"elements"}, noName},
	{"an outlier", "plt.boxplot([[1,2,3,4,5,30],[2,4,6,7]],patch_artist=True)", nil, ""},
	{"outliers", "plt.boxplot([[1,2,3,4,5,5,6,7,30,40],[2,4,6,7]],patch_artist=True)", []string{"elements"}, "they lose the outliers of a box with several"},
	{"large boxes", "plt.boxplot([[51234,61234,71234],[71234,81234,91234]],patch_artist=True)", []string{"all"}, theyFail + ": they round to so few digits that whiskers and boxes part"},
	{"notches", "plt.boxplot([[1,2,3,4,5],[2,4,6,7]],patch_artist=True,notch=True)", []string{"all"}, theyFail},
	{"means, no caps", "plt.boxplot([[1,2,3,4,9],[2,4,6,7]],patch_artist=True,showmeans=True,meanline=True,showcaps=False)", []string{"all"}, theyFail},
	{"subplots", "f,(l,r)=plt.subplots(1,2); l.plot([1,2,3]); r.bar(['a','b'],[1,2]); f.suptitle('both'); l.set_title('left')", nil, ""},
	{"an empty subplot", "f,(l,r)=plt.subplots(1,2); l.plot([1,2,3])", nil, ""},
	{"an image beside a line", "f,(l,r)=plt.subplots(1,2); l.plot([1,2,3]); r.imshow([[1,2]]); r.set_title('im')", nil, ""},
	{"two y axes", "f,a=plt.subplots(); a.plot([1,2,3]); b=a.twinx(); b.plot([3,2,1]); b.set_ylabel('deg (C)')", nil, ""},
	{"nothing drawn", "plt.subplots()", nil, ""},
	{"image", "plt.imshow([[1,2],[3,4]]); plt.title('heat')", nil, ""},
	{"filled", "plt.plot([1,2,3]); plt.fill_between([0,1,2],[1,2,3])", nil, ""},
	{"error bars", "plt.errorbar([1,2],[3,4],yerr=[.1,.1])", nil, ""},
	{"contour", "plt.contour([[1,2],[3,4]])", nil, ""},
	{"stem", "plt.stem([1,2,3])", nil, ""},
	{"polar", "plt.subplot(projection='polar').plot([0,1,2],[1,2,3])", nil, ""},
	{"3d", "plt.subplot(projection='3d').plot([0,1,2],[1,2,3],[1,2,3])", strings.Fields(lineKeys + " x_label x_unit y_label y_unit"), "theirs has two of three coordinates"},
	{"gaps", "plt.plot([1,2,float('nan')],[1,float('inf'),3])", nil, ""},
	{"none", "plt.plot([1,2,3],[1,None,3])", []string{"all"}, theyFail},
	{"decimals", "from decimal import Decimal; plt.plot([Decimal('1.5'),Decimal(2),Decimal(3)],[1,2,3])", nil, ""},
	{"text and legend", "plt.plot([1,2,3]); plt.annotate('peak',(1,2)); plt.text(0,1,'t'); plt.legend(['l'])", nil, ""},
	{"pandas line", "import pandas as pd; pd.DataFrame({'a':[1,2,3],'b':[3,2,1]}).plot()", nil, ""},
	{"pandas dates", "pd.DataFrame({'a':[1,2,3]},index=pd.date_range('2024-01-01',periods=3)).plot()", []string{"elements", "x_scale", "x_ticks"}, "they have the numbers of pandas' periods"},
	{"pandas bar", "pd.DataFrame({'a':[1,2,3],'b':[3,2,1]},index=['x','y','z']).plot.bar(xlabel='k')", nil, ""},
	{"pandas barh", "pd.DataFrame({'a':[1,2,3]},index=['x','y','z']).plot.barh()", nil, ""},
	{"pandas stacked", "pd.DataFrame({'a':[1,2,3],'b':[3,2,1]},index=['x','y','z']).plot.bar(stacked=True)", nil, ""},
	{"pandas pie", "pd.Series([1,2],index=['x','y']).plot.pie()", nil, ""},
	{"pandas scatter", "pd.DataFrame({'a':[1,2,3],'b':[3,2,1]}).plot.scatter('a','b')", nil, ""},
	{"pandas box", "pd.DataFrame({'a':[1,2,3,9],'b':[3,2,1,0]}).plot.box()", strings.Fields(lineKeys), "theirs is a line chart of the edges"},
	{"pandas area", "pd.DataFrame({'a':[1,2,3],'b':[3,2,1]}).plot.area()", nil, ""},
	{"seaborn bar", "import seaborn as sns; sns.barplot(x=['a','b','a','b'],y=[1,2,3,4])", nil, ""},
	{"seaborn bar, hue", "sns.barplot(x=['a','b','a','b'],y=[1,2,3,4],hue=['u','u','v','v'])", nil, ""},
	{"seaborn count", "sns.countplot(x=['a','b','a','a'])", nil, ""},
	{"seaborn density", "sns.histplot([1,1,2,3],kde=True)", nil, ""},
	{"seaborn box", "sns.boxplot(x=['a']*4+['b']*4,y=[1,2,3,4,4,6,8,9])", nil, ""},
	{"seaborn box, hue", "sns.boxplot(x=['a']*4+['b']*4,y=[1,2,3,4,4,6,8,9],hue=['u','u','v','v']*2)", nil, ""},
	{"seaborn scatter", "sns.scatterplot(x=[1,2,3],y=[1,2,3],hue=['a','b','a'])", nil, ""},
	{"seaborn line", "sns.lineplot(x=[1,2,3],y=[1,2,3])", []string{"elements", "type"}, "they mind an error band that is empty"},
	{"seaborn line with a band", "sns.lineplot(x=[1,1,2,2],y=[1,2,3,4])", nil, ""},
	{"seaborn heat map", "sns.heatmap([[1,2],[3,4]])", nil, ""},
	{"seaborn regression", "sns.regplot(x=[1,2,3,4],y=[1,2,3,5])", nil, ""},
}

// theirs shows the chart that e2b_charts makes of the present figure.
const theirs = `
def theirs():
    import e2b_charts, math, warnings
    def plain(v):
        if isinstance(v, dict): return {k: plain(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)): return [plain(x) for x in v]
        if isinstance(v, str): return str(getattr(v, 'value', v))
        return v if v is None else float(v) if math.isfinite(v) else None
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: chart = plain(e2b_charts.chart_figure_to_dict(plt.gcf()))
        except Exception as e: chart = {'fails': repr(e)}
    display({'application/x-theirs': chart}, raw=True)`

func TestChartsAreThoseOfE2B(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.run(theirs + "\nimport matplotlib; matplotlib.rcParams['figure.dpi'] = 20") // pictures cost most of the time
	for _, f := range figures {
		r := b.run("import matplotlib.pyplot as plt, numpy as np, datetime\nplt.close('all')\n" + f.code + "\ntheirs()")
		require.Empty(t, r.errorName(), "%s: %.2000v", f.name, r.lines)
		var want, got map[string]any
		for _, line := range r.find("result") {
			if extra, ok := line["extra"].(map[string]any); ok {
				want, _ = extra["application/x-theirs"].(map[string]any)
			}
			if line["png"] != nil {
				got, _ = line["chart"].(map[string]any)
			}
		}
		var differs []string
		for key := range want {
			if key == "fails" {
				differs = []string{"all"}
				require.NotNil(t, got, f.name)
				break
			}
			if value, ok := got[key]; !ok || !same(want[key], value) {
				differs = append(differs, key)
			}
		}
		slices.Sort(differs)
		slices.Sort(f.differs)
		require.Equal(t, f.differs, differs, "%s (%s)\ntheirs: %v\nours:   %v", f.name, f.because, want, got)
	}
}

// same compares two charts' parts; numbers may differ by rounding.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key := range a {
			if !same(a[key], b[key]) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case float64:
		b, ok := b.(float64)
		return ok && math.Abs(a-b) <= 1e-6*max(1, math.Abs(a))
	}
	return a == b
}

// Where the charts differ from E2B's, this is what they have.
func TestChartsOfFigures(t *testing.T) {
	t.Parallel()
	b := start(t)
	element := func(chart map[string]any, i int) map[string]any { return chart["elements"].([]any)[i].(map[string]any) }
	labels := func(chart map[string]any) (found []any) {
		for i := range chart["elements"].([]any) {
			found = append(found, element(chart, i)["label"])
		}
		return found
	}
	points := func(chart map[string]any) any { return element(chart, 0)["points"] }

	require.Equal(t, []any{[]any{"a", 4.0}, []any{"b", 5.0}}, points(b.chart("plt.scatter(['a','b'],[4,5])")))
	require.Equal(t, []any{[]any{"2024-01-02T00:00:00", 4.0}}, points(b.chart("plt.scatter([datetime.datetime(2024,1,2)],[4])")))
	dated := b.chart("import pandas as pd; pd.DataFrame({'a':[1,2]},index=pd.date_range('2024-01-01',periods=2)).plot()")
	require.Equal(t, []any{[]any{"2024-01-01T00:00:00", 1.0}, []any{"2024-01-02T00:00:00", 2.0}}, points(dated))
	require.Equal(t, "datetime", dated["x_scale"])
	require.Equal(t, []any{[]any{1.0, 1.0}, []any{2.0, nil}}, points(b.chart("plt.plot([1,2],[1,None])")))

	require.Equal(t, []any{"1.5", "2.5"}, labels(b.chart("plt.hist([1,2,2,3],bins=2)")))
	require.Equal(t, []any{"2", "0", "1"}, labels(b.chart("plt.bar([2,0,1],[1,2,3])")))
	flat := b.chart("plt.barh(['a','b'],[2,2]); plt.ylabel('k')")
	require.Equal(t, []any{"a", "b"}, labels(flat))
	require.Equal(t, []any{"k", nil}, []any{flat["x_label"], flat["y_label"]})

	for _, style := range []string{"", ", patch_artist=True", ", orientation='horizontal'", ", notch=True", ", showcaps=False, showmeans=True"} {
		boxes := b.chart("r = plt.boxplot([[1, 2, 3, 4, 5, 30, 40], [2, 4, 6]]" + style + ")")
		require.Equal(t, "box_and_whisker", boxes["type"], style)
		require.Equal(t, map[string]any{"label": "1", "min": 1.0, "first_quartile": 2.5, "median": 4.0, "third_quartile": 17.5, "max": 40.0, "outliers": []any{}}, element(boxes, 0), style)
		require.Equal(t, "2", element(boxes, 1)["label"])
	}
	require.Equal(t, []any{30.0, 40.0}, element(b.chart("plt.boxplot([[1, 2, 3, 4, 5, 5, 6, 30, 40]])"), 0)["outliers"])
}

// Whatever a figure holds, the run goes on and the picture comes.
func TestHostileFiguresKeepTheirPicture(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.run("import numpy as np")
	for name, code := range map[string]string{
		"too many points": "plt.plot(np.arange(60_000))",
		"too many dots":   "plt.scatter(np.arange(60_000), np.arange(60_000), marker=',')",
		"many axes":       "f = plt.figure()\nfor i in range(30): f.add_axes([0, 0, 1, 1]).plot(np.arange(2000))",
	} {
		require.Nil(t, b.chart(code), name)
	}
	for name, code := range map[string]string{
		"label that raises":    "l, = plt.plot([1, 2])\nl.get_label = lambda: 1/0",
		"label that is no str": "l, = plt.plot([1, 2])\nl.get_label = lambda: [b'x']",
		"data that raises":     "l, = plt.plot([1, 2])\nl.get_xdata = lambda *a, **k: {}['gone']",
		"no number":            "plt.plot([1, 2], [float('inf'), float('-inf')])",
		"strange label":        "plt.plot([1, 2], label='\\ud800 \\x00 _child')\nplt.title('a' * 1000, fontsize=1)",
	} {
		b.chart(code)
		require.Equal(t, "2", b.run("1+1").main()["text"], name)
	}
	r := b.run("class L(plt.Line2D):\n    def draw(self, renderer): raise ValueError('broken artist')\nf, ax = plt.subplots(); ax.add_line(L([0, 1], [0, 1]))\nprint('on')")
	require.Contains(t, r.text("stdout"), "on\n")
	require.Equal(t, "ValueError", r.errorName(), "what cannot be drawn is an error")
	require.Equal(t, "2", b.run("plt.close('all')\n1+1").main()["text"])
}
