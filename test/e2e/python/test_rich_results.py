"""Charts and rich results through the official client: which field of a result
has what."""

import base64

import pytest
from e2b_code_interpreter import charts

PLOT = "import matplotlib.pyplot as plt\n"


def results(interpreter, code):
    execution = interpreter.run_code(code)
    assert execution.error is None, execution.error
    return execution.results


def is_png(result):
    return base64.b64decode(result.png).startswith(b"\x89PNG")


# --- charts --------------------------------------------------------------------


@pytest.mark.parametrize("code, kind", [
    ("plt.plot([1, 2], [3, 4], label='a')", charts.LineChart),
    ("plt.scatter([1, 2], [3, 4])", charts.ScatterChart),
    ("plt.bar(['a', 'b'], [3, 4])", charts.BarChart),
    ("plt.pie([1, 3], labels=['a', 'b'])", charts.PieChart),
    ("plt.boxplot([[1, 2, 3, 4], [2, 3, 4, 9]], patch_artist=True)", charts.BoxAndWhiskerChart),
    ("f, (l, r) = plt.subplots(1, 2); l.plot([1, 2]); r.bar(['a'], [1])", charts.SuperChart),
    ("plt.imshow([[1, 2]])", charts.Chart),
], ids=lambda value: getattr(value, "__name__", None))
def test_each_chart_class_is_read(interpreter, code, kind):
    [result] = results(interpreter, PLOT + code + "\nplt.title('T')\nplt.show()")
    assert is_png(result) and type(result.chart) is kind
    assert "chart" in result.formats()
    if kind is not charts.Chart:
        assert result.chart.elements


def test_the_elements_of_charts(interpreter):
    def chart(code):
        [result] = results(interpreter, PLOT + code + "\nplt.show()")
        return result.chart

    line = chart("plt.plot([1, 2], [10, 100], label='up'); plt.xlabel('Time (s)'); plt.yscale('log')")
    assert (line.x_label, line.x_unit, line.y_label, line.y_unit) == ("Time (s)", "s", None, None)
    assert (line.x_scale, line.y_scale) == (charts.ScaleType.LINEAR, charts.ScaleType.LOG)
    assert len(line.x_ticks) == len(line.x_tick_labels) > 2
    assert (line.elements[0].label, line.elements[0].points) == ("up", [(1, 10), (2, 100)])

    bar = chart("plt.bar(['p', 'q'], [5, 6], label='books')")
    assert [(b.label, b.group, b.value) for b in bar.elements] == [("p", "books", 5), ("q", "books", 6)]

    pie = chart("plt.pie([1, 3], labels=['u', 'v'])")
    assert [(p.label, p.angle, p.radius) for p in pie.elements] == [("u", 90, 1), ("v", 270, 1)]

    [box] = chart("plt.boxplot([[1, 2, 3, 4, 5, 30]])").elements
    assert (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max, box.outliers) == ("1", 1, 2.25, 3.5, 4.75, 5, [30])

    both = chart("f, (l, r) = plt.subplots(1, 2); l.plot([1, 2]); r.imshow([[1]]); f.suptitle('both')")
    assert both.title == "both" and [c.type for c in both.elements] == ["line", "unknown"]


@pytest.mark.parametrize("code", [
    "import pandas as pd; pd.DataFrame({'a': [1, 2]}, index=pd.date_range('2024-01-01', periods=2)).plot();",
    "import seaborn as sns; sns.lineplot(x=[1, 2], y=[3, 4]);",
])
def test_charts_of_libraries_above_matplotlib(interpreter, code):
    [result] = results(interpreter, code)
    assert is_png(result) and isinstance(result.chart, charts.LineChart)


def test_a_figure_with_too_many_points_has_a_picture_and_no_chart(interpreter):
    [result] = results(interpreter, PLOT + "plt.plot(range(60_000))\nplt.show()")
    assert is_png(result) and result.chart is None


def test_figures_are_shown_once(interpreter):
    shown = results(interpreter, PLOT + "for _ in range(3):\n    plt.plot([1, 2]); plt.show()")
    assert [is_png(r) for r in shown] == [True] * 3
    assert [is_png(r) for r in results(interpreter, "f1, a = plt.subplots(); a.plot([1])\nf2, a = plt.subplots(); a.plot([2]);")] == [True] * 2
    assert results(interpreter, "x = 1") == []


# --- other libraries -------------------------------------------------------------


@pytest.mark.parametrize("show", ["figure", "figure.show()"])
def test_plotly_has_html_and_its_own_type(interpreter, show):
    shown = results(interpreter, f"import plotly.graph_objects as go\nfigure = go.Figure(go.Bar(y=[2, 3]))\n{show}")
    assert "plotly" in shown[-1].html
    assert shown[-1].extra["application/vnd.plotly.v1+json"]["data"][0]["y"] == [2, 3]


@pytest.mark.parametrize("show", ["chart", "chart.show()"])
def test_altair_has_html(interpreter, show):
    code = f"import altair as alt, pandas as pd\nchart = alt.Chart(pd.DataFrame({{'a': [1], 'b': [2]}})).mark_bar().encode(x='a', y='b')\n{show}"
    assert "vega" in results(interpreter, code)[-1].html


def test_altair_has_its_own_type_when_asked(interpreter):
    [result] = results(interpreter, "import altair as alt, pandas as pd\nwith alt.renderers.enable('mimetype'): display(alt.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a'))")
    [mime] = [name for name in result.extra if "vega" in name]
    assert result.extra[mime]["encoding"]["x"]["field"] == "a"


def test_bokeh_has_html_and_javascript(interpreter):
    shown = results(interpreter, "from bokeh.plotting import figure, show, output_notebook\noutput_notebook()\np = figure(); p.line([1, 2], [3, 4]); show(p)")
    assert any(r.html and "data-root-id" in r.html for r in shown)
    assert any(r.javascript and "docs_json" in r.javascript for r in shown)


def test_sympy_has_latex(interpreter):
    [result] = results(interpreter, "import sympy\nsympy.Integral(sympy.Symbol('x') ** 2)")
    assert result.latex.startswith("$") and "int" in result.latex and result.text == "Integral(x**2, x)"


def test_pandas_has_html_and_data(interpreter):
    [frame] = results(interpreter, "import pandas as pd, numpy as np\npd.DataFrame({'n': [1, None], 't': pd.to_datetime(['2024-01-02', None]), 'c': pd.Categorical(['a', 'b'])})")
    assert frame.data == {"n": [1, None], "t": ["2024-01-02T00:00:00", None], "c": ["a", "b"]} and "<table" in frame.html
    [styled] = results(interpreter, "pd.DataFrame({'a': [1]}).style")
    assert "<table" in styled.html
    [series] = results(interpreter, "pd.Series([1, 2])")
    assert series.text.startswith("0    1") and series.html is None


def test_pictures_of_pillow(interpreter):
    code = "from PIL import Image\nimage = Image.new('RGB', (2, 2))\n"
    for show in ("image", "image.show()", "image.save('/tmp/image.png')", "display(image)"):
        shown = results(interpreter, code + show)
        assert [is_png(r) for r in shown] == [True], show


# --- IPython's display -----------------------------------------------------------


def test_displays_updates_and_clearing(interpreter):
    shown = results(interpreter, "h = display('first', display_id='x')\nh.update('second')\nfrom IPython.display import clear_output\nclear_output()\ndisplay(1, 2)\n'main'")
    assert [r.text for r in shown] == ["first", "1", "2", "main"], "what was sent is neither changed nor taken back"
    assert [r.is_main_result for r in shown] == [False, False, False, True]


@pytest.mark.parametrize("code, text", [
    ("'plain'", "plain"),
    ('"it\'s"', '"it\'s"'),
    ("'a\\nb'", "a\\nb"),
    ("b'x'", "b'x'"),
    ("['a']", "['a']"),
    ("print", "<function print(*args, sep=' ', end='\\n', file=None, flush=False)>"),
    ("None", None),
    ("1;", None),
])
def test_text_of_the_main_result(interpreter, code, text):
    assert interpreter.run_code(code).text == text


def test_a_bundle_of_the_codes_own(interpreter):
    code = (
        "class Own:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'own', 'text/html': '<i>own</i>', 'application/x-own+json': {'a': [1, float('nan')]}}\n"
        "Own()"
    )
    [result] = results(interpreter, code)
    assert (result.text, result.html) == ("own", "<i>own</i>")
    assert result.extra == {"application/x-own+json": {"a": [1, None]}}


def test_raw_bytes_of_a_pdf(interpreter):
    [result] = results(interpreter, "display({'application/pdf': b'%PDF-1.7', 'text/markdown': '# m'}, raw=True)")
    assert base64.b64decode(result.pdf) == b"%PDF-1.7" and result.markdown == "# m"
