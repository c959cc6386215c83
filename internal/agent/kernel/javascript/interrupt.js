// How an interrupt stops code.
//
// The agent writes the number of the run on a pipe. A thread reads it, the watcher:
// it tells the main thread, and stops it by the inspector where code does not let
// the event loop run. It starts with the first run, and not in a snapshot: it takes
// 8 MB.

// What the watcher and the main thread share.
const RUN = 0; // the low byte of the number of the open run, or -1
const HEARD = 1; // counts what the main thread has heard from the watcher
const CRITICAL = 2; // the main thread ends a run: it must not be stopped
const STOPPING = 3; // the watcher is about to stop it
const POSTED = 4; // the watcher has asked V8 to stop the main thread
let shared = null;

function tellWatcher(number) {
  if (shared) Atomics.store(shared, RUN, number);
}

// critical calls f, which no watcher stops. When one was about to, it is stopped
// before f begins; the watcher then tells of the interrupt once more.
function critical(f) {
  if (!shared || Atomics.load(shared, CRITICAL)) return f();
  if (Atomics.load(shared, POSTED)) {
    // If the code came to its end by itself, what V8 was asked for is still to come.
    for (const until = performance.now() + 30; performance.now() < until; );
    Atomics.store(shared, POSTED, 0);
  }
  for (;;) {
    Atomics.store(shared, CRITICAL, 1);
    if (!Atomics.load(shared, STOPPING)) break;
    Atomics.store(shared, CRITICAL, 0);
    while (Atomics.load(shared, STOPPING));
  }
  try {
    return f();
  } finally {
    Atomics.store(shared, CRITICAL, 0);
  }
}

// watch starts the watcher. It first tells the main thread of an interrupt, and
// when that does not hear ends what it does.
function watch(number) {
  if (shared) return;
  shared = new Int32Array(new SharedArrayBuffer(32));
  tellWatcher(number);
  const watcher = new Worker(
    `const { parentPort, workerData: shared } = require("worker_threads");
    const { Session } = require("inspector");
    const net = require("net");
    let session;
    new net.Socket({ fd: ${INTERRUPT_FD}, readable: true, writable: false }).on("data", (data) => {
      const number = data.at(-1);
      const open = () => Atomics.load(shared, ${RUN}) === number;
      for (let tries = 0; tries < 40 && open(); tries++) {
        const before = Atomics.load(shared, ${HEARD});
        parentPort.postMessage(number);
        Atomics.wait(shared, ${HEARD}, before, 100);
        if (Atomics.load(shared, ${HEARD}) !== before) return;
        Atomics.store(shared, ${STOPPING}, 1);
        if (!Atomics.load(shared, ${CRITICAL}) && open()) {
          if (!session) (session = new Session()).connectToMainThread();
          Atomics.store(shared, ${POSTED}, 1);
          session.post("Runtime.terminateExecution");
          Atomics.wait(shared, ${HEARD}, before, 50);
        }
        Atomics.store(shared, ${STOPPING}, 0);
      }
    }).on("error", () => {});`,
    { eval: true, workerData: shared, env: {}, execArgv: [], resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 1 } },
  );
  watcher.on("message", (number) => {
    if (run && (run.number & 0xff) === number) run.interrupt();
    Atomics.add(shared, HEARD, 1);
    Atomics.notify(shared, HEARD);
  });
  watcher.on("error", () => {}); // then the kernel's end is what stops code
  watcher.unref();
}
