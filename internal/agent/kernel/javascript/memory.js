// What a snapshot of this process must get rid of: shared randomness, garbage.

// V8 keeps the state of Math.random where nothing reaches it, so ours takes its
// place: sfc32, which passes PractRand, with 53 bits for each number.
let a, b, c, d;

function next() {
  const t = (a + b + d) | 0;
  d = (d + 1) | 0;
  a = b ^ (b >>> 9);
  b = (c + (c << 3)) | 0;
  c = ((c << 21) | (c >>> 11)) + t | 0;
  return t;
}

function reseed(seed) {
  [a, b, c, d] = [0, 4, 8, 12].map((at) => seed.readInt32LE(at));
  for (let i = 0; i < 16; i++) next();
  stir();
  dropCaches();
}

function ownRandomness() {
  const seed = Buffer.alloc(16);
  const fd = fs.openSync("/dev/urandom", "r");
  fs.readSync(fd, seed);
  fs.closeSync(fd);
  reseed(seed);
  Math.random = function random() {
    return ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
  };
  Object.defineProperty(Math, "random", { enumerable: false });
}

// OpenSSL keeps the state of its generator in memory too, and Node has no way to
// stir it. A template that keeps a kernel warm has a library that does when it is
// loaded, see templates/code-interpreter-v1. It is no module of Node's, so Node
// takes it out again, and the next load stirs again.
const STIR = "/usr/local/lib/tombolo/stir.node";
const dlopen = process.dlopen;

// stir returns whether OpenSSL has fresh randomness.
function stir() {
  if (!fs.existsSync(STIR)) return false;
  try {
    dlopen.call(process, { exports: {} }, STIR);
  } catch {
    // "did not self-register"
  }
  return true;
}

// dropCaches uses up what node:crypto has drawn ahead for randomInt and randomUUID.
function dropCaches() {
  if (!process.moduleLoadList.includes("NativeModule internal/crypto/random")) return;
  const crypto = require("crypto");
  for (let i = 0; i < 1024; i++) crypto.randomInt(2);
  for (let i = 0; i < 128; i++) crypto.randomUUID();
}

function settleMemory() {
  const v8 = require("v8");
  v8.setFlagsFromString("--expose-gc");
  const collect = vm.runInNewContext("gc"); // a global of this one could not be removed
  v8.setFlagsFromString("--no-expose-gc");
  for (let i = 0; i < 3; i++) collect();
}
