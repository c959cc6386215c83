"""run_code and code contexts of the Python code interpreter client."""

import asyncio
import base64
import re
import time

import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def twin(request):
    """A second sandbox of the same template as `interpreter`."""
    sandbox = Sandbox.create(timeout=900)
    request.addfinalizer(sandbox.kill)
    return sandbox


@pytest.fixture
def context(interpreter, request):
    """A kernel of its own, where a test would leave state behind."""
    context = interpreter.create_code_context()
    request.addfinalizer(lambda: interpreter.remove_code_context(context))
    return context


# --- values, state, output ---------------------------------------------------


@pytest.mark.parametrize("code, text", [
    ("21 * 2", "42"),
    ("'a string'", "a string"),
    ("[1, 'a', None]", "[1, 'a', None]"),
    ("x = 5\nx + 1", "6"),
    ("1; 2", "2"),
    ("x = 1", None),
    ("None", None),
    ("7;", None),
    ("", None),
    ("# only a comment", None),
    ("'ü€😀' * 3", "ü€😀" * 3),
])
def test_the_last_expression_is_the_result(interpreter, code, text):
    execution = interpreter.run_code(code)
    assert execution.error is None and execution.text == text


def test_state_stays_between_runs(interpreter):
    interpreter.run_code("kept = 41\ndef bump(n): return n + 1\nimport math as m")
    assert interpreter.run_code("bump(kept), m.pi > 3").text == "(42, True)"


def test_the_count_of_executions_grows(interpreter, context):
    counts = [interpreter.run_code("1", context=context).execution_count for _ in range(3)]
    assert counts[1] == counts[0] + 1 and counts[2] == counts[1] + 1


def test_output_streams_in_order_and_apart(interpreter):
    out, err = [], []
    execution = interpreter.run_code(
        "import sys\nfor i in range(5):\n  print('o', i)\n  print('e', i, file=sys.stderr)\n'end'",
        on_stdout=lambda message: out.append(message), on_stderr=lambda message: err.append(message))
    assert "".join(execution.logs.stdout) == "".join(f"o {i}\n" for i in range(5))
    assert "".join(execution.logs.stderr) == "".join(f"e {i}\n" for i in range(5))
    assert "".join(m.line for m in out) == "".join(execution.logs.stdout) and not out[0].error
    assert "".join(m.line for m in err) == "".join(execution.logs.stderr) and err[0].error
    assert execution.text == "end"


def test_output_arrives_while_the_code_runs(interpreter):
    code = "import os, time\nprint('early')\nwhile not os.path.exists('/tmp/arrived'): time.sleep(0.01)\nprint('late')"
    execution = interpreter.run_code(code, on_stdout=lambda _: interpreter.files.write("/tmp/arrived", ""), timeout=60)
    assert "".join(execution.logs.stdout) == "early\nlate\n"


def test_timestamps_are_now(interpreter):
    stamps = []
    interpreter.run_code("print(1)", on_stdout=lambda message: stamps.append(message.timestamp))
    seconds = stamps[0] / 1e9 if stamps[0] > 1e15 else stamps[0] / 1e3 if stamps[0] > 1e11 else stamps[0]
    assert abs(seconds - time.time()) < 120


def test_large_output_arrives_whole(interpreter):
    execution = interpreter.run_code("for i in range(20000): print('line', i, 'x' * 80)")
    lines = "".join(execution.logs.stdout).splitlines()
    assert len(lines) == 20000 and lines[-1].startswith("line 19999 ")


def test_output_of_a_child_process_is_seen(interpreter):
    execution = interpreter.run_code("import subprocess\n_ = subprocess.run(['echo', 'from a child'], check=True)")
    assert "".join(execution.logs.stdout) == "from a child\n"


# --- IPython -----------------------------------------------------------------


def test_shell_escape(interpreter):
    execution = interpreter.run_code("!echo from the shell")
    assert "from the shell" in "".join(execution.logs.stdout)


def test_shell_escape_into_a_variable(interpreter):
    assert interpreter.run_code("lines = !printf 'a\\nb\\n'\nlist(lines)").text == "['a', 'b']"


def test_line_and_cell_magics(interpreter):
    assert "".join(interpreter.run_code("%%bash\necho in a cell magic").logs.stdout) == "in a cell magic\n"
    assert "ns per loop" in "".join(interpreter.run_code("%timeit -n 10 -r 1 1 + 1").logs.stdout).replace("µs", "ns")
    assert interpreter.run_code("%pwd").text == "/home/user"


def test_top_level_await(interpreter):
    assert interpreter.run_code("import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))").text == "[1, 2]"


def test_pip_magic_is_there(interpreter):
    assert "pip" in "".join(interpreter.run_code("%pip --version").logs.stdout)


def test_input_is_refused_not_awaited(interpreter):
    execution = interpreter.run_code("input('name? ')", timeout=20)
    assert execution.error is not None and execution.error.name in ("StdinNotImplementedError", "EOFError")


# --- errors ------------------------------------------------------------------


def test_an_exception_is_an_error_object(interpreter):
    seen = []
    execution = interpreter.run_code("def f():\n    return 1 / 0\nprint('before')\nf()", on_error=seen.append)
    error = execution.error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)
    assert "return 1 / 0" in traceback and "ZeroDivisionError: division by zero" in traceback
    assert seen == [error]
    assert execution.logs.stdout == ["before\n"] and execution.text is None


@pytest.mark.parametrize("code, name", [
    ("def broken(:", "SyntaxError"),
    ("  x = 1\n y = 2", "IndentationError"),
    ("no_such_name", "NameError"),
    ("import no_such_module", "ModuleNotFoundError"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("def f(): f()\nf()", "RecursionError"),
    ("class Odd(Exception):\n  def __str__(self): raise ValueError\nraise Odd()", "Odd"),
])
def test_each_kind_of_error_is_named_and_the_kernel_lives(interpreter, code, name):
    execution = interpreter.run_code(code)
    assert execution.error is not None and execution.error.name == name
    assert interpreter.run_code("1 + 1").text == "2"


def test_sys_exit_does_not_end_the_kernel(interpreter):
    interpreter.run_code("still_here = 1\nimport sys")
    execution = interpreter.run_code("sys.exit(3)")
    assert execution.error is not None and execution.error.name == "SystemExit"
    assert interpreter.run_code("still_here").text == "1"


# --- rich results ------------------------------------------------------------


def rich(interpreter, code):
    execution = interpreter.run_code(code)
    assert execution.error is None, execution.error
    return execution.results


@pytest.mark.parametrize("code, kind, value", [
    ("from IPython.display import HTML\nHTML('<b>x</b>')", "html", "<b>x</b>"),
    ("from IPython.display import Markdown\nMarkdown('**x**')", "markdown", "**x**"),
    ("from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", "svg", "<svg"),
    ("from IPython.display import Latex\nLatex('$x^2$')", "latex", "$x^2$"),
    ("from IPython.display import Javascript\nJavascript('1+1')", "javascript", "1+1"),
    ("from IPython.display import JSON\nJSON({'a': [1, 2]})", "json", {"a": [1, 2]}),
])
def test_each_display_kind_has_its_field(interpreter, code, kind, value):
    result = rich(interpreter, code)[0]
    assert result.is_main_result and kind in result.formats()
    got = result[kind]
    assert got == value or (isinstance(value, str) and got.startswith(value))


def test_pictures_are_base64(interpreter):
    png = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
    result = rich(interpreter, f"import base64\nfrom IPython.display import Image\nImage(base64.b64decode('{png}'), format='png')")[0]
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    result = rich(interpreter, "Image(b'\\xff\\xd8\\xff\\xe0jpeg', format='jpeg')")[0]
    assert base64.b64decode(result.jpeg).startswith(b"\xff\xd8")
    result = rich(interpreter, "class P:\n  def _repr_pdf_(self): return b'%PDF-1.7'\nP()")[0]
    assert base64.b64decode(result.pdf).startswith(b"%PDF")


def test_an_unknown_kind_is_extra(interpreter):
    code = "class O:\n  def _repr_mimebundle_(self, **kw): return {'application/x-odd': 'v', 'text/plain': 't'}\nO()"
    result = rich(interpreter, code)[0]
    assert result.text == "t" and result.extra == {"application/x-odd": "v"}


def test_display_calls_come_before_the_main_result(interpreter):
    seen = []
    execution = interpreter.run_code("display('first')\ndisplay({'a': 1})\n'last'", on_result=seen.append)
    assert [r.text for r in execution.results] == ["first", "{'a': 1}", "last"]
    assert [r.is_main_result for r in execution.results] == [False, False, True]
    assert len(seen) == 3 and execution.text == "last"


def test_a_dataframe_carries_its_data(interpreter):
    result = rich(interpreter, "import pandas as pd\npd.DataFrame({'n': [1, 2], 's': ['a', 'b']})")[0]
    assert result.data == {"n": [1, 2], "s": ["a", "b"]}
    assert "<table" in result.html and "s" in result.text


def test_a_plot_is_a_png(interpreter):
    results = rich(interpreter, "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t')\nplt.show()")
    assert base64.b64decode(results[0].png).startswith(b"\x89PNG")


def test_a_plot_left_open_is_shown(interpreter):
    results = rich(interpreter, "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n_ = ax.bar(['a', 'b'], [3, 4])")
    assert any(result.png for result in results)


def test_a_plot_carries_its_chart(interpreter):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [10, 20, 30], label='up')\nplt.title('Growth')\nplt.xlabel('day')\nplt.ylabel('size')\nplt.show()"
    chart = next(result.chart for result in rich(interpreter, code) if result.png)
    assert chart is not None, "the result of a plot has its chart"
    assert (chart.type.value, chart.title, chart.x_label, chart.y_label) == ("line", "Growth", "day", "size")
    assert [list(point) for point in chart.elements[0].points] == [[1, 10], [2, 20], [3, 30]]


def test_a_plotly_figure_is_html(interpreter):
    results = rich(interpreter, "import plotly.express as px\npx.line(x=[1, 2], y=[3, 4]).show()")
    assert "plotly" in results[-1].html


# --- environment and folders -------------------------------------------------


def test_code_runs_in_the_home_of_the_user(interpreter):
    assert interpreter.run_code("import os\nos.getcwd()").text == "/home/user"


def test_environment_of_one_run_is_undone(interpreter):
    interpreter.run_code("import os\nos.environ['KEPT'] = 'old'")
    code = "os.environ.get('ONCE'), os.environ.get('KEPT')"
    assert interpreter.run_code(code, envs={"ONCE": "1", "KEPT": "new"}).text == "('1', 'new')"
    assert interpreter.run_code(code).text == "(None, 'old')"


def test_environment_of_the_sandbox_reaches_the_kernel(new_interpreter):
    sandbox = new_interpreter(envs={"FROM_CREATE": "yes"})
    code = "import os\nos.environ['FROM_CREATE'], os.environ['E2B_SANDBOX_ID']"
    assert sandbox.run_code(code).text == str(("yes", sandbox.sandbox_id))
    assert sandbox.run_code(code, context=sandbox.create_code_context()).text == str(("yes", sandbox.sandbox_id))


def test_files_are_shared_with_the_file_interface(interpreter):
    interpreter.files.write("in.csv", "a,b\n1,2\n")
    interpreter.run_code("import pandas as pd\npd.read_csv('in.csv').T.to_csv('out.csv', header=False)")
    assert interpreter.files.read("out.csv") == "a,1\nb,2\n"


# --- contexts ----------------------------------------------------------------


def test_contexts_do_not_share_state(interpreter, context):
    interpreter.run_code("shared_name = 'default'")
    assert interpreter.run_code("shared_name", context=context).error.name == "NameError"


def test_a_context_has_language_folder_and_a_place_in_the_list(interpreter):
    context = interpreter.create_code_context(cwd="/tmp", language="python")
    assert (context.language, context.cwd) == ("python", "/tmp")
    assert interpreter.run_code("import os\nos.getcwd()", context=context).text == "/tmp"
    assert context.id in [c.id for c in interpreter.list_code_contexts()]
    interpreter.remove_code_context(context)
    assert context.id not in [c.id for c in interpreter.list_code_contexts()]
    with pytest.raises(NotFoundException):
        interpreter.run_code("1", context=context)


def test_restart_forgets_state_and_keeps_the_id(interpreter, context):
    interpreter.run_code("x = 1", context=context)
    interpreter.restart_code_context(context)
    assert interpreter.run_code("x", context=context).error.name == "NameError"
    assert interpreter.run_code("2", context=context).text == "2"


@pytest.mark.parametrize("act", ["remove_code_context", "restart_code_context"])
def test_an_unknown_context_is_not_found(interpreter, act):
    with pytest.raises(NotFoundException):
        getattr(interpreter, act)("00000000-0000-0000-0000-000000000000")


def test_an_unknown_language_is_a_clear_error(interpreter):
    with pytest.raises(SandboxException, match="klingon.*python"):
        interpreter.create_code_context(language="klingon")
    with pytest.raises(SandboxException, match="klingon.*python"):
        interpreter.run_code("1", language="klingon")


def test_runs_in_one_context_queue_up(interpreter, context):
    async def both():
        sandbox = await AsyncSandbox.connect(interpreter.sandbox_id)
        runs = asyncio.Event()
        code = "import time\nprint('on')\ntime.sleep(0.5)\ndone = True"
        slow = asyncio.create_task(sandbox.run_code(code, context=context, on_stdout=lambda _: runs.set()))
        await runs.wait()
        quick = await sandbox.run_code("done", context=context)
        await slow
        return quick

    assert asyncio.run(both()).text == "True"


# --- interruption and death --------------------------------------------------


def test_timeout_interrupts_and_the_kernel_lives(interpreter, context):
    interpreter.run_code("x = 'kept'", context=context)
    with pytest.raises(TimeoutException):
        interpreter.run_code("while True: pass", context=context, timeout=1)
    assert interpreter.run_code("x", context=context, timeout=60).text == "kept"


def test_death_of_the_kernel_is_told_and_it_comes_back(interpreter, context):
    execution = interpreter.run_code("import os\nos._exit(9)", context=context, timeout=30)
    assert execution.error is not None, "the error says that the kernel died"
    assert interpreter.run_code("6 * 7", context=context, timeout=30).text == "42"


def test_a_crash_of_native_code_is_told(interpreter, context):
    execution = interpreter.run_code("import ctypes\nctypes.string_at(0)", context=context, timeout=30)
    assert execution.error is not None
    assert interpreter.run_code("1", context=context, timeout=30).text == "1"


# --- clients and clones ------------------------------------------------------


def test_async_client():
    async def run():
        sandbox = await AsyncSandbox.create()
        try:
            lines = []

            async def collect(message):
                lines.append(message.line)

            execution = await sandbox.run_code("print('async')\n40 + 2", on_stdout=collect)
            return execution.text, "".join(lines)
        finally:
            await sandbox.kill()

    assert asyncio.run(run()) == ("42", "async\n")


@pytest.mark.parametrize("code", [
    "import random\nrandom.random()",
    "import numpy\nnumpy.random.random()",
    "import numpy\nnumpy.random.default_rng().random()",
    "import uuid\nuuid.uuid4()",
    "import os\nos.urandom(8).hex()",
    "import secrets\nsecrets.token_hex()",
], ids=lambda code: re.split(r"\n|\(", code)[1])
def test_sandboxes_of_one_template_do_not_share_randomness(interpreter, twin, code):
    first, second = interpreter.run_code(code), twin.run_code(code)
    assert first.error is None and second.error is None
    assert first.text != second.text


def test_two_fresh_sandboxes_draw_different_numbers_first(new_interpreter):
    code = "import random, numpy\nrandom.random(), numpy.random.random()"
    assert new_interpreter().run_code(code).text != new_interpreter().run_code(code).text
