// The loop that serves the agent's requests.

const setImmediate_ = setImmediate; // whatever becomes of the global
const session = new inspector.Session();
const isTypeScript = process.argv[1] === "typescript";
let run = null; // the open one
let count = 0;
let env = { ...process.env };

// A Run is one execution, from its request to its end.
class Run {
  constructor(request) {
    this.request = request;
    this.async = false; // the code said that it ends by $$.done()
    this.main = false; // its main result was sent
    this.over = false;
    this.undo = [];
    this.timers = new Set();
  }

  start() {
    output.begin();
    this.number = ++count;
    tellWatcher(this.number & 0xff);
    if (!muted) watch(this.number & 0xff);
    send({ t: "count", n: this.number });
    this.addEnv(this.request.env ?? {});
    define("$$", helpers(this));
    const source = new Source(`run_${this.number}.${isTypeScript ? "ts" : "js"}`, this.request.code ?? "");
    this.source = source;
    try {
      source.running = source.code;
      if (isTypeScript) transpile(source);
      this.evaluate(prepared(source.running), 0);
    } catch (e) {
      this.fail(e);
    }
  }

  evaluate(code, tries) {
    session.post(
      "Runtime.evaluate",
      {
        expression: `${code}\n//# sourceURL=${this.source.file}`,
        replMode: true,
        awaitPromise: true,
        objectGroup: "run",
        userGesture: false,
      },
      (failure, answer) => {
        if (this.over) return;
        if (failure) return this.interrupt(); // "Execution was terminated"
        const { result, exceptionDetails } = answer;
        if (exceptionDetails) this.failed(exceptionDetails, code, tries);
        else this.value(valueOf(result));
      },
    );
  }

  failed(details, code, tries) {
    const error = details.exception ? valueOf(details.exception) : new Error(details.text);
    const again = error instanceof SyntaxError && /^Identifier '(.+)' has already been declared$/.exec(error.message);
    const changed = again && tries < 50 && redeclared(code, again[1]);
    if (changed) return this.evaluate(changed, tries + 1);
    // Errors in the syntax of the code itself have a script and no stack.
    if (error instanceof SyntaxError && details.scriptId && !isThrown(error)) {
      if (!isTypeScript && tries === 0 && this.asTypeScript()) return;
      const at = this.source.origin(details.lineNumber + 1, details.columnNumber + 1) ?? {
        line: details.lineNumber + 1,
        column: details.columnNumber + 1,
      };
      return this.fail(syntaxError(error.message, at.line, at.column));
    }
    this.fail(error);
  }

  // asTypeScript runs code that is no JavaScript if it is TypeScript, which
  // upstream's JavaScript contexts take too.
  asTypeScript() {
    const before = this.source.running;
    try {
      transpile(this.source);
      const code = prepared(this.source.running);
      new vm.Script(`(async () => {${code}\n})`);
      this.evaluate(code, 1);
      return true;
    } catch {
      this.source.running = before;
      this.source.map = null;
      return false;
    }
  }

  value(value) {
    if (util.types.isPromise(value)) {
      value.then((settled) => this.result(settled), (e) => this.fail(e));
      return;
    }
    this.result(value);
  }

  // result ends the run with the value of the last expression.
  result(value) {
    if (this.over || this.async) return;
    if (value === undefined || this.main) return this.end();
    this.finish(bundleOf(value));
  }

  // finish sends the main result, unless there was one, and ends the run once its
  // code has come to its own end.
  finish(bundle) {
    if (this.over) return;
    if (bundle) publish(bundle, !this.main);
    this.main = true;
    this.async = false;
    this.end();
  }

  fail(error, ends = true) {
    if (this.over) return;
    sendError(error, this.source);
    if (ends) this.end();
  }

  // end waits for what is due at once: it belongs to the run. A rejection nobody
  // took is told before, too.
  end() {
    if (this.over) return;
    this.over = true;
    setImmediate_(() => this.close());
  }

  close() {
    critical(() => this.closeNow());
  }

  closeNow() {
    if (run !== this) return;
    run = null;
    tellWatcher(-1);
    this.over = true;
    output.flush();
    this.removeEnv();
    session.post("Runtime.releaseObjectGroup", { objectGroup: "run" });
    send({ t: "end" });
  }

  interrupt() {
    critical(() => this.interruptNow());
  }

  interruptNow() {
    if (this.over) return;
    const error = new Error("the run was interrupted");
    error.name = "Interrupted";
    error.stack = "Interrupted: the run was interrupted";
    this.fail(error, false);
    for (const timer of this.timers) (clearTimeout(timer), clearImmediate(timer));
    this.close();
  }

  addEnv(added) {
    for (const [name, value] of Object.entries(added)) {
      this.undo.push([name, process.env[name]]);
      process.env[name] = value;
    }
  }

  removeEnv() {
    while (this.undo.length > 0) {
      const [name, value] = this.undo.pop();
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
}

const isThrown = (error) => /\n +at .*\brun_\d+\.[jt]s:/.test(String(error.stack));

// valueOf returns the value that the inspector describes.
function valueOf(remote) {
  if (remote.objectId === undefined) {
    if (remote.type === "undefined") return undefined;
    if (remote.unserializableValue === undefined) return remote.value;
    const text = remote.unserializableValue;
    return text.endsWith("n") ? BigInt(text.slice(0, -1)) : Number(text);
  }
  let value;
  taken = (v) => (value = v);
  session.post("Runtime.callFunctionOn", {
    objectId: remote.objectId,
    functionDeclaration: `function () { "use strict"; ${TAKE}(this); }`,
    objectGroup: "run",
  });
  taken = null;
  return value;
}

let taken = null;
const TAKE = "$$take";

// watchTimers lets an interrupt take the timers of a run along, so that loops
// which sleep and intervals end with it.
function watchTimers() {
  for (const name of ["setTimeout", "setInterval", "setImmediate"]) {
    const original = globalThis[name];
    const wrapped = function (...args) {
      const timer = original.apply(this, args);
      if (run) {
        if (run.timers.size >= MANY_TIMERS) {
          for (const old of run.timers) if (old._destroyed) run.timers.delete(old);
        }
        run.timers.add(timer);
      }
      return timer;
    };
    Object.defineProperties(wrapped, Object.getOwnPropertyDescriptors(original));
    globalThis[name] = wrapped;
  }
}

const MANY_TIMERS = 10_000;

// setEnv applies what changed of the sandbox's variables; the user's own stay.
function setEnv(next) {
  for (const name of Object.keys(env)) {
    if (!(name in next) && process.env[name] === env[name]) delete process.env[name];
  }
  for (const [name, value] of Object.entries(next)) {
    if (env[name] !== value) process.env[name] = value;
  }
  env = next;
}

// warm goes once through every path a first run takes, then gives memory back.
function warm(modules) {
  let problem = "";
  const codes = ["1 + 1", "console.log('warm'); ({ a: [1, 'b'] })", "await null; throw new Error('warm')", "const = 1"];
  const next = () => {
    const code = codes.shift();
    if (code === undefined) return done();
    muted = () => setImmediate_(next);
    run = new Run({ code });
    run.start();
  };
  const done = () => {
    muted = null;
    count = 0;
    sources.clear();
    delete globalThis.$$;
    settleMemory();
    send({ t: "warmed", s: problem });
    // A copy of this process would draw the same keys as all others: better none.
    if (!fs.existsSync(STIR)) process.reallyExit(0);
  };
  try {
    for (const name of modules) requireHere()(name);
    next();
  } catch (e) {
    problem = String(e);
    done();
  }
}

const handlers = {
  run(request) {
    run = new Run(request);
    run.start();
  },
  env: (request) => setEnv(request.env ?? {}),
  seed: (request) => reseed(Buffer.from(request.seed, "base64")),
  warm: (request) => warm(request.modules),
};

function uncaught(error, kind = "Uncaught") {
  process.stderr.write(`${kind} ${inspect(error)}\n`);
}

function serve() {
  fs.closeSync(PROGRAM_FD);
  process.argv.length = 1;
  process.execArgv = [];
  ownRandomness();
  cleanStacks();
  takeOutput();
  watchChildren();
  watchTimers();
  defineModules();
  define(TAKE, (v) => taken?.(v));
  session.connect();
  process.on("SIGINT", () => {}); // the agent sends it to the group, for children
  process.on("uncaughtException", (error) => uncaught(error));
  process.on("unhandledRejection", (error) => uncaught(error, "Uncaught (in promise)"));

  const requests = new (require("net").Socket)({ fd: SOCKET_FD, readable: true, writable: false });
  let rest = [];
  requests.on("data", (data) => {
    for (let end; (end = data.indexOf(10)) >= 0; ) {
      rest.push(data.subarray(0, end));
      data = data.subarray(end + 1);
      const request = JSON.parse(Buffer.concat(rest).toString());
      rest = [];
      handlers[request.op]?.(request);
    }
    if (data.length > 0) rest.push(data);
  });
  const gone = () => process.reallyExit(0); // the agent is gone
  requests.on("end", gone).on("error", gone);
  send({ t: "ready" });
}

// --eval puts its own module back when its code has come to its end.
setImmediate_(serve);
