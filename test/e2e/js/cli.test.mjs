// The E2B command line, which brings an older SDK of its own.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { after, before, test } from 'node:test'

let id

// e2b runs the command line and resolves to its exit code and output.
function e2b(args, input = '') {
  return new Promise((resolve) => {
    const child = execFile('node_modules/.bin/e2b', args, { timeout: 30_000 }, (error, stdout, stderr) => {
      resolve({ code: error ? error.code : 0, stdout, stderr })
    })
    child.stdin.end(input)
  })
}

async function list() {
  return JSON.parse((await e2b(['sandbox', 'list', '--format', 'json'])).stdout)
}

before(async () => {
  const created = await e2b(['sandbox', 'create', 'base', '--detach'])
  assert.equal(created.code, 0, created.stderr)
  id = created.stdout.trim().split(/\s+/).at(-1)
})
after(async () => { await e2b(['sandbox', 'kill', id]) })

test('a created sandbox is listed', async () => {
  const found = (await list()).find((sandbox) => sandbox.sandboxId === id)
  assert.deepEqual([found.name, found.state], ['base', 'running'])
})

test('exec passes streams and the exit code', async () => {
  const run = await e2b(['sandbox', 'exec', id, '--', 'cat && echo problem >&2 && exit 3'], 'piped')
  assert.deepEqual([run.code, run.stdout], [3, 'piped'])
  assert.match(run.stderr, /problem/)
})

test('logs tell the life of the sandbox', async () => {
  assert.match((await e2b(['sandbox', 'logs', id])).stdout, /running/)
})

test('templates are listed', async () => {
  assert.match((await e2b(['template', 'list'])).stdout, /code-interpreter-v1/)
})

test('kill ends it', async () => {
  assert.equal((await e2b(['sandbox', 'kill', id])).code, 0)
  assert.ok(!(await list()).some((sandbox) => sandbox.sandboxId === id))
})
