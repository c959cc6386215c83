"""run_code in R, Java and Bash, and in a Jupyter kernel that a sandbox installs.

JavaScript and TypeScript are in the tests of the JavaScript client too; Python
has files of its own.
"""

import json

import pytest
from e2b import SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

OURS = ["r", "java", "bash"]


@pytest.fixture(scope="module")
def polyglot(request):
    """A sandbox with a variable for all languages, that the tests of this file share."""
    sandbox = Sandbox.create(timeout=900, envs={"OF_SANDBOX": "supertest"})
    request.addfinalizer(sandbox.kill)
    return sandbox


# --- values and output -------------------------------------------------------


@pytest.mark.parametrize("language, code, text", [
    ("r", "x <- 20; x + 1", "[1] 21"),
    ("R", "paste('a', 'b')", '[1] "a b"'),
    ("ir", "x", "[1] 20"),  # the same context, by the name of the kernel
    ("r", "x <- 1", None),
    ("java", "int x = 20; x + 1", "21"),
    ("JAVA", 'String.join("-", "a", "b")', "a-b"),
    ("java", "class A { int f() { return x * 2; } }\nnew A().f()", "40"),
    ("java", "int y = 1;", None),
])
def test_the_last_value_is_the_result(polyglot, language, code, text):
    execution = polyglot.run_code(code, language=language)
    assert execution.error is None and execution.text == text


@pytest.mark.parametrize("language, code, stdout, stderr", [
    ("r", 'print("Hello, World!")\nmessage("warned")', '[1] "Hello, World!"\n', "warned\n"),
    ("r", 'system("echo child")', "child\n", ""),
    ("r", "library(parallel)\ncat(unlist(mclapply(1:4, function(i) i^2, mc.cores = 2)))", "1 4 9 16", ""),
    ("r", 'x <- readline()\ncat("nobody answers")', "nobody answers", ""),
    ("java", 'System.out.print(new java.util.Scanner(System.in).hasNextLine());', "false", ""),
    ("bash", "read line || echo nobody answers", "nobody answers\n", ""),
    ("java", 'System.out.println("Hello, World!"); System.err.println("warned");', "Hello, World!\n", "warned\n"),
    ("bash", "echo Hello, World!; echo warned >&2", "Hello, World!\n", "warned\n"),
    ("bash", "cat <<END | tr a-z A-Z\nlines\nEND\n", "LINES\n", ""),
])
def test_output_is_apart(polyglot, language, code, stdout, stderr):
    execution = polyglot.run_code(code, language=language)
    assert execution.error is None
    assert "".join(execution.logs.stdout) == stdout
    assert "".join(execution.logs.stderr).strip() == stderr.strip()


@pytest.mark.parametrize("language, code, name, value", [
    ("r", "stop('boom')", "ERROR", "boom"),
    ("r", "if (", "ERROR", "parse"),
    ("java", 'throw new IllegalStateException("boom");', "RuntimeException", "java.lang.IllegalStateException, boom"),
    ("java", 'int z = "x";', "CompilationException", "REJECTED"),
    ("bash", "echo before; ls /nonexistent", "ExitCode", "2"),
    ("bash", "if then", "ExitCode", ""),
])
def test_errors(polyglot, language, code, name, value):
    error = polyglot.run_code(code, language=language).error
    assert error.name == name and value in error.value and error.traceback


def test_pictures_and_tables_of_r(polyglot):
    plots = polyglot.run_code("plot(1:10)\nlibrary(ggplot2)\nggplot(mtcars, aes(mpg, wt)) + geom_point()", language="r")
    assert [bool(result.png) for result in plots.results] == [True, True]
    table = polyglot.run_code("library(dplyr, warn.conflicts = FALSE)\nmtcars %>% filter(cyl == 4) %>% head(2)", language="r")
    assert "<table" in table.results[0].html and "Datsun" in table.text


# --- contexts ----------------------------------------------------------------


@pytest.mark.parametrize("language, folder, state", [
    ("r", "getwd()", "kept <- 1; kept"),
    ("java", 'System.getProperty("user.dir")', "int kept = 1; kept"),
    ("bash", "pwd", "kept=1; echo $kept"),
])
def test_contexts_have_a_folder_and_state_of_their_own(polyglot, language, folder, state):
    context = polyglot.create_code_context(language=language, cwd="/var")
    assert (context.language, context.cwd) == (language, "/var")

    def shown(code, **where):
        execution = polyglot.run_code(code, **where)
        return execution.text or "".join(execution.logs.stdout)

    assert "/var" in shown(folder, context=context)
    assert "/home/user" in shown(folder, language=language)
    assert "1" in shown(state, context=context)
    assert polyglot.run_code("kept" if language != "bash" else "[ -n \"$kept\" ]", language=language).error
    polyglot.restart_code_context(context)
    assert polyglot.run_code("kept" if language != "bash" else "[ -n \"$kept\" ]", context=context).error
    polyglot.remove_code_context(context)


def test_an_unknown_language_is_refused_with_what_there_is(polyglot):
    with pytest.raises(SandboxException, match="it has: bash, javascript, python, typescript, java, r"):
        polyglot.run_code("1", language="cobol")
    with pytest.raises(SandboxException, match="it has: bash"):
        polyglot.create_code_context(language="cobol")


# --- variables ---------------------------------------------------------------

GET = {
    "r": "cat(Sys.getenv('{}', unset = 'none'))",
    # A JVM cannot change its environment: as with E2B, they are properties.
    "java": 'System.out.print(System.getProperty("{}", "none"));',
    "bash": 'printf %s "${{{}-none}}"',
}


@pytest.mark.parametrize("language", OURS)
def test_variables_of_the_sandbox_and_of_one_run(polyglot, language):
    def value(name, **envs):
        execution = polyglot.run_code(GET[language].format(name), language=language, envs=envs)
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)

    tricky = "it's \"ä\" \\n 😀 ${x} $(y)"
    assert value("OF_SANDBOX") == "supertest"
    assert value("OF_RUN", OF_RUN=tricky) == tricky
    assert value("OF_RUN") == "none"
    assert value("OF_SANDBOX", OF_SANDBOX="other") == "other"
    assert value("OF_SANDBOX") == "supertest"
    assert value("OF_RUN", OF_RUN="x" * 200_000) == "x" * 200_000


# --- code that misbehaves ----------------------------------------------------

STATE = {"r": "cat(1 + 1)", "java": "System.out.print(1 + 1);", "bash": "printf $((1 + 1))"}


def works(sandbox, language):
    return "".join(sandbox.run_code(STATE[language], language=language).logs.stdout) == "2"


@pytest.mark.parametrize("language, keep, check, code", [
    ("r", "kept <- 7", "cat(kept)", "repeat {}"),
    ("r", "kept <- 7", "cat(kept)", "Sys.sleep(1000)"),
    ("java", "int held = 7;", "System.out.print(held);", "while (true) { Thread.sleep(10); }"),
    ("bash", "kept=7", "printf $kept", "while :; do :; done"),
    ("bash", "kept=7", "printf $kept", "sleep 1000"),
])
def test_a_client_that_leaves_interrupts(polyglot, language, keep, check, code):
    polyglot.run_code(keep, language=language)
    with pytest.raises(TimeoutException):
        polyglot.run_code(code, language=language, timeout=1)
    assert "".join(polyglot.run_code(check, language=language).logs.stdout) == "7"


def test_code_that_cannot_be_interrupted_loses_its_kernel(polyglot):
    with pytest.raises(TimeoutException):
        polyglot.run_code("while (true) { try { Thread.sleep(1000); } catch (Throwable e) {} }", language="java", timeout=1)
    assert works(polyglot, "java")


@pytest.mark.parametrize("language, code, says", [
    ("r", "tools::pskill(Sys.getpid(), 9)", "signal 9"),
    ("java", "System.exit(3);", "exited with code 3"),
    ("bash", "exit 3", "exited with code 3"),
    ("bash", "sleep 4567 & kill -9 $$", "signal 9"),
])
def test_a_kernel_that_ends(polyglot, language, code, says):
    error = polyglot.run_code(code, language=language).error
    assert error.name == "KernelDied" and says in error.value
    assert works(polyglot, language)
    assert polyglot.commands.run("pgrep -f 'sleep 456[7]' || true").stdout == ""


def test_a_kernel_that_is_killed_from_outside(polyglot):
    assert works(polyglot, "r")
    polyglot.commands.run("pkill -9 -f IRkerne[l]", user="root")
    error = polyglot.run_code("1", language="r").error  # may come before the end was seen
    assert error is None or error.name == "KernelDied"
    assert works(polyglot, "r")


def test_leaving_r_the_usual_way_is_left_to_its_kernel(polyglot):
    assert polyglot.run_code("q()", language="r").error is None
    assert works(polyglot, "r")


@pytest.mark.parametrize("language, code", [
    ("r", "line <- strrep('x', 999999)\nfor (i in 1:17) cat(line, '\\n')"),
    ("java", 'String s = "x".repeat(99_999);\nfor (int i = 0; i < 400; i++) System.out.println(s);'),
    ("bash", "yes | head -c 30000000"),
])
def test_output_without_end_is_cut(polyglot, language, code):
    execution = polyglot.run_code(code, language=language, timeout=120)
    assert execution.error is None
    size = sum(map(len, execution.logs.stdout))
    assert size <= 16 << 20
    # ZeroMQ throws away what the agent does not read in time, of many small messages as Java sends.
    assert "left out" in "".join(execution.logs.stderr) or language == "java"
    assert works(polyglot, language)


# --- other kernels -----------------------------------------------------------


def test_a_kernel_that_the_sandbox_installs_is_used_by_its_name(polyglot):
    polyglot.commands.run(
        "pip install --quiet --retries 10 ipykernel && python3 -m ipykernel install --user --name extra", timeout=300)
    execution = polyglot.run_code("import os\nprint(os.environ['OF_RUN'])\ntype(get_ipython()).__module__", language="extra", envs={"OF_RUN": "yes"})
    assert execution.error is None
    assert (execution.text, execution.logs.stdout) == ("ipykernel.zmqshell", ["yes\n"])
    assert polyglot.run_code("2 / 0", language="Extra").error.name == "ZeroDivisionError"
    context = polyglot.create_code_context(language="extra", cwd="/var")
    assert polyglot.run_code("import os; os.getcwd()", context=context).text == "/var"
    assert polyglot.run_code("type(get_ipython()).__module__", language="python").text != "ipykernel.zmqshell"


def test_kernels_that_do_not_work_say_why(polyglot):
    def spec(name, **content):
        polyglot.files.write(f"/home/user/.local/share/jupyter/kernels/{name}/kernel.json", json.dumps(content))

    spec("dies", argv=["sh", "-c", "echo no such library >&2; exit 4"], language="dies")
    spec("nothing", argv=["nothing-of-that-name"], language="nothing")
    polyglot.files.write("/home/user/.local/share/jupyter/kernels/garbage/kernel.json", "{nonsense")
    for name, says in [("dies", "no such library"), ("nothing", "no program nothing-of-that-name"), ("garbage", "JSON")]:
        with pytest.raises(SandboxException, match=says):
            polyglot.run_code("1", language=name)


def test_kernels_live_on_in_a_pause_and_in_forks(new_interpreter):
    sandbox = new_interpreter(timeout=300)
    sandbox.run_code("kept <- 41", language="r")
    sandbox.run_code("int kept = 41;", language="java")
    sandbox.run_code("kept=41", language="bash")
    sandbox.pause()
    sandbox.connect()
    assert sandbox.run_code("kept + 1", language="r").text == "[1] 42"
    assert sandbox.run_code("kept + 1", language="java").text == "42"
    assert sandbox.run_code("echo $((kept + 1))", language="bash").logs.stdout == ["42\n"]
