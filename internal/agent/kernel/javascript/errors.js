// Errors as the caller sees them: with lines of the code that was sent.

function sendError(error, source) {
  const isError = util.types.isNativeError(error) || error instanceof Error;
  let name = typeof error, value = inspect(error);
  try {
    if (isError || (error !== null && typeof error === "object" && typeof error.name === "string" && "message" in error)) {
      name = String(error.name);
      value = String(error.message);
    }
  } catch {
    // a hostile getter: what is there already says enough
  }
  output.flush();
  send({
    t: "error",
    name: clip(name, 1024),
    value: clip(value, ERROR_LIMIT),
    tb: clip(traceback(error, isError, source), ERROR_LIMIT),
  });
}

function traceback(error, isError, source) {
  if (!isError) return `Uncaught ${inspect(error)}`;
  const at = error[POSITION];
  if (at) {
    const code = source.lines[at.line - 1] ?? "";
    return `${source.file}:${at.line}\n${lineAndMark({ code, column: at.column })}\n\nSyntaxError: ${error.message}`;
  }
  const text = inspect(error);
  const mark = firstLine(text);
  return mark ? `${mark}\n\n${text}` : text;
}

// cleanStacks leaves this program out of all stack traces, and puts in the lines
// of TypeScript.
function cleanStacks() {
  const { kIsNodeError } = require("internal/errors");
  Error.prepareStackTrace = (error, frames) => {
    let head = "Error";
    try {
      head = Error.prototype.toString.call(error);
      if (kIsNodeError in error && error.code) head = head.replace(error.name, `${error.name} [${error.code}]`);
    } catch {
      // a hostile getter
    }
    let text = head;
    for (const frame of frames) {
      const file = frame.getFileName() ?? frame.getScriptNameOrSourceURL();
      if (file === "node:inspector") break; // below are its callers
      if (file === KERNEL_FILE || file?.startsWith("[eval]")) continue;
      text += `\n    at ${frame}`;
    }
    return text.replace(PLACE, (place, file, line, column) => {
      const at = sources.get(file)?.origin(Number(line), Number(column));
      return at ? `${file}:${at.line}:${at.column}` : place;
    });
  };
}

const PLACE = /\b(run_\d+\.[jt]s):(\d+):(\d+)/g;

// firstLine shows the line of the run in which the error was made.
function firstLine(text) {
  const place = /\n +at [^\n]*?\b(run_\d+\.[jt]s):(\d+):(\d+)/.exec(text);
  const code = place && sources.get(place[1])?.lines[place[2] - 1];
  if (!code) return "";
  return `${place[1]}:${place[2]}\n${lineAndMark({ code, column: Number(place[3]) })}`;
}

function lineAndMark({ code, column }) {
  code = code.slice(0, 500);
  return `${code}\n${code.slice(0, Math.min(column - 1, 500)).replace(/[^\t]/g, " ")}^`;
}

const POSITION = Symbol("position");

function syntaxError(message, line, column) {
  const error = new SyntaxError(message);
  error.stack = `SyntaxError: ${message}`;
  Object.defineProperty(error, POSITION, { value: { line, column } });
  return error;
}
