package kernel_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel/kerneltest"
)

// startNode returns a box with the machine's node.
func startNode(t *testing.T) *box {
	t.Helper()
	node, err := kerneltest.Node()
	if err != nil {
		t.Skip(err)
	}
	return newBox(t, "/nonexistent/python3", "NODE_PATH="+node.Packages)
}

// js executes code in the default context for JavaScript, ts for TypeScript.
func (b *box) js(code string) run {
	b.t.Helper()
	return b.execute(body{"code": code, "language": "js"})
}

func (b *box) ts(code string) run {
	b.t.Helper()
	return b.execute(body{"code": code, "language": "ts"})
}

func TestJavaScriptValues(t *testing.T) {
	b := startNode(t)
	for _, c := range []struct{ code, want string }{
		{"const x = 20\nx + 1", "21"},
		{"const x = 3; class A {}; x", "3"},
		{"let x = 4; class A {}\nx", "4"},
		{"x", "4"},
		{"function x() { return 5 }\nx()", "5"},
		{"const x = () => 6\nx()", "6"},
		{"var x = 7; x", "7"},
		{"let unset = 1; let other", ""},
		{"let unset; unset", ""},
		{"'plain'", "plain"},
		{`"it's"`, `"it's"`},
		{"undefined", ""},
		{"null", "null"},
		{"-0", "-0"},
		{"10n ** 20n", "100000000000000000000n"},
		{"Symbol('s')", "Symbol(s)"},
		{"({a: 1, b: [1, {c: {d: {}}}]})", "{ a: 1, b: [ 1, { c: [Object] } ] }"},
		{"new Map([[1, 2]])", "Map(1) { 1 => 2 }"},
		{"await Promise.resolve('awaited')", "awaited"},
		{"Promise.resolve('settled')", "settled"},
		{"async function main() { return 'main' }\nawait main()", "main"},
		{"for await (const v of [1, 2]) v", "2"},
		{"const { a, ...rest } = { a: 1, b: 2 }; rest", "{ b: 2 }"},
		{"'x'.repeat(20_000).length", "20000"},
		{"require('path').join('a', 'b')", "a/b"},
		{"const crypto = require('crypto'); crypto.createHash('md5').update('a').digest('hex')", "0cc175b9c0f1b6a831c399e269772661"},
		{"fs.existsSync('/')", "true"}, // modules of Node are globals, as upstream
		{"require.main === module && typeof exports", "object"},
		{"module.exports = { a: 1 }; module.exports.a", "1"},
		{"typeof __dirname + typeof __filename", "stringstring"},
	} {
		r := b.js(c.code)
		require.Empty(t, r.errorName(), "%s: %v", c.code, r.lines)
		if c.want == "" {
			require.Nil(t, r.main(), c.code)
			continue
		}
		require.NotNil(t, r.main(), "%s: %v", c.code, r.lines)
		require.Equal(t, c.want, r.main()["text"], c.code)
	}
	require.Equal(t, "Assignment to constant variable.", b.js("const fixed = 1; fixed = 2").find("error")[0]["value"])
}

func TestJavaScriptModules(t *testing.T) {
	b := startNode(t)
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	id := b.newContext("javascript", dir)
	for _, c := range []struct{ code, want string }{
		{"import { readFileSync } from 'fs'\ntypeof readFileSync", "function"},
		{"import path, * as all from 'node:path'\ntypeof path.join + typeof all.join", "functionfunction"},
		{"import def, { join as j,\n  resolve } from \"path\";\ntypeof def.join + typeof j + typeof resolve", "functionfunctionfunction"},
		{"import 'fs'", ""},
		{"(await import('os')).EOL", `\n`},
		{"(() => import('os'))().then((os) => typeof os.EOL)", "string"},
		{"const text = \"import x from 'y'\"; text.length", "17"},
		{"import { value } from './own.mjs'\nvalue", "of mine"},
		{"import pack from 'pack'\npack.name", "pack"},
		{"require('pack').name", "pack"},
		{"import esm from 'esm'\nesm", "only by import"},
		{"import data from './data.json' with { type: 'json' }\ndata.k", "1"},
		{"import.meta.dirname === process.cwd() && import.meta.url.startsWith('file:///')", "true"},
		{"export const shown = 8\nexport function twice() { return shown * 2 }\nexport { shown as other }\ntwice()", "16"},
		{"export default { a: 1 }", "{ a: 1 }"},
	} {
		write("own.mjs", "export const value = 'of mine'")
		write("data.json", `{"k": 1}`)
		write("node_modules/pack/index.js", "exports.name = 'pack'")
		write("node_modules/esm/package.json", `{"name": "esm", "type": "module", "exports": {"import": "./index.js"}}`)
		write("node_modules/esm/index.js", "export default 'only by import'")
		r := b.execute(body{"code": c.code, "context_id": id})
		require.Empty(t, r.errorName(), "%s: %v", c.code, r.lines)
		if c.want == "" {
			require.Nil(t, r.main(), c.code)
			continue
		}
		require.NotNil(t, r.main(), "%s: %v", c.code, r.lines)
		require.Equal(t, c.want, r.main()["text"], c.code)
	}
	in := func(code string) run { return b.execute(body{"code": code, "context_id": id}) }
	for _, code := range []string{"import late from 'late'\nlate.name", "require('late').name"} {
		r := in(code)
		require.Contains(t, r.find("error")[0]["value"], "'late'", code)
	}
	write("node_modules/late/index.js", "exports.name = 'late'")
	require.Equal(t, "late", in("import late from 'late'\nlate.name").main()["text"], "installed meanwhile")
	require.Equal(t, "late", in("require('late').name").main()["text"])
	require.Equal(t, "TypeError", in("import { nowhere } from 'fs'\nnowhere()").errorName())
}

func TestTypeScript(t *testing.T) {
	b := startNode(t)
	cases := []struct{ code, want string }{
		{"const message: string = 'Hello'; message", "Hello"},
		{"enum Color { Red = 1, Green }\nColor.Green", "2"},
		{"const enum Fixed { X = 'x' }\nFixed.X", "x"},
		{"namespace Space { export const z = 2 }\nSpace.z", "2"},
		{"function id<T extends object>(x: T): T { return x }\nid<{ a: number }>({ a: 1 })", "{ a: 1 }"},
		{"abstract class P { constructor(private a: number, readonly b?: string) {} abstract m(): void }\nclass Q extends P { m(): void {} }\nnew Q(3)", "Q { a: 3, b: undefined }"},
		{"function log(f: any, c: any) { return function (this: any) { return c.name + f.call(this) } }\nclass D { @log m() { return 1 } }\nnew D().m()", "m1"},
		{"import fs from 'fs'\nimport type { Stats } from 'fs'\nconst s: Stats = fs.statSync('/')\ns.isDirectory()", "true"},
		{"const o = { a: 1 } satisfies Record<string, number>; o!.a as number", "1"},
		{"interface Only { x: number }\ntype Of = Only['x']", ""},
		{"await Promise.resolve<number>(4)", "4"},
	}
	for _, c := range cases {
		for _, language := range []string{"ts", "typescript", "js"} {
			if language == "js" && (strings.Contains(c.code, "import") || strings.Contains(c.code, "await")) {
				continue // they mean something else in JavaScript
			}
			r := b.execute(body{"code": c.code, "language": language})
			require.Empty(t, r.errorName(), "%s: %v", c.code, r.lines)
			if c.want == "" {
				require.Nil(t, r.main(), c.code)
				continue
			}
			require.NotNil(t, r.main(), "%s: %v", c.code, r.lines)
			require.Equal(t, c.want, r.main()["text"], c.code)
		}
	}
	require.Equal(t, "true", b.ts("import os from 'os'").ok())
	require.Equal(t, "string", b.ts("typeof os.EOL").main()["text"], "an import is for later runs, too")
	names := map[any]bool{}
	for _, c := range b.list() {
		names[c["language"]] = true
	}
	require.Equal(t, map[any]bool{"javascript": true, "typescript": true}, names)
}

func TestDecoratorsAsTheProjectSays(t *testing.T) {
	b := startNode(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/tsconfig.json", []byte(`{"compilerOptions": {/* old */ "experimentalDecorators": true}}`), 0o600))
	id := b.newContext("ts", dir)
	r := b.execute(body{"context_id": id, "code": "const seen: string[] = []\nfunction old(target: any, key: string) { seen.push(key) }\nclass C { @old m() {} }\nseen"})
	require.Equal(t, "[ 'm' ]", r.main()["text"], r.lines)
}

func TestErrorsShowTheLinesThatWereSent(t *testing.T) {
	b := startNode(t)
	for _, c := range []struct {
		language, code, name, value string
		traceback                   []string
	}{
		{"js", "const a = 1\nconst z = ;", "SyntaxError", "Unexpected token ';'", []string{"run_1.js:2\nconst z = ;\n          ^"}},
		{"js", "function f() {\n  return nowhere\n}\nf()", "ReferenceError", "nowhere is not defined", []string{"run_2.js:2\n  return nowhere\n", "at f (run_2.js:2:3)", "at run_2.js:4:1"}},
		{"js", "import {\n  join\n} from 'path'\n\nnull.x", "TypeError", "null", []string{"run_3.js:5\nnull.x"}},
		{"js", "throw 'text'", "string", "'text'", []string{"Uncaught 'text'"}},
		{"js", "throw new Error('outer', { cause: new Error('inner') })", "Error", "outer", []string{"[cause]: Error: inner"}},
		{"js", "class Own extends Error { name = 'Own' }\nawait 0\nthrow new Own('mine')", "Own", "mine", []string{"run_6.js:3"}},
		{"js", "Promise.reject(new RangeError('late'))", "RangeError", "late", nil},
		{"js", "let twice = 1; let twice = 2", "SyntaxError", "Identifier 'twice' has already been declared", nil},
		{"js", "require('nowhere')", "Error", "Cannot find module 'nowhere'", []string{"run_9.js:1"}},
		{"js", "import './nowhere.js'", "Error", "Cannot find module", nil},
		{"ts", "\n// about\ninterface A { x: number }\n\nfunction boom(a: A): never {\n  throw new Error('boom' + a.x)\n}\nboom({ x: 1 })", "Error", "boom1", []string{"run_1.ts:6\n  throw new Error", "at boom (run_1.ts:6:9)", "run_1.ts:8:1"}},
		{"ts", "let s = 'é漢'\nconst b: = 3", "SyntaxError", "Unexpected token", []string{"run_2.ts:2\nconst b: = 3\n         ^"}},
		{"ts", "const o = (;", "SyntaxError", "", []string{"run_3.ts:1"}},
	} {
		r := b.execute(body{"code": c.code, "language": c.language})
		e := r.find("error")
		require.Len(t, e, 1, "%s: %v", c.code, r.lines)
		require.Equal(t, c.name, e[0]["name"], c.code)
		require.Contains(t, e[0]["value"], c.value)
		for _, part := range c.traceback {
			require.Contains(t, e[0]["traceback"], part, c.code)
		}
		require.NotContains(t, e[0]["traceback"], "tombolo-kernel", c.code)
		require.NotContains(t, e[0]["traceback"], "node:inspector", c.code)
	}
	r := b.js("console.log(new Error('logged'))")
	require.NotContains(t, r.text("stdout"), "kernel")
	require.Contains(t, r.text("stdout"), "run_11.js:1:13")
}

func TestNobodyCaughtIt(t *testing.T) {
	b := startNode(t)
	b.js("let kept = 'kept'")
	r := b.js("(async () => { throw new Error('floating') })(); 2")
	require.Equal(t, "2", r.main()["text"])
	require.Contains(t, r.text("stderr"), "Uncaught (in promise) Error: floating")
	r = b.js("setTimeout(() => { throw new Error('timer') }); await new Promise((r) => setTimeout(r, 20)); 3")
	require.Equal(t, "3", r.main()["text"])
	require.Contains(t, r.text("stderr"), "Uncaught Error: timer")
	b.js("setTimeout(() => { throw new Error('later') }, 1); setTimeout(() => Promise.reject(1), 1);")
	require.Equal(t, "kept", b.js("await new Promise((r) => setTimeout(r, 20)); kept").main()["text"])
}

func TestJavaScriptShows(t *testing.T) {
	b := startNode(t)
	one := func(code string) map[string]any {
		t.Helper()
		r := b.js(code)
		require.Len(t, r.find("result"), 1, "%s: %v", code, r.lines)
		return r.find("result")[0]
	}
	for key, code := range map[string]string{
		"html": "$$.html('<b>')", "svg": "$$.svg('<b>')", "text": "$$.text('<b>')", "markdown": "$$.mime({'text/markdown': '<b>'})",
		"png": "({_toPng: () => '<b>'})", "jpeg": "$$.jpeg('<b>')", "latex": "display({'text/latex': '<b>'})",
	} {
		require.Equal(t, "<b>", one(code)[key], code)
	}
	require.Equal(t, map[string]any{"a": []any{1.0, nil}}, one("$$.json({a: [1, null]})")["json"])
	require.Equal(t, true, one("$$.html('<b>')")["is_main_result"])
	require.Equal(t, false, one("display([1]); undefined")["is_main_result"])
	require.Equal(t, "[ 1 ]", one("display([1])")["text"])
	require.Equal(t, false, one("$$.display('id').html('<i>')")["is_main_result"])
	own := one("({_toMime: () => ({'application/x-own': 'x'}), _toHtml: () => '<i>', _toSvg: () => { throw 1 }})")
	require.Equal(t, map[string]any{"application/x-own": "x"}, own["extra"])
	require.Equal(t, "<i>", own["html"])
	require.Contains(t, own["text"], "_toMime")
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte("\x89PNG")), one("$$.png(Buffer.from('iVBORw==', 'base64'))")["png"])
	require.Equal(t, "x", one("({[Symbol.for('Jupyter.display')]: () => ({'text/html': 'x'})})")["html"])

	r := b.js("$$.async(); setTimeout(() => { console.log('later'); $$.done(9) }, 10); 'not this'")
	require.Equal(t, "9", r.main()["text"])
	require.Equal(t, "later\n", r.text("stdout"))
	r = b.js("$$.html('a', true); $$.html('b', true); $$.html(Promise.resolve('c'))")
	require.Len(t, r.find("result"), 3, "%v", r.lines)
	require.Equal(t, "c", r.main()["html"])
	require.Equal(t, "Error", b.js("$$.html(Promise.reject(new Error('no')))").errorName())
	require.Equal(t, "1", b.js("new Proxy({}, { get() { throw 1 } }); 1").main()["text"])
	require.Empty(t, b.js("new Proxy({}, { get() { throw 1 } })").errorName())
}

func TestJavaScriptOutputArrivesInOrder(t *testing.T) {
	b := startNode(t)
	r := b.js(`
const { execSync, spawn } = require('child_process')
console.log("a"); console.error("b"); process.stdout.write("c\n")
execSync("echo d", { stdio: "inherit" }); console.log("e")
execSync("echo f >&2"); process.stdout.write("g")
display("h"); console.log("i")
await new Promise((done) => spawn("sh", ["-c", "echo j"], { stdio: "inherit" }).on("close", done))
console.log("k"); fs.writeSync(1, "l\n"); console.log("m")
process.stdout.write(Buffer.from("é")); process.stdout.write(Buffer.from([0xe6, 0xbc])); process.stdout.write(Buffer.from([0xa2, 10]))
fs.writeFileSync("/dev/stderr", "n\n"); console.log("o")
import('fs').then((fs) => { fs.writeSync(2, "p\n"); console.log("q") })
`)
	got, last := "", ""
	for _, line := range r.lines {
		text, ok := line["text"].(string)
		if !ok {
			continue
		}
		if line["type"] != last {
			last = line["type"].(string)
			got += " " + last + ":"
		}
		got += strings.ReplaceAll(text, "\n", "")
	}
	require.Equal(t, " stdout:a stderr:b stdout:cde stderr:f stdout:g result:h stdout:ijklmé漢 stderr:n stdout:o stderr:p stdout:q", got)
}

func TestJavaScriptOutputIsBounded(t *testing.T) {
	t.Parallel()
	b := startNode(t)
	for name, code := range map[string]string{
		"lines":      "for (let i = 0; i < 300; i++) console.log('x'.repeat(99_999))",
		"one string": "process.stdout.write('x'.repeat(30_000_000)); undefined",
		"descriptor": "for (let i = 0; i < 300; i++) fs.writeSync(1, 'x'.repeat(99_999))",
		"command":    "require('child_process').spawnSync('sh', ['-c', \"head -c 30000000 /dev/zero | tr '\\\\0' x\"], { stdio: 'inherit' }); undefined",
	} {
		r := b.js(code)
		size := len(r.text("stdout"))
		require.LessOrEqual(t, size, 16<<20, name)
		require.Greater(t, size, 15<<20, name)
		require.Equal(t, 1, strings.Count(r.text("stderr"), "left out"), name)
	}
	require.Less(t, len(b.js("'x'.repeat(5_000_000)").main()["text"].(string)), 2<<20)
	r := b.js("display({'text/html': 'x'.repeat(15_000_000), 'text/plain': 'small'})")
	require.Equal(t, "small", r.find("result")[0]["text"])
	require.Contains(t, r.text("stderr"), "text/html of a result left out")
	r = b.js("console.log('é漢😀'.repeat(300_000))")
	require.Equal(t, strings.Repeat("é漢😀", 300_000)+"\n", r.text("stdout"))
	r = b.js("for (let i = 0; i < 100_000; i++) console.log(i)")
	require.Equal(t, 100_000, strings.Count(r.text("stdout"), "\n"))
	require.Less(t, len(r.lines), 20_000)
}

func TestFirstLinesComeWhileTheCodeComputes(t *testing.T) {
	b := startNode(t)
	b.js("for (let i = 0; i < 100; i++) console.log(i)")
	b.leave("js", "console.log('on'); while (true) {}")
	require.Equal(t, "2", b.js("1 + 1").main()["text"])
}

func TestJavaScriptVariables(t *testing.T) {
	b := startNode(t)
	b.js("process.env.KEPT = 'user'")
	env := body{"ONE": "1", "KEPT": "run"}
	r := b.execute(body{"language": "javascript", "env_vars": env,
		"code": "process.env.ONE + process.env.KEPT + require('child_process').execSync('echo $ONE')"})
	require.Equal(t, `1run1\n`, r.main()["text"])
	for _, code := range []string{"throw 1", "const = 2", "await Promise.reject(3)"} {
		require.NotEmpty(t, b.execute(body{"language": "js", "env_vars": env, "code": code}).errorName())
		require.Equal(t, "undefined user", b.js("`${process.env.ONE} ${process.env.KEPT}`").main()["text"])
	}

	seen := map[any]bool{}
	for i := range 3 {
		b.mu.Lock()
		b.env = append(os.Environ(), "WHERE=clone"+strconv.Itoa(i))
		b.mu.Unlock()
		require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: []byte(strings.Repeat(string(rune('a'+i)), 64))}))
		require.Equal(t, "clone"+strconv.Itoa(i), b.js("process.env.WHERE").main()["text"])
		value := b.js("Math.random()").main()["text"]
		require.False(t, seen[value])
		seen[value] = true
	}
	b.mu.Lock()
	b.env = os.Environ()
	b.mu.Unlock()
	require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: []byte("x")}))
	require.Equal(t, "[ false, true ]", b.js("['WHERE' in process.env, 'KEPT' in process.env]").main()["text"])
}

func TestSameEntropySameNumbers(t *testing.T) {
	b := startNode(t)
	b.js("1")
	draw := func() (v []any) {
		entropy := hostapi.Init{Entropy: []byte(strings.Repeat("e", 64))}
		require.NoError(t, b.Init(context.Background(), entropy))
		return append(v, b.js("Math.random()").main()["text"], b.js("require('crypto').randomUUID()").main()["text"], b.js("require('crypto').randomInt(2**47)").main()["text"])
	}
	first, second := draw(), draw()
	require.Equal(t, first[0], second[0], "Math.random is what Init seeds")
	require.NotEqual(t, first[1], second[1], "what must not be guessed is not")
	require.NotEqual(t, first[2], second[2])
	r := b.js("const n = 200_000; let sum = 0, low = 1, high = 0; for (let i = 0; i < n; i++) { const v = Math.random(); sum += v; low = Math.min(low, v); high = Math.max(high, v) }; [Math.abs(sum / n - 0.5) < 0.01, low >= 0, low < 0.001, high < 1, high > 0.999]")
	require.Equal(t, "[ true, true, true, true, true ]", r.main()["text"])
}

func TestDisconnectInterruptsJavaScript(t *testing.T) {
	t.Parallel()
	b := startNode(t)
	b.js("let kept = 'kept'")
	for _, code := range []string{
		"console.log('on'); while (true) {}",
		"console.log('on'); await new Promise(() => {})",
		"console.log('on'); await 0; while (true) {}",
		"console.log('on'); await new Promise((r) => setTimeout(r, 10)); while (true) {}",
		"while (true) console.log('on')",
		"while (true) { console.log('on'); display('shown'); fs.writeSync(2, 'low\\n') }",
		"console.log('on'); for (;;) await null",
		"console.log('on'); for (;;) { await new Promise((r) => setTimeout(r)); console.log('on') }",
		"setInterval(() => console.log('on')); await new Promise(() => {})",
		"console.log('on'); try { while (true) {} } finally { while (true) {} }",
		"console.log('on'); /(a+)+b/.test('a'.repeat(40))",
		"console.log('on'); require('child_process').execSync('sleep 100')",
		"console.log('on'); await new Promise((r) => require('child_process').exec('sleep 100', r))",
		"process.on('SIGINT', () => {}); console.log('on'); while (true) {}",
		"$$.async(); console.log('on')",
	} {
		b.leave("js", code)
		r := b.js("console.log('x'); kept")
		require.NotNil(t, r.main(), "%s: %v", code, r.lines)
		require.Equal(t, "kept", r.main()["text"], code)
		require.Equal(t, "x\n", r.text("stdout"), code)
	}
}

func TestJavaScriptThatIgnoresInterruptsLosesItsKernel(t *testing.T) {
	t.Parallel()
	b := newImpatientBox(t, "/nonexistent/python3")
	b.js("let lost = 1")
	b.leave("js", "require('child_process').execFileSync('sh', ['-c', 'trap \"\" INT; echo on; sleep 1000'], { stdio: 'inherit' })")
	require.Equal(t, "ReferenceError", b.js("lost").errorName())
}

func TestDeadJavaScriptKernelComesBack(t *testing.T) {
	t.Parallel()
	b := startNode(t)
	b.env = append(b.env, "NODE_OPTIONS=--max-old-space-size=32")
	for code, why := range map[string]string{
		"process.exit(7)":                                         "code 7",
		"process.exitCode = 8; process.exit()":                    "code 8",
		"process.reallyExit(9)":                                   "code 9",
		"process.kill(process.pid, 'SIGKILL')":                    "signal 9",
		"process.abort()":                                         "signal 6",
		"fs.writeSync(3, 'junk\\n'); await new Promise(() => {})": "protocol",
	} {
		ids := b.list()
		b.js("let lost = 1")
		r := b.js("console.log('last words')\n" + code)
		require.Equal(t, "KernelDied", r.errorName(), "%s: %v", code, r.lines)
		require.Contains(t, r.find("error")[0]["value"], why, code)
		require.Equal(t, "last words\n", r.text("stdout"), code)
		require.Equal(t, "ReferenceError", b.js("lost").errorName())
		if len(ids) > 0 {
			require.Equal(t, ids, b.list())
		}
	}
	r := b.js("const hog = []; for (;;) hog.push(new Array(1e6).fill({}))\n")
	require.Equal(t, "KernelDied", r.errorName())
	require.Equal(t, "2", b.js("1 + 1").main()["text"])
}

func TestJavaScriptRestart(t *testing.T) {
	b := startNode(t)
	require.Equal(t, "1", b.js("let lost = 1; lost").main()["text"])
	id := b.list()[0]["id"].(string)
	resp, err := b.post(context.Background(), "/execute", body{"code": "while (true) {}", "context_id": id})
	require.NoError(t, err)
	defer resp.Body.Close()
	status, answer := b.ask("POST", "/contexts/"+id+"/restart", "", "")
	require.Equal(t, 200, status, answer)
	require.Equal(t, "KernelDied", readLines(t, resp.Body).errorName())
	require.Equal(t, "ReferenceError", b.js("lost").errorName())
	status, _ = b.ask("DELETE", "/contexts/"+id, "", "")
	require.Equal(t, 204, status)
	require.Empty(t, b.list())
}

func TestWarmJavaScriptKernelShowsNothingOfIt(t *testing.T) {
	b := startNode(t)
	require.NoError(t, b.Warm(context.Background(), []string{"javascript"}))
	require.Len(t, b.list(), 1)
	require.Eventually(t, func() bool { return b.js("1+1").errorName() == "" }, soon, time.Millisecond,
		"without the library that stirs OpenSSL it ends, and the next one comes")
	require.Equal(t, "[]", b.js("Object.keys(globalThis).filter((k) => /tombolo|warm|gc|\\$/.test(k))").main()["text"])
}

func TestNodeThatIsNotThere(t *testing.T) {
	b := newBox(t, "/nonexistent/python3", "PATH=/nonexistent")
	status, answer := b.ask("POST", "/execute", `{"code":"1","language":"js"}`, "")
	require.Equal(t, 500, status)
	require.Contains(t, answer, "add the package nodejs")
}

func TestNothingOfNodeIsLeftAfterClose(t *testing.T) {
	before := openFiles(t)
	b := startNode(t)
	b.js("process.exit()")
	b.js("1")
	b.Close()
	b.server.Close()
	http.DefaultClient.CloseIdleConnections()
	require.Eventually(t, func() bool { return openFiles(t) <= before }, soon, 10*time.Millisecond)
}

// As TestInterruptsNeverBreakTheKernel.
func TestInterruptsNeverBreakTheJavaScriptKernel(t *testing.T) {
	t.Parallel()
	b := startNode(t)
	b.js("let kept = 'kept'")
	codes := []string{
		"while (true) { console.log('on'); console.error('on') }",
		"while (true) { console.log('on'); fs.writeSync(1, 'low\\n') }",
		"while (true) { console.log('on'); display('shown'); fs.writeSync(2, 'low\\n') }",
		"await new Promise(setImmediate); while (true) { console.log('on'); fs.writeSync(2, 'low\\n') }",
		"const spin = async () => { for (;;) { console.log('on'); await 0 } }; await Promise.all([spin(), spin()])",
		"while (true) { try { console.log('on'); null.x } catch (e) { console.log(e) } }",
	}
	for i := range 30 {
		code := codes[i%len(codes)]
		b.leave("js", code)
		r := b.js("console.log('x'); kept")
		require.NotNil(t, r.main(), "after %s: %v", code, r.lines)
		require.Equal(t, "kept", r.main()["text"], code)
		require.Equal(t, "x\n", r.text("stdout"), "after %s", code)
	}
}
