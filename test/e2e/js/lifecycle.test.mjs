// The newest JavaScript client: what the API answers about a sandbox's life. What
// pausing and copying keep is in pause.test.mjs.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { InvalidArgumentError, NotFoundError, Sandbox, SandboxError } from 'e2b'
import { eventually } from './wait.mjs'

const made = []

// keep makes a sandbox that is killed in the end.
async function keep(options) {
  const sandbox = await Sandbox.create(options)
  made.push(sandbox)
  return sandbox
}
after(async () => { await Promise.all(made.map((sandbox) => sandbox.kill())) })

const left = async (sandbox) => (await sandbox.getInfo()).endAt - Date.now()

async function all(options) {
  const pages = Sandbox.list(options)
  const found = []
  while (pages.hasNext) found.push(...await pages.nextItems())
  return found
}

describe('options of create', () => {
  test('lifecycle and network are told by info', async () => {
    const sandbox = await keep({
      lifecycle: { onTimeout: 'pause', autoResume: true },
      network: { allowPublicTraffic: false, maskRequestHost: 'localhost:${PORT}' },
    })
    assert.ok(sandbox.trafficAccessToken)
    const info = await sandbox.getInfo()
    assert.deepEqual(info.lifecycle, { onTimeout: 'pause', autoResume: true })
    assert.deepEqual([info.network.allowPublicTraffic, info.network.maskRequestHost], [false, 'localhost:${PORT}'])
    assert.equal((await Sandbox.connect(sandbox.sandboxId)).trafficAccessToken, sandbox.trafficAccessToken)
  })

  test('without them it is killed and its ports are open', async () => {
    const sandbox = await keep()
    assert.equal(sandbox.trafficAccessToken, undefined)
    const info = await sandbox.getInfo()
    assert.deepEqual(info.lifecycle, { onTimeout: 'kill', autoResume: false })
    assert.deepEqual([info.network.allowPublicTraffic, info.allowInternetAccess], [true, true])
  })

  test('no internet, in two ways', async () => {
    for (const options of [{ allowInternetAccess: false }, { network: { denyOut: ['0.0.0.0/0'] } }]) {
      const info = await (await keep(options)).getInfo()
      assert.deepEqual([info.allowInternetAccess, info.network.denyOut], [false, ['0.0.0.0/0']])
    }
  })

  test('names to allow, with the rest denied', async () => {
    const network = { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] }
    const info = await (await keep({ network })).getInfo()
    assert.deepEqual([info.network.allowOut, info.network.denyOut], [network.allowOut, network.denyOut])
  })

  test('what is not kept is refused', async () => {
    await assert.rejects(Sandbox.create({ network: { maskRequestHost: 'not a host' } }), SandboxError)
    await assert.rejects(Sandbox.create({ network: { denyOut: ['example.com'] } }), SandboxError)
    await assert.rejects(Sandbox.create({ lifecycle: { onTimeout: 'kill', autoResume: true } }), InvalidArgumentError)
  })
})

describe('time', () => {
  test('connect resumes for the time asked for, and extends only', async () => {
    const sandbox = await keep({ timeoutMs: 60_000 })
    assert.equal(await sandbox.pause(), true)
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 200_000 })
    assert.ok(await left(sandbox) > 150_000)
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
    assert.ok(await left(sandbox) > 150_000)
    await sandbox.setTimeout(100_000)
    assert.ok(await left(sandbox) <= 100_000)
  })

  test('a paused sandbox has no timeout', async () => {
    const sandbox = await keep()
    await sandbox.pause()
    await assert.rejects(sandbox.setTimeout(60_000), NotFoundError)
    assert.equal((await sandbox.getInfo()).state, 'paused')
  })
})

test('lists page over running and paused', async () => {
  const metadata = { test: randomUUID() }
  const ids = []
  for (const paused of [true, false, true]) {
    const sandbox = await keep({ metadata })
    if (paused) await sandbox.pause()
    ids.push(sandbox.sandboxId)
  }
  const found = await all({ query: { metadata }, limit: 1, order: 'asc' })
  assert.deepEqual(found.map((info) => [info.sandboxId, info.state]), [[ids[0], 'paused'], [ids[1], 'running'], [ids[2], 'paused']])
  assert.deepEqual((await all({ query: { metadata, state: ['running'] } })).map((info) => info.sandboxId), [ids[1]])
  assert.equal((await all({ query: { metadata, state: ['paused'] } })).length, 2)
  assert.equal((await all({ query: { metadata, template: 'base' } })).length, 3)
})

test('metrics have the points of a window', async () => {
  const sandbox = await keep()
  const points = await eventually(async () => {
    const found = await sandbox.getMetrics()
    return found.length >= 2 && found
  }, 20_000, 'two points')
  for (const point of points) {
    assert.equal(point.cpuCount, 2)
    assert.ok(point.memUsed > 0 && point.memUsed < point.memTotal && point.diskUsed < point.diskTotal)
  }
  const [first] = points
  assert.deepEqual((await sandbox.getMetrics({ start: first.timestamp, end: first.timestamp })).map((p) => p.timestamp), [first.timestamp])
  assert.deepEqual(await sandbox.getMetrics({ start: new Date(Date.now() + 3_600_000) }), [])
})

describe('copies', () => {
  test('a snapshot is known by every form of its name', async () => {
    const sandbox = await keep()
    const name = `js-${randomUUID().slice(0, 8)}`
    const snapshot = await sandbox.createSnapshot({ name: `${name}:v1` })
    try {
      assert.deepEqual(snapshot.names, [snapshot.snapshotId])
      for (const form of [snapshot.snapshotId, `${name}:v1`]) {
        const copy = await Sandbox.create(form, { timeoutMs: 60_000 })
        assert.equal((await copy.getInfo()).name, name)
        await copy.kill()
      }
      await assert.rejects(Sandbox.create(name), SandboxError, 'it has no default tag')
      assert.deepEqual(await Sandbox.listSnapshots({ name }).nextItems(), [snapshot])
      assert.deepEqual(await sandbox.listSnapshots({ limit: 1 }).nextItems(), [snapshot])
    } finally {
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    }
  })

  test('a paused sandbox is not copied, and says so', async () => {
    const sandbox = await keep()
    await sandbox.pause()
    await assert.rejects(sandbox.fork(), /paused/)
    await assert.rejects(sandbox.createSnapshot(), /paused/)
    await sandbox.kill()
    await assert.rejects(sandbox.fork(), NotFoundError)
    await assert.rejects(sandbox.createSnapshot(), NotFoundError)
  })
})
