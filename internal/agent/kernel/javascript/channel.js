// How frames reach the agent.

// dirty is set when something but this program may have written to the pipes.
let dirty = false;
let children = 0; // that may write to them

const ack = Buffer.alloc(1);

let muted = null; // while the kernel warms up: called at the end of a run

function send(frame) {
  if (muted) {
    if (frame.t === "end") muted();
    return;
  }
  const line = Buffer.from(JSON.stringify(frame) + "\n");
  if (sending) recover();
  sending = true;
  if (dirty || children > 0) {
    dirty = false;
    writeAll(SYNC);
    readAck();
  }
  writeAll(line);
  sending = false;
}

let sending = false; // still, when a frame begins: an interrupt cut the one before
const SYNC = Buffer.from('{"t":"sync"}\n');
const CANCEL = Buffer.from("\x18\n"); // the agent drops the line that ends so

// recover takes up where an interrupt cut a frame, between any two steps: it may
// be half written, an acknowledgement unread.
function recover() {
  writeAll(CANCEL);
  writeAll(SYNC);
  readAck();
  pause(20);
  again(() => fs.readSync(ACK_FD, ack)); // the second, if there was one unread
  dirty = false;
}

function readAck() {
  for (let tries = 0; again(() => fs.readSync(ACK_FD, ack)) !== 1; tries++) {
    if (tries > 50) pause(1);
  }
}

const clock = new Int32Array(new SharedArrayBuffer(4)); // nobody wakes who waits for it

const pause = (ms) => Atomics.wait(clock, 0, 0, ms);

function writeAll(data) {
  for (let at = 0, wait = 0; at < data.length; ) {
    const n = again(() => fs.writeSync(SOCKET_FD, data, at));
    at += n;
    wait = n > 0 ? 0 : Math.min(wait + 1, 20);
    if (wait > 0) pause(wait); // the agent is slow: so is this code
  }
}

// again returns 0 where a non-blocking descriptor has nothing to give yet.
function again(call) {
  try {
    return call();
  } catch (e) {
    if (e.code === "EAGAIN" || e.code === "EINTR") return 0;
    if (e.code === "EPIPE" || e.code === "ECONNRESET") process.reallyExit(0); // the agent is gone
    throw e;
  }
}

