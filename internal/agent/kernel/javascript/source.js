// What V8's REPL mode does not take is rewritten, in place: lines and, nearly
// always, columns stay as they are.

const KEPT_SOURCES = 64;
const sources = new Map(); // by file name, the last ones

// A Source is the code of one run under the name it has in stack traces.
class Source {
  constructor(file, code) {
    this.file = file;
    this.code = code;
    this.lines = code.split(/\r?\n/, 100_000);
    this.map = null; // of TypeScript
    sources.set(file, this);
    if (sources.size > KEPT_SOURCES) sources.delete(sources.keys().next().value);
  }

  // origin is the place in the caller's code of one in the code that runs.
  origin(line, column) {
    const entry = this.map?.findEntry(line - 1, column - 1);
    if (entry?.originalLine === undefined) return null;
    return { line: entry.originalLine + 1, column: entry.originalColumn + 1 };
  }
}

let acorn, walk;

function parse(code) {
  if (!acorn) {
    acorn = require("internal/deps/acorn/acorn/dist/acorn");
    walk = require("internal/deps/acorn/acorn-walk/dist/walk");
  }
  return acorn.parse(code, {
    ecmaVersion: "latest",
    sourceType: "script",
    allowHashBang: true,
    allowImportExportEverywhere: true,
    allowAwaitOutsideFunction: true,
    locations: false,
  });
}

// prepared returns code in which import statements are dynamic imports, which find
// packages from here, and exported declarations plain ones. What acorn cannot
// parse is left to V8.
//
// V8 lets const be declared again as const only, so it becomes let, as long as
// nothing assigns to it and would have to fail.
function prepared(code) {
  if (!/\b(?:import|export|const)\b/.test(code)) return code;
  let tree;
  try {
    tree = parse(code);
  } catch {
    return code;
  }
  const edits = [];
  const replace = (from, to, text) => {
    const lines = code.slice(from, to).match(/\n/g)?.length ?? 0;
    edits.push([from, to, text + "\n".repeat(Math.max(0, lines - (text.match(/\n/g)?.length ?? 0)))]);
  };
  const assigned = new Set();
  walk.full(tree, (node) => {
    if (node.type === "AssignmentExpression" || /^For(?:In|Of)Statement$/.test(node.type)) addNames(node.left, assigned);
    else if (node.type === "UpdateExpression") addNames(node.argument, assigned);
    else if (node.type === "ImportExpression") replace(node.start, node.start + "import".length, IMPORT);
    else if (node.type === "MetaProperty" && node.meta.name === "import") replace(node.start, node.end, `${IMPORT}.meta`);
  });
  for (const node of tree.body) {
    const declaration = node.type === "ExportNamedDeclaration" ? node.declaration : node;
    if (declaration?.kind === "const") {
      const names = new Set();
      for (const d of declaration.declarations) addNames(d.id, names);
      if (![...names].some((name) => assigned.has(name))) replace(declaration.start, declaration.start + "const".length, "let  ");
    }
    switch (node.type) {
      case "ImportDeclaration":
        replace(node.start, node.end, importStatement(node, code));
        break;
      case "ExportNamedDeclaration":
        if (node.declaration) replace(node.start, node.declaration.start, "");
        else replace(node.start, node.end, node.source ? `void await ${IMPORT}(${node.source.raw});` : ";");
        break;
      case "ExportDefaultDeclaration": {
        const named = /Declaration$/.test(node.declaration.type) && node.declaration.id;
        replace(node.start, node.declaration.start, named ? "" : `${EXPORTED} = `);
        break;
      }
      case "ExportAllDeclaration":
        replace(node.start, node.end, `void await ${IMPORT}(${node.source.raw});`);
        break;
    }
  }
  return edit(code, edits);
}

// As long as "import", so that columns stay.
const IMPORT = "$$impt";
const EXPORTED = "$$default"; // takes the value of export default

function importStatement(node, code) {
  const from = node.source.raw;
  const options = (node.attributes ?? []).map((a) => `${code.slice(a.key.start, a.key.end)}: ${a.value.raw}`);
  const call = `await ${IMPORT}(${from}${options.length > 0 ? `, { with: { ${options.join(", ")} } }` : ""})`;
  let namespace = "";
  const names = [];
  for (const spec of node.specifiers) {
    if (spec.type === "ImportNamespaceSpecifier") namespace = spec.local.name;
    else if (spec.type === "ImportDefaultSpecifier") names.push(`default: ${spec.local.name}`);
    else names.push(`${spec.imported.type === "Literal" ? spec.imported.raw : spec.imported.name}: ${spec.local.name}`);
  }
  if (namespace && names.length > 0) return `let ${namespace} = ${call}, { ${names.join(", ")} } = ${namespace};`;
  if (namespace) return `let ${namespace} = ${call};`;
  if (names.length > 0) return `let { ${names.join(", ")} } = ${call};`;
  return `void ${call};`;
}

function edit(code, edits) {
  edits.sort((a, b) => b[0] - a[0]);
  for (const [from, to, text] of edits) code = code.slice(0, from) + text + code.slice(to);
  return code;
}

// redeclared lets code declare a name again that V8 refuses, because it was a
// var or function before and is const, let or class now, or the other way round.
// It returns null where nothing can be done.
function redeclared(code, name) {
  let tree;
  try {
    tree = parse(code);
  } catch {
    return null;
  }
  const edits = [];
  const has = (declaration) => declaration.declarations.some((d) => addNames(d.id).has(name));
  walk.ancestor(tree, {
    VariableDeclaration(node, _, ancestors) {
      if (node.kind !== "var" || !has(node) || ancestors.some((a) => /Function|StaticBlock/.test(a.type))) return;
      edits.push([node.start, node.start + "var".length, "let"]);
    },
  });
  for (const node of tree.body) {
    if (node.type === "VariableDeclaration" && node.kind !== "var" && has(node)) {
      edits.push([node.start, node.start + node.kind.length, "var"]);
      for (const d of node.declarations) {
        if (!d.init) edits.push([d.end, d.end, " = undefined"]);
      }
    }
    if (node.id?.name !== name) continue;
    if (node.type === "FunctionDeclaration") edits.push([node.start, node.start, `let ${name} = `], [node.end, node.end, ";"]);
    if (node.type === "ClassDeclaration") edits.push([node.start, node.start, `var ${name} = `], [node.end, node.end, ";"]);
  }
  return edits.length > 0 ? edit(code, edits) : null;
}

// addNames adds what a pattern binds.
function addNames(pattern, to = new Set()) {
  switch (pattern?.type) {
    case "Identifier":
      to.add(pattern.name);
      break;
    case "ObjectPattern":
      for (const p of pattern.properties) addNames(p.value ?? p.argument, to);
      break;
    case "ArrayPattern":
      for (const e of pattern.elements) addNames(e, to);
      break;
    case "RestElement":
      addNames(pattern.argument, to);
      break;
    case "AssignmentPattern":
      addNames(pattern.left, to);
      break;
  }
  return to;
}
