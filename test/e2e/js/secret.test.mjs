// Secrets, with the newest client.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { randomUUID } from 'node:crypto'

import { Secret, SecretNotFoundError } from 'e2b'

const value = `s3cr3t-${randomUUID()}`
const name = `js-${randomUUID().slice(0, 8)}`
let secret

before(async () => { secret = await Secret.create(name, value, { metadata: { team: 'a' } }) })
after(async () => { await Secret.destroy(name) })

test('it is found by id and name, without its value', async () => {
  for (const by of [secret.secretId, name, name.toUpperCase()]) {
    const info = await Secret.getInfo(by)
    assert.deepEqual([info.secretId, info.name, info.version, info.metadata], [secret.secretId, name, 1, { team: 'a' }])
    assert.ok(!JSON.stringify(info).includes(value))
  }
})

test('it is changed, listed and destroyed', async () => {
  assert.equal((await Secret.update(name, `${value}-2`)).version, 2)
  const paginator = Secret.list({ limit: 1 })
  const names = []
  while (paginator.hasNext) names.push(...(await paginator.nextItems()).map((s) => s.name))
  assert.ok(names.includes(name))
  assert.equal(Secret.fill(name), '${e2b.secrets.' + name + '}')

  const other = await Secret.create(`${name}-other`, value)
  assert.equal(await Secret.destroy(other.secretId), true)
  assert.equal(await Secret.destroy(other.secretId), false)
  assert.equal(await Secret.exists(other.name), false)
  await assert.rejects(Secret.getInfo(other.name), SecretNotFoundError)
  await assert.rejects(Secret.create(name, value), /already/)
  await assert.rejects(Secret.create('js-short', 'short'), /8 at least/)
})
