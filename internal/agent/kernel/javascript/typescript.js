// TypeScript becomes JavaScript by what the template has: oxc-transform, which is
// there at once; the typescript package, for decorators, which oxc leaves as they
// are; or Node's own transformer, from Node 22 on.

const NO_TRANSPILER =
  "the template cannot transpile TypeScript: add the npm packages oxc-transform and typescript to it, or use Node 22 or newer";

// transpile changes the source to JavaScript, or throws a SyntaxError.
function transpile(source) {
  const done = (code, map) => {
    source.running = code;
    source.map = map ? new Module.SourceMap(typeof map === "string" ? JSON.parse(map) : map) : null;
  };
  const oxc = load("oxc-transform");
  if (oxc) {
    const { code, map, errors } = (oxc.transformSync ?? oxc.transform)("run.ts", source.code, {
      lang: "ts",
      sourceType: "module",
      sourcemap: true,
      typescript: { onlyRemoveTypeImports: true },
    });
    const wrong = errors.find((e) => e.severity === "Error") ?? errors[0];
    if (wrong) throw positioned(wrong.message, source.code, byteIndex(source.code, wrong.labels?.[0]?.start ?? 0));
    if (!/@/.test(source.code) || !hasDecorators(code)) return done(code, map);
  }
  const ts = load("typescript");
  if (ts) {
    const { outputText, sourceMapText, diagnostics } = ts.transpileModule(source.code, {
      fileName: "run.ts",
      reportDiagnostics: true,
      compilerOptions: {
        target: ts.ScriptTarget.ES2022,
        module: ts.ModuleKind.ESNext,
        verbatimModuleSyntax: true,
        sourceMap: true,
        ...decoratorOptions(),
      },
    });
    const wrong = diagnostics.find((d) => d.category === ts.DiagnosticCategory.Error);
    if (wrong) throw positioned(ts.flattenDiagnosticMessageText(wrong.messageText, "\n"), source.code, wrong.start ?? 0);
    return done(outputText.replace(/\n\/\/# sourceMappingURL=.*\s*$/, "\n"), sourceMapText);
  }
  if (oxc) throw lacking("decorators need the npm package typescript: add it to the template");
  if (Module.stripTypeScriptTypes) {
    return done(Module.stripTypeScriptTypes(source.code, { mode: "transform" }), null);
  }
  throw lacking(NO_TRANSPILER);
}

// lacking is an error of the template's, not of a line of the code.
function lacking(message) {
  const error = new Error(message);
  error.stack = `Error: ${message}`;
  return error;
}

const loaded = new Map();

function load(name) {
  if (!loaded.has(name)) {
    let found = null;
    try {
      found = Module.createRequire("/usr/lib/run.js")(name);
    } catch (e) {
      if (e.code !== "MODULE_NOT_FOUND") output.write("err", `[load ${name}: ${e.message}]\n`);
    }
    if (!found) return null; // it may be installed later
    loaded.set(name, found);
  }
  return loaded.get(name);
}

// hasDecorators is for code that oxc has taken: if acorn stops at an @, it is one.
function hasDecorators(code) {
  try {
    parse(code);
  } catch (e) {
    return code[e.pos] === "@";
  }
  return false;
}

// decoratorOptions are those of the folder's tsconfig.json: decorators are
// standard ones unless it says otherwise, as for TypeScript itself.
function decoratorOptions() {
  try {
    const ts = load("typescript");
    const options = ts.readConfigFile(path.join(here(), "tsconfig.json"), ts.sys.readFile).config?.compilerOptions ?? {};
    return {
      experimentalDecorators: Boolean(options.experimentalDecorators),
      emitDecoratorMetadata: Boolean(options.emitDecoratorMetadata),
    };
  } catch {
    return {};
  }
}

// byteIndex is for positions in UTF-8.
function byteIndex(code, bytes) {
  return Buffer.from(code).subarray(0, bytes).toString().length;
}

function positioned(message, code, index) {
  const before = code.slice(0, index).split("\n");
  return syntaxError(message, before.length, before.at(-1).length + 1);
}
