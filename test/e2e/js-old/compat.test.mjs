// The JavaScript clients of the generation that creates by POST /sandboxes.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as pause } from 'node:timers/promises'
import { AuthenticationError, CommandExitError, NotFoundError } from 'e2b'
import { Sandbox } from '@e2b/code-interpreter'

let sandbox

before(async () => { sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { generation: 'old' }, envs: { FROM: 'create' } }) })
after(async () => { await sandbox?.kill() })

test('code runs', async () => {
  await sandbox.runCode('x = 21')
  assert.equal((await sandbox.runCode('x * 2')).text, '42')
  assert.equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
})

test('commands run', async () => {
  assert.equal((await sandbox.commands.run('echo $FROM')).stdout, 'create\n')
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
})

test('files are written, read, listed and watched', async () => {
  const seen = []
  await sandbox.files.makeDir('old')
  const watch = await sandbox.files.watchDir('old', (event) => { seen.push(event.name) })
  await sandbox.files.write('old/f', 'content')
  assert.equal(await sandbox.files.read('old/f'), 'content')
  assert.deepEqual((await sandbox.files.list('old')).map((entry) => entry.name), ['f'])
  await watch.stop()
  await assert.rejects(sandbox.files.read('old/none'), NotFoundError)
})

test('the life cycle works', async () => {
  assert.equal((await sandbox.getInfo()).metadata.generation, 'old')
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo same')).stdout, 'same\n')
  const listed = await Sandbox.list({ query: { metadata: { generation: 'old' } } }).nextItems()
  assert.ok(listed.some((info) => info.sandboxId === sandbox.sandboxId))
  await sandbox.setTimeout(200_000)
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
})

test('a pause keeps it all', async () => {
  await sandbox.runCode('y = 41')
  await sandbox.files.write('note', 'kept')
  assert.deepEqual([await sandbox.pause(), await sandbox.pause()], [true, false])
  assert.equal((await sandbox.getInfo()).state, 'paused')
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  assert.equal(await again.files.read('note'), 'kept')
  assert.equal((await again.runCode('y + 1')).text, '42')
})

test('snapshots and forks', async () => {
  await sandbox.files.write('note', 'copied')
  const snapshot = await sandbox.createSnapshot({ name: 'old-js-client' })
  try {
    const pages = Sandbox.listSnapshots()
    assert.ok((await pages.nextItems()).some((found) => found.snapshotId === snapshot.snapshotId))
    const copy = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
    assert.equal(await copy.files.read('note'), 'copied')
    await copy.kill()
  } finally {
    assert.deepEqual([await Sandbox.deleteSnapshot(snapshot.snapshotId), await Sandbox.deleteSnapshot(snapshot.snapshotId)], [true, false])
  }
  for (const fork of await sandbox.fork({ count: 2, timeoutMs: 60_000 })) {
    assert.equal(await fork.files.read('note'), 'copied')
    await fork.kill()
  }
})

test('metrics', async () => {
  let points = []
  for (const deadline = Date.now() + 20_000; points.length === 0; points = await sandbox.getMetrics()) {
    assert.ok(Date.now() < deadline, 'a point')
    await pause(100)
  }
  for (const point of points) assert.ok(point.memUsed > 0 && point.memUsed < point.memTotal)
})
