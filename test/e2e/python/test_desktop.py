"""The desktop template, through E2B's desktop client."""

import base64
import io
import os
import re
import socket
import struct
import time
import urllib.parse
import zlib

import e2b
import pytest
from e2b_desktop import Sandbox
from websockets.sync.client import connect

from test_ports import get
from wait import eventually

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])


@pytest.fixture(scope="module")
def desktop(request):
    """A desktop that the tests share."""
    sandbox = Sandbox.create(timeout=900)
    request.addfinalizer(sandbox.kill)
    return sandbox


@pytest.fixture
def new_desktop(request):
    def make(**options):
        sandbox = Sandbox.create(timeout=300, **options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    return make


def pixels(png):
    """Width, height and the rows of a PNG with 8 bits a channel."""
    file = io.BytesIO(png)
    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    data = b""
    while True:
        size, kind = struct.unpack(">I4s", file.read(8))
        chunk = file.read(size)
        file.read(4)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", chunk[:10])
        elif kind == b"IDAT":
            data += chunk
        elif kind == b"IEND":
            break
    assert depth == 8
    step = {2: 3, 6: 4}[colour]
    data, stride, rows, before = zlib.decompress(data), width * step, [], bytes(width * step)
    for y in range(height):
        kind, row = data[y * (stride + 1)], bytearray(data[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for i in range(stride):
            left = row[i - step] if i >= step else 0
            up, corner = before[i], before[i - step] if i >= step else 0
            if kind == 1:
                row[i] = row[i] + left & 255
            elif kind == 2:
                row[i] = row[i] + up & 255
            elif kind == 3:
                row[i] = row[i] + (left + up) // 2 & 255
            elif kind == 4:
                guess = left + up - corner
                row[i] = row[i] + min((left, up, corner), key=lambda v: abs(guess - v)) & 255
        rows.append(bytes(row))
        before = row
    return width, height, [[row[i : i + 3] for i in range(0, stride, step)] for row in rows]


def windows(box, of):
    try:
        return [w for w in box.get_application_windows(of) if w]
    except e2b.CommandExitException:  # none
        return []


def window(box, of, title=""):
    """A window of the application, once there is one whose title has this part."""

    def look():
        for one in windows(box, of):
            try:
                if title in box.get_window_title(one):
                    return one
            except e2b.CommandExitException:
                pass  # it is gone

    return eventually(look, 60, f"a window of {of} {title}")


def focus(box, one):
    box.commands.run(f"xdotool windowactivate --sync {one}")
    eventually(lambda: box.get_current_window_id() == one, 20, "it has the focus")


def test_a_picture_of_the_desktop(desktop):
    assert desktop.get_screen_size() == (1024, 768)
    width, height, rows = pixels(bytes(desktop.screenshot()))
    assert (width, height) == (1024, 768)
    colours = {pixel for row in rows for pixel in row}
    assert len(colours) > 500  # a picture in the background and icons
    assert sum(sum(p) > 600 for p in rows[10]) > 700  # the panel on top is bright
    assert b"".join(desktop.screenshot("stream")).startswith(b"\x89PNG")


def test_the_desktop_is_there_at_once():
    began = time.monotonic()
    sandbox = Sandbox.create(timeout=60)
    took = time.monotonic() - began
    try:
        for program in "xfce4-session", "xfwm4", "xfdesktop", "Xvfb", "xfce4-panel":
            assert len(sandbox.commands.run(f"pgrep -x {program}").stdout.split()) == 1, program
        uptime = float(sandbox.commands.run("ps -o etimes= -C xfce4-session").stdout)
        assert uptime > took, "it was started only now"
    finally:
        sandbox.kill()


@pytest.mark.parametrize("options, size", [({"resolution": (1280, 800), "dpi": 110}, (1280, 800)), ({"display": ":7"}, (1024, 768))])
def test_another_screen(new_desktop, options, size):
    sandbox = new_desktop(**options)
    assert sandbox.get_screen_size() == size
    width, height, rows = pixels(bytes(eventually(lambda: sandbox.screenshot(), 10, "a picture")))
    assert (width, height) == size
    for program in "xfce4-session", "xfwm4", "Xvfb":
        assert len(sandbox.commands.run(f"pgrep -x {program}").stdout.split()) == 1, program
    if "dpi" in options:
        assert "-dpi 110" in sandbox.commands.run("pgrep -a -x Xvfb").stdout
    sandbox.launch("mousepad")
    window(sandbox, "mousepad")


def test_the_mouse_moves(desktop):
    for place in (5, 7), (700, 400), (1023, 767):
        desktop.move_mouse(*place)
        assert desktop.get_cursor_position() == place


def content(box, name):
    """What a file of the user's holds; None while there is none."""
    path = f"/home/user/{name}"
    return box.files.read(path) if box.files.exists(path) else None


def test_typing_into_the_terminal(new_desktop):
    sandbox = new_desktop(envs={"MINE": "a value"})
    sandbox.launch("xfce4-terminal")
    focus(sandbox, window(sandbox, "xfce4-terminal"))
    text, foreign = "Quotes ' \" $HOME `x` \\ ~ ! < > | & ; @ #", " ü €"
    sandbox.write(f"cat >typed; echo $MINE >mine")
    sandbox.press("enter")
    eventually(lambda: content(sandbox, "typed") is not None, 20, "cat reads")
    sandbox.write(text, delay_in_ms=20)
    sandbox.write(foreign, delay_in_ms=1000)  # each has its key made first, of which programs are told
    sandbox.press("enter")
    sandbox.press(["ctrl", "d"])
    eventually(lambda: content(sandbox, "mine") == "a value\n", 20, "the shell has read all")
    assert content(sandbox, "typed") == text + foreign + "\n"
    sandbox.press(["alt", "f4"])
    eventually(lambda: not windows(sandbox, "xfce4-terminal"), 20, "the window is closed")


def test_the_editor_by_mouse_and_keys(desktop):
    lines = "\n".join(f"line {n}" for n in range(300))
    desktop.files.write("/home/user/text.txt", lines)
    desktop.open("/home/user/text.txt")
    editor = window(desktop, "mousepad", "text.txt")
    desktop.commands.run(f"xdotool windowsize --sync {editor} 600 400 windowmove {editor} 100 100")
    focus(desktop, editor)
    desktop.left_click(300, 300)
    desktop.press(["ctrl", "end"])
    desktop.write(" and the last")
    desktop.press(["ctrl", "s"])
    eventually(lambda: desktop.files.read("/home/user/text.txt").strip() == lines + " and the last", 20, "it is saved")

    desktop.move_mouse(300, 300)  # the wheel turns the view
    before = bytes(desktop.screenshot())
    desktop.scroll("up", 10)
    eventually(lambda: bytes(desktop.screenshot()) != before, 20, "the text has moved")

    desktop.press(["ctrl", "home"])  # a double click takes a word
    eventually(lambda: _word(desktop, 125, 185), 20, "a double click selects a word")
    desktop.left_click(400, 400)  # and dragging what is between
    desktop.drag((125, 203), (300, 270))
    eventually(lambda: "\nline" in _selected(desktop), 20, "lines are selected")
    desktop.right_click(300, 300)
    eventually(lambda: len(windows(desktop, "mousepad")) > 1, 20, "the menu is open")
    desktop.press("esc")
    desktop.press(["ctrl", "q"])
    eventually(lambda: not windows(desktop, "mousepad"), 20, "the editor is closed")


def _word(box, x, y):
    """The word there, by a double click."""
    box.double_click(x, y)
    return _selected(box).strip() == "line"


def _selected(box):
    return box.commands.run("xclip -o -selection primary 2>/dev/null || true").stdout


def test_moving_a_window(desktop):
    desktop.launch("mousepad")
    one = window(desktop, "mousepad")
    desktop.commands.run(f"xdotool windowsize --sync {one} 400 300 windowmove --sync {one} 200 200")
    focus(desktop, one)

    def place():
        text = desktop.commands.run(f"xwininfo -id {one}").stdout
        return tuple(int(re.search(rf"Absolute upper-left {axis}: +(-?\d+)", text)[1]) for axis in "XY")

    x, y = place()
    desktop.move_mouse(x + 200, y - 12)  # its title; a window follows once the pointer has moved a little
    desktop.mouse_press()
    for step in range(1, 11):
        desktop.move_mouse(x + 200 + 15 * step, y - 12 + 10 * step)
    desktop.mouse_release()
    eventually(lambda: place()[0] > x + 100 and place()[1] > y + 50, 20, f"the window has moved from {(x, y)}")
    desktop.commands.run(f"xdotool windowclose {one}")
    desktop.middle_click(500, 500)


def test_the_browser_opens_files_and_addresses(desktop):
    desktop.files.write("/home/user/www/page.html", "<title>A page</title><body style='background: rgb(0, 180, 60)'>")
    desktop.commands.run("python3 -m http.server 8080 --directory /home/user/www", background=True)
    eventually(lambda: get(desktop, 8080, "/page.html").status_code == 200, 15, "the page is served")
    desktop.open("http://localhost:8080/page.html")
    window(desktop, "chromium", "A page")

    def green():
        width, height, rows = pixels(bytes(desktop.screenshot()))
        return sum(pixel == b"\x00\xb4\x3c" for row in rows for pixel in row) > 100_000

    eventually(green, 30, "the page is shown")
    desktop.files.write("/home/user/other.html", "<title>Another</title>")
    desktop.open("/home/user/other.html")
    window(desktop, "chromium", "Another")
    desktop.files.write("/home/user/third.html", "<title>A third</title>")
    desktop.launch("google-chrome", "file:///home/user/third.html")
    window(desktop, "chromium", "A third")
    desktop.commands.run("pkill chromium; true")


class Vnc:
    """The beginning of the protocol of VNC, over noVNC's WebSocket."""

    def __init__(self, box, port=6080):
        tunnel = socket.create_connection((SERVER.hostname, SERVER.port))
        self.socket = connect(f"ws://{port}-{box.sandbox_id}.localhost:{SERVER.port}/websockify", sock=tunnel,
                              subprotocols=["binary"], open_timeout=20, legacy=True)
        self.data = b""

    def read(self, size):
        while len(self.data) < size:
            self.data += self.socket.recv(timeout=20)
        part, self.data = self.data[:size], self.data[size:]
        return part

    def greet(self):
        """Returns the kinds of authentication."""
        assert self.read(12) == b"RFB 003.008\n"
        self.socket.send(b"RFB 003.008\n")
        return list(self.read(self.read(1)[0]))

    def begin(self):
        """After the authentication: size and name of the desktop."""
        assert self.read(4) == b"\0\0\0\0", "refused"
        self.socket.send(b"\x01")
        width, height = struct.unpack(">HH", self.read(4))
        self.read(16)
        return (width, height), self.read(struct.unpack(">I", self.read(4))[0]).decode()

    def picture(self, width, height):
        """The pixels of a corner, as the server sends them."""
        self.socket.send(struct.pack(">BBHi", 2, 0, 1, 0))  # raw
        self.socket.send(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
        kind, count = struct.unpack(">BxH", self.read(4))
        assert kind == 0
        x, y, w, h, encoding = struct.unpack(">HHHHi", self.read(12))
        assert encoding == 0
        return self.read(w * h * 4)


def test_the_stream(desktop):
    desktop.stream.start()
    try:
        assert desktop.stream.get_url() == f"https://{desktop.get_host(6080)}/vnc.html?autoconnect=true&resize=scale"
        page = get(desktop, 6080, "/vnc.html?autoconnect=true&resize=scale")
        assert page.status_code == 200 and "noVNC" in page.text
        assert get(desktop, 6080, "/core/rfb.js").status_code == 200
        viewer = Vnc(desktop)
        assert 1 in viewer.greet()  # none is wanted
        viewer.socket.send(b"\x01")
        size, name = viewer.begin()
        assert size == (1024, 768) and ":0" in name
        assert len(set(viewer.picture(400, 300))) > 20
        viewer.socket.send(struct.pack(">BBHH", 5, 0, 321, 123))  # the pointer moves
        eventually(lambda: desktop.get_cursor_position() == (321, 123), 20, "the viewer has moved the pointer")
        viewer.socket.close()
        with pytest.raises(RuntimeError, match="already running"):
            desktop.stream.start()
    finally:
        desktop.stream.stop()


def test_the_stream_with_a_key(new_desktop):
    sandbox = new_desktop()
    sandbox.stream.start(require_auth=True)
    key = sandbox.stream.get_auth_key()
    assert f"password={key}" in sandbox.stream.get_url(auth_key=key)
    for given, answer in (key, b"\0\0\0\0"), ("wrong", b"\0\0\0\1"):
        viewer = Vnc(sandbox)
        assert viewer.greet() == [2]  # by a key, and no other way
        viewer.socket.send(b"\x02")
        viewer.socket.send(_vnc_answer(sandbox, given, viewer.read(16)))
        assert viewer.read(4) == answer
        viewer.socket.close()


def _vnc_answer(box, key, challenge):
    """DES of the challenge; the key's bits are in the other order. OpenSSL in the
    sandbox does it, for Python has no DES."""
    bits = bytes(int(f"{b:08b}"[::-1], 2) for b in key.encode()[:8].ljust(8, b"\0"))
    command = (f"echo {base64.b64encode(challenge).decode()} | base64 -d | "
               f"openssl enc -des-ecb -provider legacy -provider default -nopad -K {bits.hex()} | base64")
    return base64.b64decode(box.commands.run(command).stdout)


def test_a_desktop_goes_on_after_a_pause(new_desktop):
    sandbox = new_desktop()
    sandbox.files.write("/home/user/kept.txt", "")
    sandbox.open("/home/user/kept.txt")
    focus(sandbox, window(sandbox, "mousepad", "kept.txt"))
    sandbox.write("before ")
    sandbox.pause()
    sandbox.connect()
    sandbox.write("and after")
    sandbox.press(["ctrl", "s"])
    eventually(lambda: sandbox.files.read("/home/user/kept.txt").strip() == "before and after", 20, "it is saved")


def test_the_browser_trusts_what_the_server_answers_for_a_destination(new_desktop):
    # Requests that get a header are seen, so TLS ends at the server.
    rules = {"pypi.org": [{"transform": {"headers": {"X-Seen": "1"}}}]}
    desktop = new_desktop(network={"rules": rules})
    issuer = "echo | openssl s_client -connect pypi.org:443 -servername pypi.org 2>/dev/null | openssl x509 -noout -issuer"
    assert "Tombolo egress CA" in desktop.commands.run(issuer).stdout
    dump = "chromium --headless --no-sandbox --disable-gpu --dump-dom https://pypi.org/simple/six/ 2>/dev/null || true"
    eventually(lambda: "Links for six" in desktop.commands.run(dump, timeout=100).stdout, 60, "the page")
