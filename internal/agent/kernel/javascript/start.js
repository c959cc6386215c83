// The JavaScript side of Tombolo's kernel driver: V8's REPL mode without a REPL.
//
// The files of this folder are one program, the body of a function of `require`:
// the agent joins them in the order start, channel, interrupt, output, results,
// errors, source, modules, typescript, memory, kernel. Its descriptors are those of
// program.go; 4 and 6 of
// them do not block.
//
// What JavaScript prints goes over the socket, so that it keeps its order with
// results. The agent reads the pipes of child processes itself. Where a child
// may have written, a "sync" frame before the next frame makes the agent read
// the pipes first.
//
// V8 evaluates runs as the console of its developer tools does: const, let and
// class may be declared again, await works everywhere, and all else is plain
// JavaScript. So nothing is parsed here but what that mode has not: import and
// export, and TypeScript.
"use strict";

const fs = require("fs");
const inspector = require("inspector");
const path = require("path");
const util = require("util");
const vm = require("vm");
const Module = require("module");
const { StringDecoder } = require("string_decoder");
const { Writable } = require("stream");
const { Worker } = require("worker_threads");

const SOCKET_FD = 3, ACK_FD = 4, PROGRAM_FD = 5, INTERRUPT_FD = 6;
const CHUNK = 32 * 1024; // characters of output in one frame
const STREAM_LIMIT = 16 * 1024 * 1024 + 1; // characters a run and stream; the agent's limit is just below
const BUNDLE_LIMIT = 12 * 1024 * 1024; // bytes of one result, encoded
const TEXT_LIMIT = 1024 * 1024; // characters of text/plain
const ERROR_LIMIT = 512 * 1024; // characters of an error's value and of its traceback
const FLUSH_AFTER = 20; // ms
const DIRECT_BURST = 64, DIRECT_RATE = 100; // lines sent as they are printed: at once, and a second
const KERNEL_FILE = "tombolo-kernel.js"; // the name of this program in stack traces
