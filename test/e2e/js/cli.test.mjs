// The E2B command line, which brings an older SDK of its own. Its only settings
// are the three variables.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { after, before, test } from 'node:test'

import { e2b, program } from './command-line.mjs'
import { eventually } from './wait.mjs'

let id

// ok runs it and resolves to what it printed; it must succeed.
async function ok(...args) {
  const run = await e2b(args)
  assert.equal(run.code, 0, `e2b ${args.join(' ')}: ${run.stdout}${run.stderr}`)
  return run.stdout
}

async function list(...args) {
  return JSON.parse(await ok('sandbox', 'list', '--format', 'json', ...args))
}

// onTerminal runs it on a terminal of its own: it types each line when it has seen
// what comes before it in the pairs, and resolves to all that was shown.
async function onTerminal(args, ...steps) {
  const child = spawn('script', ['-qefc', [program, ...args].join(' '), '/dev/null'])
  const deadline = setTimeout(() => child.kill('SIGKILL'), 30_000)
  const ended = new Promise((resolve) => child.on('close', resolve))
  let shown = ''
  child.stdout.on('data', (data) => { shown += data })
  for (const [seen, line] of steps) {
    await eventually(() => shown.includes(seen), 20_000, `${seen} on the terminal`)
    child.stdin.write(line + '\n')
  }
  await ended
  clearTimeout(deadline)
  return shown
}

const prompt = '$ '

before(async () => {
  id = (await ok('sandbox', 'create', 'base', '--detach', '--timeout', '300',
    '--lifecycle.ontimeout', 'pause', '--lifecycle.autoresume')).trim()
})
after(async () => { await e2b(['sandbox', 'kill', id]) })

test('a created sandbox is listed', async () => {
  const found = (await list()).find((sandbox) => sandbox.sandboxId === id)
  assert.deepEqual([found.name, found.state], ['base', 'running'])
  assert.ok((await list('--template', 'base', '--order', 'asc')).some((sandbox) => sandbox.sandboxId === id))
})

test('info tells what it was created with', async () => {
  const info = JSON.parse(await ok('sandbox', 'info', id, '--format', 'json'))
  assert.deepEqual(info.lifecycle, { onTimeout: 'pause', autoResume: true })
  assert.equal(info.network.allowPublicTraffic, true)
})

test('exec passes streams and the exit code', async () => {
  const run = await e2b(['sandbox', 'exec', id, '--', 'cat && echo problem >&2 && exit 3'], 'piped')
  assert.deepEqual([run.code, run.stdout], [3, 'piped'])
  assert.match(run.stderr, /problem/)
})

test('exec takes user, folder and variables', async () => {
  const out = await ok('sandbox', 'exec', '-u', 'root', '-c', '/tmp', '-e', 'COLOUR=green', id, '--', 'echo $(whoami) $PWD $COLOUR')
  assert.equal(out.trim(), 'root /tmp green')
})

test('exec passes much stdin', async () => {
  const input = 'tombolo '.repeat(1 << 17) // 1 MiB
  const run = await e2b(['sandbox', 'exec', id, '--', 'wc -c'], input)
  assert.equal(run.stdout.trim(), String(input.length))
})

test('connect opens a terminal', async () => {
  const shown = await onTerminal(['sandbox', 'connect', id], [prompt, 'echo answer-$((40+2))'], ['answer-42', 'exit'])
  assert.match(shown, /answer-42/)
  assert.ok((await list()).some((sandbox) => sandbox.sandboxId === id), 'it lives on')
})

test('create opens a terminal too', async () => {
  const shown = await onTerminal(['sandbox', 'create', 'base'], [prompt, 'echo $E2B_SANDBOX_ID-$((40+2))'], ['-42', 'exit'])
  const made = shown.match(/(i[a-z0-9]{20})-42/)
  assert.ok(made, shown)
  await eventually(async () => !(await list()).some((sandbox) => sandbox.sandboxId === made[1]), 20_000, 'it ends with its terminal')
})

test('logs tell the life of the sandbox', async () => {
  assert.match(await ok('sandbox', 'logs', id), /running/)
})

test('metrics have points', async () => {
  const points = await eventually(async () => {
    const lines = (await ok('sandbox', 'metrics', id, '--format', 'json')).trim()
    return lines && lines.split('\n').map(JSON.parse)
  }, 20_000, 'a point')
  assert.equal(points[0].cpuCount, 2)
  assert.ok(points[0].memTotal > points[0].memUsed && points[0].memUsed > 0)
  assert.match(await ok('sandbox', 'metrics', id), /CPU.*Memory.*Disk/)
})

test('pause and resume keep what is in it', async () => {
  await ok('sandbox', 'exec', id, '--', 'echo kept > note; nohup sleep 1000 >/dev/null 2>&1 & true')
  assert.match(await ok('sandbox', 'pause', id), /has been paused/)
  assert.match(await ok('sandbox', 'pause', id), /already paused/)
  assert.ok(!(await list()).some((sandbox) => sandbox.sandboxId === id))
  const found = (await list('--state', 'paused')).find((sandbox) => sandbox.sandboxId === id)
  assert.equal(found.state, 'paused')
  assert.match(await ok('sandbox', 'logs', id), /paused/)
  assert.match(await ok('sandbox', 'metrics', id), /CPU/)

  assert.match(await ok('sandbox', 'resume', id), /has been resumed/)
  assert.match(await ok('sandbox', 'exec', id, '--', 'cat note; pgrep -a sleep'), /kept\n.*sleep 1000/)
})

test('exec wakes a paused sandbox', async () => {
  await ok('sandbox', 'pause', id)
  assert.match(await ok('sandbox', 'exec', id, '--', 'cat note'), /kept/)
})

test('snapshots are made, listed, used and deleted', async () => {
  const name = `cli-${process.pid}`
  const made = (await ok('sandbox', 'snapshot', 'create', id, '--name', `${name}:v1`)).match(/\S+:v1/)[0]
  const found = JSON.parse(await ok('sandbox', 'snapshot', 'list', id, '--name', name, '--format', 'json'))
  assert.deepEqual(found, [{ snapshotId: made, names: [made] }])
  const copy = (await ok('sandbox', 'create', made, '--detach', '--timeout', '60')).trim()
  assert.match(await ok('sandbox', 'exec', copy, '--', 'cat note'), /kept/)
  await ok('sandbox', 'kill', copy)
  assert.ok(!(await ok('template', 'list')).includes(name), 'a snapshot is not among the templates')
  assert.match(await ok('sandbox', 'snapshot', 'delete', made), /has been deleted/)
  assert.match((await e2b(['sandbox', 'snapshot', 'delete', made])).stderr, /wasn't found/)
})

test('templates are listed', async () => {
  assert.match(await ok('template', 'list'), /code-interpreter-v1/)
})

test('kill ends it, paused or not', async () => {
  const paused = (await ok('sandbox', 'create', 'base', '--detach')).trim()
  await ok('sandbox', 'pause', paused)
  await ok('sandbox', 'kill', id, paused)
  const left = (await list('--state', 'running,paused')).map((sandbox) => sandbox.sandboxId)
  assert.ok(!left.includes(id) && !left.includes(paused), left)
})

test('what is not there is said', async () => {
  for (const what of ['pause', 'resume', 'info']) {
    const run = await e2b(['sandbox', what, id])
    assert.notEqual(run.code, 0)
    assert.match(run.stderr, /wasn't found/)
  }
})
