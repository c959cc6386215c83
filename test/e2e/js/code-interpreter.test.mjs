// The newest JavaScript code interpreter client.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { NotFoundError, TimeoutError } from 'e2b'
import { Sandbox } from '@e2b/code-interpreter'

let sandbox

before(async () => { sandbox = await Sandbox.create({ timeoutMs: 600_000 }) })
after(async () => { await sandbox?.kill() })

test('the last expression is the result and state stays', async () => {
  await sandbox.runCode('x = 21')
  assert.equal((await sandbox.runCode('x * 2')).text, '42')
})

test('output and results reach the callbacks in order', async () => {
  const out = []
  const results = []
  const execution = await sandbox.runCode('import sys\nprint("a")\nprint("b", file=sys.stderr)\nprint("c")\ndisplay(1)\n2', {
    onStdout: (message) => { out.push(message.line) },
    onStderr: (message) => { out.push(`err ${message.line}`) },
    onResult: (result) => { results.push([result.text, result.isMainResult]) },
  })
  assert.equal(execution.logs.stdout.join(''), 'a\nc\n')
  assert.equal(execution.logs.stderr.join(''), 'b\n')
  assert.ok(out.length >= 2)
  assert.deepEqual(results, [['1', false], ['2', true]])
})

test('an exception is an error object', async () => {
  const { error } = await sandbox.runCode('1 / 0')
  assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero'])
  assert.match(error.traceback, /ZeroDivisionError/)
})

test('a plot is a picture', async () => {
  const { results } = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()')
  assert.equal(Buffer.from(results[0].png, 'base64').subarray(1, 4).toString(), 'PNG')
})

test('a data frame carries its data', async () => {
  const { results } = await sandbox.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
  assert.deepEqual(results[0].data, { a: [1, 2] })
})

test('environment of one run', async () => {
  assert.equal((await sandbox.runCode("import os\nos.environ.get('ONCE')", { envs: { ONCE: '1' } })).text, '1')
  assert.equal((await sandbox.runCode("os.environ.get('ONCE')")).text, undefined)
})

test('contexts are made, listed, restarted and removed', async () => {
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  await sandbox.runCode('y = 1', { context })
  assert.equal((await sandbox.runCode('y', { context })).text, '1')
  assert.ok((await sandbox.listCodeContexts()).some((c) => c.id === context.id))
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('y', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
  await assert.rejects(sandbox.runCode('1', { context }), NotFoundError)
})

test('timeout interrupts and the kernel lives', async () => {
  await sandbox.runCode('kept = 7')
  await assert.rejects(sandbox.runCode('while True: pass', { timeoutMs: 1000 }), TimeoutError)
  assert.equal((await sandbox.runCode('kept')).text, '7')
})

test('JavaScript and TypeScript', async () => {
  await sandbox.runCode('const z = 1', { language: 'js' })
  assert.equal((await sandbox.runCode('z', { language: 'javascript' })).text, '1')
  const js = await sandbox.runCode('import { join } from "path"\nawait Promise.resolve(join("a", "b"))', { language: 'js' })
  assert.equal(js.text, 'a/b')
  const ts = await sandbox.runCode('const sum = (x: number, y: number): number => x + y\nsum(1, 2)', { language: 'ts' })
  assert.equal(ts.results[0].text, '3')
  const context = await sandbox.createCodeContext({ language: 'typescript', cwd: '/tmp' })
  const { error, logs } = await sandbox.runCode('console.log(process.cwd())\nthrow new RangeError("far")', { context })
  assert.deepEqual([error.name, error.value, logs.stdout], ['RangeError', 'far', ['/tmp\n']])
  await sandbox.removeCodeContext(context)
})
