// Results in the form in which they are sent.

const clip = (text, limit) =>
  text.length <= limit ? text : `${text.slice(0, limit)}\n… ${text.length - limit} more characters were left out`;

const inspect = (value) => {
  try {
    return util.inspect(value, { maxStringLength: TEXT_LIMIT });
  } catch (e) {
    return `<the value cannot be shown: ${e}>`;
  }
};

// Methods by which an object shows itself, as ijavascript has them.
const METHODS = {
  "text/html": "_toHtml",
  "image/svg+xml": "_toSvg",
  "image/png": "_toPng",
  "image/jpeg": "_toJpeg",
};

// bundleOf returns the representations of a value by MIME type.
function bundleOf(value) {
  let bundle = {};
  if (value !== null && (typeof value === "object" || typeof value === "function") && !util.types.isProxy(value)) {
    const own = call(value, Symbol.for("Jupyter.display")) ?? call(value, "_toMime");
    if (own !== null && typeof own === "object") bundle = { ...own };
    for (const [mime, method] of Object.entries(METHODS)) {
      const shown = mime in bundle ? undefined : call(value, method);
      if (shown !== undefined) bundle[mime] = shown;
    }
  }
  if (!("text/plain" in bundle)) bundle["text/plain"] = inspect(value);
  return bundle;
}

function call(value, method) {
  try {
    return typeof value[method] === "function" ? value[method]() : undefined;
  } catch {
    return undefined; // as if it had none
  }
}

function encodeBundle(bundle) {
  const encoded = {};
  for (const [mime, value] of Object.entries(bundle)) {
    if (value === undefined || value === null) continue;
    if (ArrayBuffer.isView(value)) {
      encoded[mime] = Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString("base64");
    } else if (typeof value === "string") {
      encoded[mime] = mime === "text/plain" ? clip(value, TEXT_LIMIT) : value;
    } else if (/[/+]json$/.test(mime)) {
      encoded[mime] = plain(value);
    } else {
      encoded[mime] = String(value);
    }
  }
  return encoded;
}

// plain returns the value if it has a JSON form, or its text.
function plain(value) {
  try {
    const text = JSON.stringify(value, (_, v) => (typeof v === "bigint" ? String(v) : v));
    return text === undefined ? inspect(value) : JSON.parse(text);
  } catch {
    return inspect(value);
  }
}

// publish sends one result; the largest parts of one that is too big are left out.
function publish(bundle, main) {
  bundle = encodeBundle(bundle);
  const sizes = Object.entries(bundle).map(([mime, value]) => [Buffer.byteLength(JSON.stringify(value)), mime]);
  sizes.sort((a, b) => a[0] - b[0]);
  let total = sizes.reduce((sum, [size]) => sum + size, 0);
  while (total > BUNDLE_LIMIT) {
    const [size, mime] = sizes.pop();
    total -= size;
    delete bundle[mime];
    output.write("err", `[${mime} of a result left out: ${size} bytes; a result may have ${BUNDLE_LIMIT}. Write it to a file.]\n`);
  }
  output.flush();
  if (Object.keys(bundle).length > 0) send({ t: "data", d: bundle, main });
}

const isBundle = (value) =>
  value !== null &&
  typeof value === "object" &&
  Object.getPrototypeOf(value) === Object.prototype &&
  Object.keys(value).length > 0 &&
  Object.keys(value).every((key) => /^[\w.+-]+\/[\w.+-]+$/.test(key));

// display shows a value, or a bundle of MIME types, beside the result.
function display(...values) {
  for (const value of values) publish(isBundle(value) ? value : bundleOf(value), false);
}

const SHORT = {
  text: "text/plain",
  html: "text/html",
  markdown: "text/markdown",
  latex: "text/latex",
  svg: "image/svg+xml",
  png: "image/png",
  jpeg: "image/jpeg",
  json: "application/json",
};

// helpers is ijavascript's $$ for one run.
function helpers(run) {
  const settle = (show) => (value, keepAlive) => {
    if (keepAlive || isThenable(value)) run.async = true;
    const now = (settled) => {
      if (keepAlive) publish(show(settled), false);
      else run.finish(show(settled));
    };
    if (isThenable(value)) value.then(now, (e) => run.fail(e, !keepAlive));
    else now(value);
  };
  const shown = {
    mime: settle((bundle) => bundle),
    sendResult: settle(bundleOf),
    sendError: (error, keepAlive) => {
      if (keepAlive) run.async = true;
      run.fail(error, !keepAlive);
    },
    async: (on = true) => (run.async = Boolean(on)),
    done: (...result) => run.finish(result.length > 0 ? bundleOf(result[0]) : null),
    display: () => {
      const part = { mime: (bundle) => publish(bundle, false), close() {} };
      for (const [name, mime] of Object.entries(SHORT)) part[name] = (value) => publish({ [mime]: value }, false);
      return part;
    },
    input: () => {
      throw new Error("$$.input() has nobody to ask here: runs have no standard input; pass the value in the code or by env_vars");
    },
  };
  for (const [name, mime] of Object.entries(SHORT)) shown[name] = settle((value) => ({ [mime]: value }));
  return shown;
}

const isThenable = (value) =>
  value !== null && (typeof value === "object" || typeof value === "function") && util.types.isPromise(value);
