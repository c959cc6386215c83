"""Code that hurts its own kernel, through the official client: the run ends with
an error that says what happened, and the sandbox goes on."""

import re

import pytest
from e2b import TimeoutException
from e2b_code_interpreter import Sandbox

MEBIBYTE = 1 << 20


@pytest.fixture
def context(interpreter):
    made = interpreter.create_code_context()
    yield made
    interpreter.remove_code_context(made)


@pytest.mark.parametrize("code, why", [
    ("import os; os._exit(7)", "code 7"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    ("import ctypes; ctypes.string_at(0)", "signal 11"),
    ("import os; os.abort()", "signal 6"),
    ("import os; os.closerange(0, 1000)", "died"),
    ("import os; os.write(3, b'nonsense\\n'); import time; time.sleep(100)", "protocol"),
    ("x = []\nwhile True: x.append(bytearray(10_000_000))", "memory"),
])
def test_a_dead_kernel_is_told_and_comes_back(interpreter, context, code, why):
    interpreter.run_code("lost = 1", context=context)
    execution = interpreter.run_code(code, context=context, timeout=120)
    assert execution.error is not None and execution.error.name == "KernelDied", execution
    assert why in execution.error.value
    assert interpreter.run_code("lost", context=context).error.name == "NameError"
    assert interpreter.run_code("6 * 7", context=context).text == "42"
    assert interpreter.commands.run("echo on").stdout == "on\n"


def test_code_that_ignores_interrupts_loses_its_kernel(interpreter, context):
    interpreter.run_code("lost = 1", context=context)
    with pytest.raises(TimeoutException):
        interpreter.run_code("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", context=context, timeout=1)
    assert interpreter.run_code("lost", context=context, timeout=30).error.name == "NameError"


def test_children_that_hold_the_pipes_do_not_hold_the_run(interpreter, context):
    interpreter.run_code("import subprocess\nchild = subprocess.Popen(['sh', '-c', 'while :; do echo spam; sleep 0.05; done'])", context=context, timeout=20)
    assert interpreter.run_code("child.poll()", context=context, timeout=20).text is None
    interpreter.run_code("child.kill()", context=context)


def test_a_forked_child_does_not_speak_for_its_kernel(interpreter, context):
    code = "import os\npid = os.fork()\nif pid: x = os.wait()\nprint('child' if pid == 0 else 'parent')\npid > 0"
    execution = interpreter.run_code(code, context=context)
    assert execution.text == "True" and "".join(execution.logs.stdout) == "child\nFalse\nparent\n"


@pytest.mark.parametrize("what, code", [
    ("lines", "for _ in range(1000): print('x' * 99_999)"),
    ("one line of 200 MB", "print('x' * 200_000_000)"),
    ("below Python", "import os\nfor _ in range(1000): os.write(1, b'x' * 100_000)"),
    ("a child", "!head -c 100000000 /dev/zero | tr '\\\\0' x"),
])
def test_output_without_end_is_cut_and_takes_no_memory(serve, what, code):
    server = serve()
    with Sandbox.create(timeout=300, **server.client_options()) as sandbox:
        sandbox.run_code("1")
        server_before, agent_before = resident(open(f"/proc/{server.process.pid}/status").read()), agent(sandbox)
        execution = sandbox.run_code(code, timeout=120)
        size = sum(map(len, execution.logs.stdout))
        assert execution.error is None and 15 * MEBIBYTE < size <= 16 * MEBIBYTE
        assert "".join(execution.logs.stderr) == "[stdout of this run has passed 16 MiB; the rest is left out. Write large output to a file.]\n"
        assert sandbox.run_code("6 * 7").text == "42"
        assert resident(open(f"/proc/{server.process.pid}/status").read()) - server_before < 64 * MEBIBYTE
        assert agent(sandbox) - agent_before < 64 * MEBIBYTE


def agent(sandbox):
    return resident(sandbox.commands.run("cat /proc/1/status").stdout)


def resident(status):
    """Bytes of memory that a process has, or the most it ever had where that is told."""
    found = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", status))
    return int(found.get("VmHWM") or found["VmRSS"]) * 1024


def test_results_without_end_are_cut(interpreter, context):
    execution = interpreter.run_code("'x' * 50_000_000", context=context, timeout=120)
    assert execution.text.endswith("more characters were left out")
    assert len(execution.text) < 2 * MEBIBYTE
    execution = interpreter.run_code("for _ in range(10): display({'text/html': 'x' * 11_000_000}, raw=True)", context=context, timeout=120)
    assert 5 <= len(execution.results) < 10
    assert "the results of this run have passed 64 MiB" in "".join(execution.logs.stderr)


def test_a_long_traceback_loses_its_middle(interpreter, context):
    code = "import sys\nsys.setrecursionlimit(10**6)\ndef f(n):\n    if not n: 1/0\n    f(n - 1)\nf(100_000)"
    error = interpreter.run_code(code, context=context, timeout=60).error
    assert error.name == "ZeroDivisionError" and len(error.traceback) < 100_000
