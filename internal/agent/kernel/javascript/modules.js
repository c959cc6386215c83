// Where packages are found: from the current folder upwards, in the home folder
// of the sandbox's user, and where npm installs them for all.

const HOME = "/home/user";
const globalDirs = [...new Set([
  path.join(path.dirname(process.execPath), "../lib/node_modules"),
  "/usr/local/lib/node_modules",
  "/usr/lib/node_modules",
  "/usr/share/nodejs",
])];

const here = () => {
  try {
    return process.cwd();
  } catch {
    return "/"; // the folder is gone
  }
};

// nodePath makes require find what is not above the current folder.
function nodePath() {
  const own = process.env.NODE_PATH;
  process.env.NODE_PATH = [own, `${HOME}/node_modules`, ...globalDirs].filter(Boolean).join(":");
  Module._initPaths();
  if (own === undefined) delete process.env.NODE_PATH;
  else process.env.NODE_PATH = own;
}

const requires = new Map(); // by folder

function requireHere() {
  const dir = here();
  let found = requires.get(dir);
  if (!found) {
    if (requires.size > 100) requires.clear();
    requires.set(dir, (found = Module.createRequire(path.join(dir, "run.js"))));
  }
  return found;
}

// importHere is import() of the runs.
async function importHere(specifier, options) {
  specifier = `${specifier}`;
  const dir = here();
  const bare = !/^(?:\.{0,2}\/|\.{1,2}$|#|[a-z][a-z+.-]+:)/i.test(specifier);
  const places = bare ? [dir, HOME, ...globalDirs.map(path.dirname)] : [dir];
  let missing;
  for (const place of places) {
    try {
      return await importFrom(place)(specifier, options);
    } catch (e) {
      const package_ = bare && specifier.split("/").slice(0, specifier.startsWith("@") ? 2 : 1).join("/");
      if (e?.code !== "ERR_MODULE_NOT_FOUND" || !bare || !e.message.includes(`'${package_}'`)) throw e;
      missing ??= e;
    }
  }
  throw new MissingModule(specifier, missing);
}

class MissingModule extends Error {
  constructor(specifier) {
    super(`Cannot find package '${specifier}' from ${here()}; install it there with npm`);
    this.name = "Error";
    this.code = "ERR_MODULE_NOT_FOUND";
  }
}

const importers = new Map(); // by folder

function importFrom(dir) {
  let importer = importers.get(dir);
  if (!importer) {
    if (importers.size > 100) importers.clear();
    importer = new vm.Script("(specifier, options) => import(specifier, options)", {
      filename: path.join(dir, "run.js"),
      importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((specifier) => olderImport(dir, specifier)),
    }).runInThisContext();
    importers.set(dir, importer);
  }
  return importer;
}

// olderImport is for Node before 20.10, which resolves by this program's place.
function olderImport(dir, specifier) {
  if (Module.isBuiltin(specifier) || /^[a-z][a-z+.-]+:/i.test(specifier)) return import(specifier);
  return import(require("url").pathToFileURL(Module.createRequire(path.join(dir, "run.js")).resolve(specifier)).href);
}

// defineModules gives runs what a file has: require, module, exports, __dirname,
// and what stands for import.
function defineModules() {
  nodePath();
  const main = new Module("run.js", null);
  main.filename = path.join(here(), "run.js");
  main.paths = Module._nodeModulePaths(here());
  const require_ = (id) => requireHere()(id);
  Object.defineProperties(require_, {
    resolve: { get: () => requireHere().resolve, enumerable: true },
    cache: { get: () => requireHere().cache, enumerable: true },
    extensions: { get: () => requireHere().extensions, enumerable: true },
    main: { value: main, enumerable: true, writable: true },
  });
  const meta = {
    get url() {
      return require("url").pathToFileURL(path.join(here(), "run.js")).href;
    },
    get dirname() {
      return here();
    },
    get filename() {
      return path.join(here(), "run.js");
    },
    resolve(specifier) {
      if (Module.isBuiltin(specifier)) return specifier.startsWith("node:") ? specifier : `node:${specifier}`;
      return require("url").pathToFileURL(requireHere().resolve(specifier)).href;
    },
  };
  importHere.meta = meta;
  define("require", require_);
  define("module", main);
  define("exports", main.exports);
  Object.defineProperty(globalThis, "__filename", { get: () => meta.filename, set: (v) => define("__filename", v), configurable: true });
  Object.defineProperty(globalThis, "__dirname", { get: here, set: (v) => define("__dirname", v), configurable: true });
  define(IMPORT, importHere);
  define(EXPORTED, undefined);
  define("display", display);
}

// define makes a global that code may replace, and that no listing shows.
function define(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}
