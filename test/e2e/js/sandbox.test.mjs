// The newest JavaScript client: life cycle, commands, files, watching, PTY.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import {
  AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError,
} from 'e2b'
import { eventually } from './wait.mjs'

let box

before(async () => { box = await Sandbox.create({ timeoutMs: 600_000 }) })
after(async () => { await box?.kill() })

describe('life cycle', () => {
  test('create, info, list by metadata, kill', async () => {
    const metadata = { run: randomBytes(8).toString('hex'), odd: 'ü & = %' }
    const sandbox = await Sandbox.create({ metadata, timeoutMs: 120_000 })
    const info = await sandbox.getInfo()
    assert.deepEqual(info.metadata, metadata)
    assert.equal(info.state, 'running')
    assert.ok(Math.abs(info.endAt - info.startedAt - 120_000) < 5000)
    const page = await Sandbox.list({ query: { metadata } }).nextItems()
    assert.deepEqual(page.map((s) => s.sandboxId), [sandbox.sandboxId])
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.kill(), false)
    assert.equal(await sandbox.isRunning(), false)
  })

  test('connect reaches the same sandbox and setTimeout ends it', async () => {
    const sandbox = await Sandbox.create()
    const again = await Sandbox.connect(sandbox.sandboxId)
    await sandbox.files.write('/tmp/note', 'same')
    assert.equal(await again.files.read('/tmp/note'), 'same')
    await again.setTimeout(1000)
    await eventually(async () => !(await sandbox.isRunning()), 10_000, 'the sandbox ends')
  })

  test('a wrong key is refused, an unknown id not found', async () => {
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
    await assert.rejects(Sandbox.connect('i00000000000000000000'), NotFoundError)
  })
})

describe('commands', () => {
  test('streams, callbacks and exit codes', async () => {
    const out = []
    const result = await box.commands.run('echo a; echo b >&2', { onStdout: (data) => out.push(data) })
    assert.equal(result.stdout, 'a\n')
    assert.equal(result.stderr, 'b\n')
    assert.equal(out.join(''), 'a\n')
    await assert.rejects(box.commands.run('exit 9'), (error) => error instanceof CommandExitError && error.exitCode === 9)
  })

  test('background, list, stdin, kill', async () => {
    const handle = await box.commands.run('read line; echo got $line', { background: true, stdin: true })
    assert.ok((await box.commands.list()).some((process) => process.pid === handle.pid))
    await box.commands.sendStdin(handle.pid, 'words\n')
    assert.equal((await handle.wait()).stdout, 'got words\n')
    const sleeper = await box.commands.run('sleep 300', { background: true })
    assert.equal(await sleeper.kill(), true)
    await assert.rejects(sleeper.wait(), CommandExitError)
    assert.equal(await box.commands.kill(999999), false)
  })

  test('closing stdin ends a reader', async () => {
    const handle = await box.commands.run('cat', { background: true, stdin: true })
    await box.commands.sendStdin(handle.pid, 'x')
    await box.commands.closeStdin(handle.pid)
    assert.equal((await handle.wait()).stdout, 'x')
  })

  test('timeout rejects', async () => {
    await assert.rejects(box.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError)
  })

  test('environment, folder, user', async () => {
    const result = await box.commands.run('echo $A $(whoami) $(pwd)', { envs: { A: '1' }, cwd: '/etc', user: 'root' })
    assert.equal(result.stdout, '1 root /etc\n')
    await assert.rejects(box.commands.run('true', { user: 'nobody-here' }), AuthenticationError)
    await assert.rejects(box.commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
  })

  test('fifty at once', async () => {
    const results = await Promise.all(Array.from({ length: 50 }, (_, i) => box.commands.run(`echo ${i}`)))
    assert.deepEqual(results.map((result) => result.stdout), Array.from({ length: 50 }, (_, i) => `${i}\n`))
  })
})

describe('files', () => {
  test('text, bytes, blob and stream round trips', async () => {
    const data = randomBytes(300_000)
    await box.files.write('js/text ü', 'häl\n')
    assert.equal(await box.files.read('js/text ü'), 'häl\n')
    await box.files.write('js/bytes', data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
    assert.deepEqual(Buffer.from(await box.files.read('js/bytes', { format: 'bytes' })), data)
    await box.files.write('js/blob', new Blob([data]))
    assert.deepEqual(Buffer.from(await (await box.files.read('js/blob', { format: 'blob' })).arrayBuffer()), data)
    await box.files.write('js/stream', new Blob([data]).stream())
    const chunks = []
    for await (const chunk of await box.files.read('js/stream', { format: 'stream' })) chunks.push(chunk)
    assert.deepEqual(Buffer.concat(chunks), data)
  })

  test('a hundred megabytes round trip', async () => {
    const data = Buffer.alloc(100 << 20, randomBytes(1 << 16))
    await box.files.write('js/big', new Blob([data]))
    const hash = createHash('sha256')
    for await (const chunk of await box.files.read('js/big', { format: 'stream' })) hash.update(chunk)
    assert.equal(hash.digest('hex'), createHash('sha256').update(data).digest('hex'))
    await box.files.remove('js/big')
  })

  test('several files in one call, list, info, rename, remove', async () => {
    await box.files.write([{ path: 'js/many/a', data: '1' }, { path: 'js/many/b', data: '22' }])
    assert.deepEqual((await box.files.list('js/many')).map((entry) => entry.name).sort(), ['a', 'b'])
    const info = await box.files.getInfo('js/many/b')
    assert.deepEqual([info.name, info.type, info.size, info.owner], ['b', 'file', 2, 'user'])
    await box.files.rename('js/many/b', 'js/many/c')
    assert.equal(await box.files.exists('js/many/b'), false)
    await box.files.remove('js/many')
    assert.equal(await box.files.exists('js/many'), false)
    assert.equal(await box.files.makeDir('js/dir'), true)
    assert.equal(await box.files.makeDir('js/dir'), false)
    await assert.rejects(box.files.read('js/none'), NotFoundError)
  })

  test('a watch streams events, recursively', async () => {
    await box.files.makeDir('js/watched/sub')
    const seen = []
    const watch = await box.files.watchDir('js/watched', (event) => { seen.push(`${event.type} ${event.name}`) }, { recursive: true })
    await box.files.write('js/watched/f', 'x')
    await box.files.write('js/watched/sub/g', 'x')
    await box.files.remove('js/watched/f')
    for (const event of ['create f', 'write f', 'create sub/g', 'remove f']) {
      await eventually(() => seen.includes(event), 10_000, `${event}, seen ${seen}`)
    }
    await watch.stop()
    const count = seen.length
    await box.files.write('js/watched/after', 'x')
    await box.commands.run('true')
    assert.equal(seen.length, count)
  })

  test('signed URLs by fetch', async () => {
    await box.files.write('/home/user/js signed', 'by url')
    const url = await box.downloadUrl('/home/user/js signed', { useSignatureExpiration: 60 })
    assert.equal(await (await fetch(url)).text(), 'by url')
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'ignored')
    const answer = await fetch(await box.uploadUrl('/home/user/js up'), { method: 'POST', body: form })
    assert.equal(answer.status, 200)
    assert.equal(await box.files.read('/home/user/js up'), 'uploaded')
    assert.equal((await fetch(url.replace('signed', 'other'))).ok, false)
  })
})

describe('pty', () => {
  test('a terminal echoes, resizes and dies', async () => {
    let screen = ''
    const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => { screen += Buffer.from(data).toString() } })
    const type = (text) => box.pty.sendInput(terminal.pid, new TextEncoder().encode(text))
    await type('stty size\n')
    await eventually(() => screen.includes('24 80'), 15_000, 'the size')
    await box.pty.resize(terminal.pid, { cols: 100, rows: 40 })
    await type('stty size\n')
    await eventually(() => screen.includes('40 100'), 15_000, 'the new size')
    assert.equal(await terminal.kill(), true)
  })
})
