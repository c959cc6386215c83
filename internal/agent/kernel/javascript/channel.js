// How frames reach the agent, and how an interrupt stops code.

// What the threads share: an interrupt must not come while a frame is written.
const shared = new Int32Array(new SharedArrayBuffer(16));
const CRITICAL = 0; // the main thread must not be stopped
const STOPPING = 1; // the watcher is about to stop it
const HANDLED = 2; // counts interrupts the main thread has dealt with
const SLEEP = 3; // nobody wakes this one

let depth = 0;

// enter begins what no interrupt may cut; it does not return when one is under way.
function enter() {
  if (depth++ > 0) return;
  Atomics.store(shared, CRITICAL, 1);
  while (Atomics.load(shared, STOPPING)) {
    depth = 0;
    Atomics.store(shared, CRITICAL, 0);
    while (Atomics.load(shared, STOPPING)); // here it is stopped
    depth = 1;
    Atomics.store(shared, CRITICAL, 1);
  }
}

function leave() {
  if (--depth === 0) Atomics.store(shared, CRITICAL, 0);
}

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
  enter();
  try {
    if (dirty || children > 0) {
      dirty = false;
      writeAll(SYNC);
      while (again(() => fs.readSync(ACK_FD, ack)) !== 1);
    }
    writeAll(line);
  } finally {
    leave();
  }
}

const SYNC = Buffer.from('{"t":"sync"}\n');

function writeAll(data) {
  for (let at = 0, wait = 0; at < data.length; ) {
    const n = again(() => fs.writeSync(SOCKET_FD, data, at));
    at += n;
    wait = n > 0 ? 0 : Math.min(wait + 1, 20);
    if (wait > 0) Atomics.wait(shared, SLEEP, 0, wait); // the agent is slow: so is this code
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

// watch starts the thread that stops code which does not let the event loop run:
// first the main thread is told, and when it does not hear its code is ended.
function watch(interrupted) {
  const watcher = new Worker(
    `const { parentPort, workerData: shared } = require("worker_threads");
    const { Session } = require("inspector");
    const net = require("net");
    let session, number = 0;
    new net.Socket({ fd: ${INTERRUPT_FD}, readable: true, writable: false }).on("data", () => {
      const before = Atomics.load(shared, ${HANDLED});
      const unheard = () => Atomics.load(shared, ${HANDLED}) === before;
      number++;
      for (let tries = 0; tries < 40; tries++) {
        parentPort.postMessage(number);
        Atomics.wait(shared, ${HANDLED}, before, 100);
        if (!unheard()) break;
        Atomics.store(shared, ${STOPPING}, 1);
        if (Atomics.load(shared, ${CRITICAL}) || !unheard()) {
          Atomics.store(shared, ${STOPPING}, 0);
          continue;
        }
        if (!session) {
          session = new Session();
          session.connectToMainThread();
        }
        session.post("Runtime.terminateExecution");
        Atomics.wait(shared, ${HANDLED}, before, 50);
        Atomics.store(shared, ${STOPPING}, 0);
      }
    }).on("error", () => {});`,
    {
      eval: true,
      workerData: shared,
      env: {},
      execArgv: [],
      stdin: false,
      resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2, codeRangeSizeMb: 4, stackSizeMb: 1 },
    },
  );
  let last = 0;
  watcher.on("message", (number) => {
    Atomics.add(shared, HANDLED, 1);
    Atomics.notify(shared, HANDLED);
    if (number !== last) interrupted();
    last = number;
  });
  watcher.on("error", () => {}); // then only the end of the kernel stops code
  watcher.unref();
}
