"""run_code in JavaScript and TypeScript, by the Python code interpreter client."""

import pytest
from e2b import TimeoutException
from e2b_code_interpreter import Sandbox


@pytest.fixture(scope="module")
def js(interpreter):
    """Runs JavaScript in the default context."""
    return lambda code, **options: interpreter.run_code(code, language="js", **options)


@pytest.mark.parametrize("language, code, text", [
    ("js", "const x = 20\nx + 1", "21"),
    ("javascript", "const x = 21; x", "21"),
    ("JS", "let x = 22; x", "22"),
    ("js", "await Promise.resolve('Hello World!')", "Hello World!"),
    ("js", "async function main() {\n  return 'main'\n}\nmain()", "main"),
    ("js", "import { readFileSync } from 'fs'\ntypeof readFileSync", "function"),
    ("js", "process.cwd()", "/home/user"),
    ("js", "undefined", None),
    ("js", "class A {}", None),
    ("js", "'ü€😀'", "ü€😀"),
    ("js", "const n: number = 3; n", "3"),
    ("ts", "function subtract(x: number, y: number): number {\n  return x - y\n}\nsubtract(1, 2)", "-1"),
    ("typescript", "enum Color { Red = 1, Green }\nColor.Green", "2"),
    ("ts", "namespace Space { export const z = 2 }\nSpace.z", "2"),
    ("ts", "function up(f: any, c: any) { return () => c.name }\nclass C { @up m() { return '' } }\nnew C().m()", "m"),
])
def test_the_last_expression_is_the_result(interpreter, language, code, text):
    execution = interpreter.run_code(code, language=language)
    assert execution.error is None, execution.error.traceback
    assert execution.text == text


def test_logs(js, interpreter):
    assert js("console.log('Hello, World!')").logs.stdout == ["Hello, World!\n"]
    execution = interpreter.run_code("const message: string = 'typed'; console.error(message)", language="ts")
    assert execution.logs.stderr == ["typed\n"] and execution.results == []


def test_output_and_results_keep_their_order(js):
    seen = []
    js(
        "console.log('a'); console.error('b'); require('child_process').execSync('echo c', {stdio: 'inherit'})\n"
        "console.log('d'); display(1); 2",
        on_stdout=lambda m: seen.append(m.line), on_stderr=lambda m: seen.append(m.line),
        on_result=lambda r: seen.append(r.text),
    )
    assert "".join(seen) == "a\nb\nc\nd\n12"


def test_errors_have_the_lines_that_were_sent(js, interpreter):
    error = js("\nfunction f() {\n  return nowhere\n}\nf()").error
    assert (error.name, error.value) == ("ReferenceError", "nowhere is not defined")
    assert "  return nowhere\n" in error.traceback and ":3:3" in error.traceback
    assert js("const = 1").error.name == "SyntaxError"
    error = interpreter.run_code("interface A { x: number }\n\nthrow new Error('typed')", language="ts").error
    assert error.value == "typed" and ".ts:3" in error.traceback


def test_rich_results(js):
    assert js("$$.html('<b>x</b>')").results[0].html == "<b>x</b>"
    results = js("display({'text/markdown': '*m*'}); $$.json({a: 1})").results
    assert results[0].markdown == "*m*" and not results[0].is_main_result
    assert results[1].json == {"a": 1} and results[1].is_main_result
    assert js("({_toSvg: () => '<svg/>'})").results[0].svg == "<svg/>"


def test_packages_are_found_after_their_install(js, interpreter):
    interpreter.files.write("/home/user/node_modules/mine/index.js", "exports.name = 'mine'")
    assert js("import mine from 'mine'\nmine.name").text == "mine"
    assert js("require('mine').name").text == "mine"
    assert js("import ts from 'typescript'\ntypeof ts.version").text == "string"  # a global one


def test_environment(new_interpreter):
    sandbox = new_interpreter(envs={"OF_ALL": "sandbox"})
    run = lambda code, **options: sandbox.run_code(code, language="javascript", **options)
    assert run("process.env.OF_ALL").text == "sandbox"
    envs = {"OF_ALL": "run", "ONCE": "1"}
    assert run("process.env.OF_ALL + process.env.ONCE", envs=envs).text == "run1"
    assert run("throw new Error()", envs=envs).error
    assert run("`${process.env.OF_ALL} ${process.env.ONCE}`").text == "sandbox undefined"


def test_contexts(interpreter, js):
    js("let mine = 'default'")
    context = interpreter.create_code_context(language="ts", cwd="/tmp")
    try:
        assert (context.language, context.cwd) == ("typescript", "/tmp")
        assert any(c.id == context.id for c in interpreter.list_code_contexts())
        assert interpreter.run_code("const mine: string = process.cwd(); mine", context=context).text == "/tmp"
        assert js("mine").text == "default"
        interpreter.restart_code_context(context)
        assert interpreter.run_code("mine", context=context).error.name == "ReferenceError"
    finally:
        interpreter.remove_code_context(context)


@pytest.mark.parametrize("code", [
    "console.log('on'); while (true) {}",
    "await new Promise(() => {})",
    "await 0; for (;;) {}",
    "await new Promise((r) => setTimeout(r, 10)); for (;;) {}",
    "require('child_process').execSync('sleep 100')",
])
def test_a_timeout_interrupts_and_the_kernel_lives(js, code):
    js("let kept = 'kept'")
    with pytest.raises(TimeoutException):
        js(code, timeout=1)
    assert js("kept").text == "kept"


@pytest.mark.parametrize("code, why", [("process.exit(7)", "code 7"), ("process.kill(process.pid, 'SIGKILL')", "signal 9")])
def test_death_of_the_kernel_is_told_and_it_comes_back(interpreter, code, why):
    context = interpreter.create_code_context(language="js")
    try:
        error = interpreter.run_code(code, context=context).error
        assert error.name == "KernelDied" and why in error.value
        assert interpreter.run_code("1 + 1", context=context).text == "2"
    finally:
        interpreter.remove_code_context(context)


def test_python_and_javascript_are_apart(interpreter, js):
    interpreter.run_code("apart = 'python'")
    js("var apart = 'javascript'")
    assert interpreter.run_code("apart").text == "python" and js("apart").text == "javascript"


@pytest.mark.parametrize("code", [
    "Math.random()",
    "require('crypto').randomBytes(16).toString('hex')",
    "crypto.randomUUID()",
    "require('crypto').randomInt(2 ** 47)",
])
def test_fresh_sandboxes_draw_different_numbers_first(new_interpreter, code):
    drawn = {new_interpreter().run_code(code, language="js").text for _ in range(2)}
    assert len(drawn) == 2 and None not in drawn


def test_the_first_run_needs_no_start(new_interpreter):
    sandbox = new_interpreter()
    assert sandbox.commands.run("pgrep -x node").exit_code == 0, "it runs before anybody asks for it"
    assert sandbox.run_code("1 + 1", language="js").text == "2"
    assert sandbox.run_code("1", language="js").execution_count == 2
