// The newest JavaScript clients: pausing, waking, snapshots, forks.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { NotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { eventually } from './wait.mjs'

const made = []

// keep makes a sandbox that is killed in the end.
async function keep(creating) {
  const sandbox = await creating
  made.push(sandbox)
  return sandbox
}
after(async () => { await Promise.all(made.map((sandbox) => sandbox.kill())) })

const sha256 = (data) => createHash('sha256').update(data).digest('hex')
const stdout = async (sandbox, command) => (await sandbox.commands.run(command)).stdout.trim()
const left = async (sandbox) => (await sandbox.getInfo()).endAt - Date.now()

// fill puts random bytes on the disk and in memory, and tells their hash.
async function fill(sandbox) {
  const data = randomBytes(1 << 20)
  const bytes = data.buffer.slice(data.byteOffset, data.byteOffset + data.length)
  await sandbox.files.write('/home/user/on-disk', bytes)
  await sandbox.files.write('/dev/shm/in-memory', bytes)
  return sha256(data)
}

async function hashes(sandbox) {
  const lines = await stdout(sandbox, 'sha256sum /home/user/on-disk /dev/shm/in-memory')
  return lines.split('\n').map((line) => line.split(' ')[0])
}

describe('pause', () => {
  test('five rounds keep files, memory, processes and the kernel', async () => {
    const sandbox = await keep(Interpreter.create({ metadata: { kept: 'yes' }, timeoutMs: 600_000 }))
    await sandbox.runCode('x = 41')
    const sleeper = await sandbox.commands.run('sleep 5000', { background: true, timeoutMs: 0 })
    await sleeper.disconnect()
    for (let round = 0; round < 5; round++) {
      const hash = await fill(sandbox)
      assert.equal(await sandbox.pause(), true)
      assert.equal((await sandbox.getInfo()).state, 'paused')
      assert.equal(await sandbox.isRunning(), false)
      const again = await Interpreter.connect(sandbox.sandboxId)
      assert.equal(again.sandboxId, sandbox.sandboxId)
      assert.deepEqual(await hashes(sandbox), [hash, hash])
      assert.equal((await again.runCode('x + 1')).text, '42')
      assert.ok((await sandbox.commands.list()).some((process) => process.pid === sleeper.pid))
    }
    assert.deepEqual((await sandbox.getInfo()).metadata, { kept: 'yes' })
  })

  test('pausing twice, an unknown sandbox, a killed one', async () => {
    const sandbox = await keep(Sandbox.create())
    assert.deepEqual([await sandbox.pause(), await sandbox.pause()], [true, false])
    assert.equal(await sandbox.kill(), true)
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError)
    await assert.rejects(Sandbox.pause('i00000000000000000000'), NotFoundError)
  })

  test('without memory the disk stays and it boots afresh', async () => {
    const sandbox = await keep(Sandbox.create())
    const hash = await fill(sandbox)
    const boot = await stdout(sandbox, 'cat /proc/sys/kernel/random/boot_id')
    await sandbox.pause({ keepMemory: false })
    await sandbox.connect()
    assert.equal((await stdout(sandbox, 'sha256sum /home/user/on-disk')).split(' ')[0], hash)
    assert.equal(await sandbox.files.exists('/dev/shm/in-memory'), false)
    const next = await stdout(sandbox, 'cat /proc/sys/kernel/random/boot_id')
    assert.notEqual(next, boot)
    await sandbox.pause()
    await sandbox.connect({ onResume: 'reboot' })
    assert.notEqual(await stdout(sandbox, 'cat /proc/sys/kernel/random/boot_id'), next)
  })

  test('connect never shortens', async () => {
    const sandbox = await keep(Sandbox.create({ timeoutMs: 500_000 }))
    await sandbox.connect({ timeoutMs: 10_000 })
    assert.ok(await left(sandbox) > 450_000)
    await sandbox.pause()
    await sandbox.connect({ timeoutMs: 200_000 })
    assert.ok(Math.abs(await left(sandbox) - 200_000) < 15_000)
  })

  test('a command that streams breaks and can be connected to again', async () => {
    const sandbox = await keep(Sandbox.create())
    const handle = await sandbox.commands.run('i=0; while :; do echo $((i = i + 1)); sleep 0.05; done', { background: true, timeoutMs: 0 })
    const ended = handle.wait().then(() => null, (error) => error)
    await eventually(() => handle.stdout.includes('5\n'), 10_000, 'the command prints')
    await sandbox.pause()
    assert.ok(await ended instanceof TimeoutError)
    await sandbox.connect()
    const last = Number(handle.stdout.trim().split('\n').at(-1))
    const again = await sandbox.commands.connect(handle.pid)
    await eventually(() => again.stdout.includes('\n'), 10_000, 'it prints on')
    assert.ok(Number(again.stdout.split('\n')[0]) > last)
    assert.equal(await again.kill(), true)
  })
})

describe('lifecycle', () => {
  const lifecycle = { onTimeout: 'pause', autoResume: true }

  test('the timeout pauses and a command wakes it', async () => {
    const sandbox = await keep(Sandbox.create({ timeoutMs: 60_000, lifecycle }))
    assert.deepEqual((await sandbox.getInfo()).lifecycle, lifecycle)
    const hash = await fill(sandbox)
    await sandbox.setTimeout(2000)
    await eventually(async () => (await sandbox.getInfo()).state === 'paused', 20_000, 'it is paused at its time')
    assert.deepEqual(await hashes(sandbox), [hash, hash])
    assert.ok(Math.abs(await left(sandbox) - 300_000) < 15_000, 'it gets five minutes at least')
  })

  test('code wakes it', async () => {
    const sandbox = await keep(Interpreter.create({ lifecycle }))
    await sandbox.runCode('x = 41')
    await sandbox.pause()
    assert.equal((await sandbox.runCode('x + 1')).text, '42')
  })

  test('without autoResume it sleeps on', async () => {
    const sandbox = await keep(Sandbox.create({ lifecycle: { onTimeout: 'pause' } }))
    await sandbox.pause()
    await assert.rejects(sandbox.commands.run('true'))
    assert.equal((await sandbox.getInfo()).state, 'paused')
  })

  test('twenty at once wake it', async () => {
    const sandbox = await keep(Sandbox.create({ lifecycle }))
    await sandbox.pause()
    const results = await Promise.all(Array.from({ length: 20 }, (_, i) => stdout(sandbox, `echo ${i}`)))
    assert.deepEqual(results, Array.from({ length: 20 }, (_, i) => String(i)))
  })

  test('a pause of the disk alone and waking exclude each other', async () => {
    await assert.rejects(Sandbox.create({ lifecycle: { onTimeout: { action: 'pause', keepMemory: false }, autoResume: true } }), SandboxError)
  })
})

describe('snapshots and forks', () => {
  test('a snapshot is a template, listed, deleted', async () => {
    const parent = await keep(Interpreter.create())
    const hash = await fill(parent)
    await parent.runCode('x = 41')
    const name = `js-${randomBytes(4).toString('hex')}`
    const snapshot = await parent.createSnapshot({ name })
    assert.ok(snapshot.names.some((full) => full.includes(name)))
    await parent.kill()
    for (const reference of [snapshot.snapshotId, name]) {
      const child = await keep(Interpreter.create(reference))
      assert.deepEqual(await hashes(child), [hash, hash])
      assert.equal((await child.runCode('x + 1')).text, '42')
    }
    const listed = await Sandbox.listSnapshots({ sandboxId: parent.sandboxId }).nextItems()
    assert.deepEqual(listed.map((s) => s.snapshotId), [snapshot.snapshotId])
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
    await assert.rejects(Sandbox.create(snapshot.snapshotId), SandboxError)
  })

  test('three forks, alike and apart', async () => {
    const parent = await keep(Interpreter.create())
    const hash = await fill(parent)
    await parent.runCode('import random; random.seed(7); x = 41')
    const forks = await parent.fork({ count: 3, timeoutMs: 120_000 })
    for (const fork of forks) made.push(fork)
    assert.ok(forks.every((fork) => fork instanceof Interpreter))
    assert.equal(new Set([parent, ...forks].map((sandbox) => sandbox.sandboxId)).size, 4)
    const numbers = new Set()
    for (const fork of forks) {
      assert.deepEqual(await hashes(fork), [hash, hash])
      numbers.add((await fork.runCode('random.random()')).text)
      assert.equal(await stdout(fork, 'echo $E2B_SANDBOX_ID'), fork.sandboxId)
    }
    assert.equal(numbers.size, 3)
    await forks[0].files.write('/home/user/on-disk', 'changed')
    await forks[1].kill()
    assert.deepEqual(await hashes(forks[2]), [hash, hash])
    assert.deepEqual(await hashes(parent), [hash, hash])
  })
})
