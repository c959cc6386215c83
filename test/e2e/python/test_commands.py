"""sandbox.commands and sandbox.pty of the Python client."""

import concurrent.futures
import threading

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    TimeoutException,
)

from wait import eventually


def alive(box, pid):
    return box.commands.run(f"kill -0 {pid} 2>/dev/null && echo yes || echo no", user="root").stdout == "yes\n"


def listed(box, pid):
    return pid in [process.pid for process in box.commands.list()]


# --- output and exit ---------------------------------------------------------


def test_run_returns_both_streams_and_exit_code_zero(box):
    result = box.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_a_failing_command_raises_with_its_code_and_output(box):
    with pytest.raises(CommandExitException) as failure:
        box.commands.run("echo so far; echo broken >&2; exit 7")
    assert failure.value.exit_code == 7
    assert failure.value.stdout == "so far\n"
    assert failure.value.stderr == "broken\n"


@pytest.mark.parametrize("command, code", [("true", 0), ("false", 1), ("exit 255", 255), ("no-such-command", 127), ("/etc/passwd", 126)])
def test_exit_codes_pass_through(box, command, code):
    if code == 0:
        assert box.commands.run(command).exit_code == 0
        return
    with pytest.raises(CommandExitException) as failure:
        box.commands.run(command)
    assert failure.value.exit_code == code


def test_death_by_signal_is_told(box):
    with pytest.raises(CommandExitException) as failure:
        box.commands.run("kill -9 $$")
    assert failure.value.exit_code != 0
    assert "killed" in (failure.value.error or "")


def test_callbacks_get_the_output_in_order(box):
    out, err = [], []
    box.commands.run(
        "for i in $(seq 50); do echo o$i; echo e$i >&2; done", on_stdout=out.append, on_stderr=err.append)
    assert "".join(out).split() == [f"o{i}" for i in range(1, 51)]
    assert "".join(err).split() == [f"e{i}" for i in range(1, 51)]


def test_output_arrives_while_the_command_runs(box):
    handle = box.commands.run("echo first; read line; echo got $line", stdin=True, background=True)
    events = iter(handle)
    assert next(events)[0] == "first\n"
    handle.send_stdin("go\n")
    assert next(events)[0] == "got go\n"


def test_ten_megabytes_of_output_arrive_whole(box):
    result = box.commands.run("head -c 10485760 /dev/zero | tr '\\0' x", timeout=60)
    assert len(result.stdout) == 10485760
    assert set(result.stdout[:1000]) == {"x"}


def test_bytes_that_are_no_text_do_not_break_the_stream(box):
    result = box.commands.run(r"printf 'a\377\000\376b'; head -c 100000 /dev/urandom >&2; echo; echo end")
    assert result.stdout.startswith("a") and result.stdout.endswith("end\n")
    assert len(result.stderr) > 10000


def test_multi_byte_characters_survive_any_chunking(box):
    result = box.commands.run("python3 -c \"print('a' + 'ü€😀' * 20000)\"")
    assert result.stdout == "a" + "ü€😀" * 20000 + "\n"


def test_a_command_may_leave_a_process_behind(box):
    pid = box.commands.run("nohup sleep 300 >/dev/null 2>&1 & echo $!").stdout.strip()
    assert alive(box, pid)
    box.commands.run(f"kill -9 {pid}")


# --- where, as whom, with what ----------------------------------------------


def test_environment_of_the_command(box):
    assert box.commands.run("echo $GREETING", envs={"GREETING": "hello world 'q' \"d\" $x"}).stdout == "hello world 'q' \"d\" $x\n"


def test_environment_of_the_sandbox_reaches_commands(new_box):
    sandbox = new_box(envs={"FROM_CREATE": "1", "BOTH": "sandbox"})
    out = sandbox.commands.run("echo $FROM_CREATE $BOTH $E2B_SANDBOX $E2B_SANDBOX_ID", envs={"BOTH": "command"}).stdout
    assert out == f"1 command true {sandbox.sandbox_id}\n"


def test_login_variables_are_those_of_the_user(box):
    assert box.commands.run("echo $HOME $USER $LOGNAME; pwd").stdout == "/home/user user user\n/home/user\n"


def test_working_directory(box):
    assert box.commands.run("pwd", cwd="/usr/bin").stdout == "/usr/bin\n"


def test_a_missing_working_directory_is_an_invalid_argument(box):
    with pytest.raises(InvalidArgumentException):
        box.commands.run("pwd", cwd="/no/such/folder")


@pytest.mark.parametrize("user, home", [("user", "/home/user"), ("root", "/root")])
def test_a_command_runs_as_the_user_named(box, user, home):
    assert box.commands.run("whoami; echo $HOME", user=user).stdout == f"{user}\n{home}\n"


def test_an_unknown_user_is_refused(box):
    with pytest.raises(AuthenticationException, match="nobody-here"):
        box.commands.run("whoami", user="nobody-here")


def test_the_default_user_may_become_root(box):
    assert box.commands.run("sudo -n whoami").stdout == "root\n"


# --- processes in the background --------------------------------------------


def test_background_process_is_listed_and_killed(box):
    handle = box.commands.run("sleep 300", background=True, envs={"MARK": "1"}, cwd="/tmp")
    process = next(p for p in box.commands.list() if p.pid == handle.pid)
    assert process.cmd == "/bin/bash" and process.args == ["-l", "-c", "sleep 300"]
    assert process.cwd == "/tmp" and process.envs["MARK"] == "1"
    assert handle.kill() is True
    with pytest.raises(CommandExitException):
        handle.wait()
    eventually(lambda: not listed(box, handle.pid), 5, "the killed process leaves the list")


def test_kill_of_an_unknown_process_says_so(box):
    assert box.commands.kill(999999) is False


def test_connect_to_an_unknown_process_says_so(box):
    with pytest.raises(NotFoundException):
        box.commands.connect(999999)


def test_a_process_outlives_its_stream_and_can_be_joined_again(box):
    first = box.commands.run("read line; echo said $line", stdin=True, background=True)
    first.disconnect()
    assert alive(box, first.pid)
    second = box.commands.connect(first.pid)
    box.commands.send_stdin(first.pid, "again\n")
    assert second.wait().stdout == "said again\n"


def test_two_subscribers_see_the_same_end(box):
    first = box.commands.run("read line; echo $line; exit 3", stdin=True, background=True)
    second = box.commands.connect(first.pid)
    box.commands.send_stdin(first.pid, "x\n")
    for handle in (first, second):
        with pytest.raises(CommandExitException) as failure:
            handle.wait()
        assert failure.value.exit_code == 3


def test_a_late_subscriber_still_learns_the_exit_code(box):
    handle = box.commands.run("exit 5", background=True)
    with pytest.raises(CommandExitException):
        handle.wait()
    with pytest.raises(CommandExitException) as failure:
        box.commands.connect(handle.pid).wait()
    assert failure.value.exit_code == 5


def test_closing_stdin_ends_a_reader(box):
    handle = box.commands.run("cat; echo done", stdin=True, background=True)
    handle.send_stdin("one ")
    handle.send_stdin(b"two\n")
    handle.close_stdin()
    assert handle.wait().stdout == "one two\ndone\n"


def test_streamed_input_arrives_in_order(box):
    handle = box.commands.run("cat", stdin=True, background=True)
    box.commands.stream_input(handle.pid, (f"line {i}\n" for i in range(200)))
    handle.close_stdin()
    assert handle.wait().stdout == "".join(f"line {i}\n" for i in range(200))


def test_without_stdin_a_reader_sees_the_end_at_once(box):
    assert box.commands.run("cat; echo eof", timeout=10).stdout == "eof\n"


def test_timeout_raises_and_the_process_dies(box):
    # The number marks the process; the shell execs it, so it is the one listed.
    with pytest.raises(TimeoutException):
        box.commands.run("exec sleep 31.4159", timeout=1)
    gone = "pgrep -f 'sleep 31[.]4159' >/dev/null && echo alive || echo gone"
    eventually(lambda: box.commands.run(gone).stdout == "gone\n", 5, "the timed-out process is dead")


def test_fifty_commands_at_once(box):
    def run(i):
        return box.commands.run(f"sleep 0.2; echo {i}", timeout=60).stdout

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert list(pool.map(run, range(50))) == [f"{i}\n" for i in range(50)]


# --- PTY ---------------------------------------------------------------------


class Terminal:
    """A PTY whose output a thread collects, as a terminal program would."""

    def __init__(self, box, **options):
        self.box = box
        self.handle = box.pty.create(PtySize(rows=24, cols=80), timeout=60, **options)
        self.screen = b""
        self.ended = threading.Event()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        try:
            for _, _, data in self.handle:
                self.screen += data or b""
        except Exception:
            pass  # The stream's end is what is awaited, however it comes.
        self.ended.set()

    def type(self, text):
        self.box.pty.send_stdin(self.handle.pid, text.encode())

    def shows(self, text, within=15):
        eventually(lambda: text.encode() in self.screen, within, f"{text!r} on the screen {self.screen!r}")


def test_a_terminal_has_its_size_and_takes_a_new_one(box):
    terminal = Terminal(box)
    terminal.type("stty size; tty\n")
    terminal.shows("24 80")
    terminal.shows("/dev/pts/")
    box.pty.resize(terminal.handle.pid, PtySize(rows=50, cols=132))
    terminal.type("stty size\n")
    terminal.shows("50 132")
    assert box.pty.kill(terminal.handle.pid) is True
    assert terminal.ended.wait(10), "the stream ends when the terminal is killed"


def test_a_terminal_has_environment_folder_and_user(box):
    terminal = Terminal(box, user="root", cwd="/etc", envs={"FOO": "bar"})
    terminal.type("echo [$TERM:$FOO:$(whoami):$PWD]\n")
    terminal.shows("[xterm-256color:bar:root:/etc]")
    terminal.type("exit\n")
    assert terminal.ended.wait(10), "exit ends the stream"


def test_a_terminal_interrupts_with_control_c(box):
    terminal = Terminal(box)
    terminal.type("sleep 100\n")
    eventually(lambda: "sleep 100" in box.commands.run("ps -eo args").stdout, 10, "the sleep runs")
    terminal.type("\x03")
    terminal.type("echo back-$((40+2))\n")
    terminal.shows("back-42")
    terminal.handle.kill()
