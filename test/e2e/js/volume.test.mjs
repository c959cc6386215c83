// Volumes, with the newest client.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { randomUUID } from 'node:crypto'

import { Sandbox, Volume, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'

let volume

before(async () => { volume = await Volume.create(`js-${randomUUID().slice(0, 8)}`) })
after(async () => { await Volume.destroy(volume.volumeId) })

test('it is listed, found and connected to', async () => {
  assert.ok((await Volume.list()).some((v) => v.volumeId === volume.volumeId && v.name === volume.name))
  assert.equal((await Volume.getInfo(volume.volumeId)).token, volume.token)
  assert.deepEqual(await (await Volume.connect(volume.volumeId)).list('/'), [])
})

test('one that is not there is said to be so', async () => {
  await assert.rejects(Volume.getInfo('none'), VolumeNotFoundError)
  assert.equal(await Volume.destroy('none'), false)
})

test('files are written, read, described and removed', async () => {
  const entry = await volume.writeFile('/file.txt', 'hello', { uid: 1001, gid: 1002, mode: 0o640 })
  assert.deepEqual([entry.path, entry.type, entry.uid, entry.gid, entry.mode], ['/file.txt', 'file', 1001, 1002, 0o640])
  assert.ok(entry.mtime instanceof Date)
  assert.equal(await volume.readFile('/file.txt'), 'hello')
  await volume.writeFile('/file.txt', new Blob(['blob']), { force: true })
  assert.equal(await (await volume.readFile('/file.txt', { format: 'blob' })).text(), 'blob')
  const stream = new ReadableStream({ start(c) { c.enqueue(new TextEncoder().encode('streamed')); c.close() } })
  await volume.writeFile('/streamed', stream)
  let text = ''
  for await (const chunk of await volume.readFile('/streamed', { format: 'stream' })) text += new TextDecoder().decode(chunk)
  assert.equal(text, 'streamed')
  assert.equal((await volume.updateMetadata('/streamed', { mode: 0o600 })).mode, 0o600)
  await volume.writeFile('/empty', '')
  assert.equal(await volume.readFile('/empty'), '')

  await volume.makeDir('/a/b', { force: true })
  assert.deepEqual((await volume.list('/', { depth: 2 })).map((e) => e.path), ['/a', '/a/b', '/empty', '/file.txt', '/streamed'])
  await volume.remove('/a')
  assert.equal(await volume.exists('/a/b'), false)
  await assert.rejects(volume.remove('/a'), VolumePathNotFoundError)
  await assert.rejects(volume.list('/a'), VolumePathNotFoundError)
})

test('sandboxes have it, one after the other and at once', async () => {
  const one = await Sandbox.create('base', { volumeMounts: { '/mnt/data': volume } })
  const two = await Sandbox.create('base', { volumeMounts: { '/mnt/other': volume.name } })
  try {
    await one.files.write('/mnt/data/js', 'of one')
    assert.equal(await two.files.read('/mnt/other/js'), 'of one')
    assert.deepEqual((await two.getInfo()).volumeMounts, [{ name: volume.name, path: '/mnt/other' }])
    await assert.rejects(Volume.destroy(volume.volumeId), /in use by/)
  } finally {
    await Promise.all([one.kill(), two.kill()])
  }
  assert.equal(await volume.readFile('/js'), 'of one')
})
