// What JavaScript writes: whole lines go at once until there are many.

const output = {
  parts: [], // [stream, text]
  size: 0,
  sent: { out: 0, err: 0 },
  tokens: DIRECT_BURST,
  refilled: 0,
  flushed: 0,
  timer: null,

  begin() {
    this.sent = { out: 0, err: 0 };
    this.tokens = DIRECT_BURST; // whatever the run before printed: no timer sends lines while code computes
  },

  write(name, text) {
    const room = STREAM_LIMIT - this.sent[name];
    if (text.length === 0 || room <= 0) return;
    if (text.length > room) text = text.slice(0, room);
    this.sent[name] += text.length;
    this.parts.push([name, text]);
    this.size += text.length;
    const now = performance.now();
    if (this.size >= CHUNK || now - this.flushed > FLUSH_AFTER || (text.endsWith("\n") && this.maySend(now))) {
      this.flush(now);
    } else if (this.timer === null) {
      this.timer = setTimeout_(() => {
        this.timer = null;
        this.flush(performance.now());
      }, FLUSH_AFTER);
      this.timer.unref();
    }
  },

  maySend(now) {
    this.tokens = Math.min(DIRECT_BURST, this.tokens + ((now - this.refilled) / 1000) * DIRECT_RATE);
    this.refilled = now;
    if (this.tokens < 1) return false;
    this.tokens--;
    return true;
  },

  flush(now = performance.now()) {
    if (this.parts.length === 0) return;
    const parts = this.parts;
    this.parts = [];
    this.size = 0;
    this.flushed = now;
    for (let at = 0; at < parts.length; ) {
      const name = parts[at][0];
      let text = "";
      for (; at < parts.length && parts[at][0] === name; at++) text += parts[at][1];
      for (let from = 0, to; from < text.length; from = to) {
        to = from + CHUNK;
        if (isHighSurrogate(text, to - 1)) to--;
        send({ t: name, s: text.slice(from, to) });
      }
    }
  },
};

const setTimeout_ = setTimeout; // whatever becomes of the global
const isHighSurrogate = (text, at) => at < text.length && (text.charCodeAt(at) & 0xfc00) === 0xd800;

// A Stream is process.stdout or process.stderr. It keeps nothing back, so that an
// interrupt leaves nothing half done in it.
class Stream extends Writable {
  constructor(name, fd) {
    super({ decodeStrings: false });
    this._part = name;
    this._decoder = new StringDecoder("utf8");
    this.fd = fd;
    this._isStdio = true;
    this.isTTY = false;
  }

  write(chunk, encoding, done) {
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    if (typeof chunk !== "string") {
      if (!ArrayBuffer.isView(chunk)) {
        throw Object.assign(
          new TypeError(`The "chunk" argument must be of type string or an instance of Buffer, TypedArray, or DataView. Received ${util.inspect(chunk)}`),
          { code: "ERR_INVALID_ARG_TYPE" },
        );
      }
      chunk = this._decoder.write(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    } else if (encoding === "hex" || encoding === "base64" || encoding === "base64url") {
      chunk = Buffer.from(chunk, encoding).toString();
    }
    output.write(this._part, chunk);
    if (typeof done === "function") process.nextTick(done);
    return true;
  }

  // Closing would only lose later output.
  end(chunk, encoding, done) {
    if (typeof chunk === "function") [chunk, done] = [undefined, chunk];
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    if (chunk !== undefined && chunk !== null) this.write(chunk, encoding);
    process.nextTick(() => {
      if (typeof done === "function") done();
      this.emit("finish");
    });
    return this;
  }

  destroy() {
    return this;
  }
}

function takeOutput() {
  for (const [name, part, fd] of [["stdout", "out", 1], ["stderr", "err", 2]]) {
    const stream = new Stream(part, fd);
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
  }
  // The methods of the global console tell the inspector too, which keeps what it
  // is told.
  const plain = new console.Console({ stdout: process.stdout, stderr: process.stderr });
  for (const name of Object.keys(console)) {
    if (typeof plain[name] === "function" && name !== "Console") console[name] = plain[name];
  }
  process.on("exit", () => output.flush());
  const exit = process.reallyExit;
  process.reallyExit = function (code) {
    output.flush();
    exit.call(process, code);
  };
  for (const name of ["abort", "kill"]) {
    const original = process[name];
    process[name] = function (...args) {
      output.flush();
      return original.apply(process, args);
    };
  }
}

const OUTPUTS = new Set([1, 2, "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"]);

// watchChildren notes what may write to the pipes: child processes, writes to the
// descriptors themselves, and native code.
function watchChildren() {
  const childProcess = require("child_process");
  const spawn = childProcess.ChildProcess.prototype.spawn;
  childProcess.ChildProcess.prototype.spawn = function (options) {
    output.flush();
    const failed = spawn.call(this, options);
    if (!failed && this.pid) {
      children++;
      this.once("exit", () => {
        children--;
        dirty = true;
      });
    }
    return failed;
  };
  const wrap = (holder, name, concerns) => {
    const original = holder[name];
    if (typeof original !== "function") return;
    holder[name] = function (...args) {
      if (!concerns(args)) return original.apply(this, args);
      output.flush();
      dirty = true;
      return original.apply(this, args);
    };
    // promisify and the like look for what hangs on the function
    Object.defineProperties(holder[name], Object.getOwnPropertyDescriptors(original));
  };
  for (const name of ["spawnSync", "execSync", "execFileSync"]) wrap(childProcess, name, () => true);
  for (const name of ["write", "writeSync", "writev", "writevSync", "appendFileSync", "writeFileSync"]) {
    wrap(fs, name, (args) => OUTPUTS.has(args[0]));
  }
  wrap(process, "dlopen", () => true);
  Module.syncBuiltinESMExports();
}
