// Templates built by the official JavaScript client, and by its command line.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtemp, mkdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox, Template, waitForPort } from 'e2b'

import { e2b } from './command-line.mjs'

let folder
const names = []

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'template-'))
  await mkdir(join(folder, 'app'))
  await writeFile(join(folder, 'app', 'index.html'), 'served\n')
  await symlink('index.html', join(folder, 'app', 'link.html'))
  await writeFile(join(folder, 'notes.txt'), 'notes\n')
})

after(async () => {
  await rm(folder, { recursive: true })
  for (const name of names) {
    await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: 'DELETE', headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
  }
})

function newName() {
  const name = `js-${randomUUID().slice(0, 8)}`
  names.push(name)
  return name
}

const template = () => Template({ fileContextPath: folder }).fromTemplate('base')

test('a template is built with files, variables and a start command', async () => {
  const name = newName()
  const logs = []
  await Template.build(
    template()
      .setEnvs({ WHO: 'world' })
      .copy('app', '/srv/app', { user: 'root', mode: 0o755 })
      .copy(['notes.txt'], '/home/user/')
      .runCmd('echo hello $WHO > greeting')
      .setWorkdir('/srv/app')
      .setStartCmd('python3 -m http.server 8125', waitForPort(8125)),
    name,
    { cpuCount: 1, memoryMB: 512, onBuildLogs: (entry) => logs.push(entry.message) },
  )
  assert(logs.some((line) => line.includes('RUN echo hello $WHO')), logs.join('\n'))
  const sandbox = await Sandbox.create(name)
  try {
    const { stdout } = await sandbox.commands.run('cat ~/greeting ~/notes.txt; curl -s localhost:8125/link.html; stat -c "%a %U" index.html; echo $WHO; pwd')
    assert.equal(stdout, 'hello world\nnotes\nserved\n755 root\nworld\n/srv/app\n')
  } finally {
    await sandbox.kill()
  }
})

test('a failed step is the error, with the line that made it', async () => {
  const name = newName()
  const failing = template().runCmd('true').runCmd('echo no >&2; exit 9')
  await assert.rejects(Template.build(failing, name), (error) => {
    assert.match(error.message, /exit status 9/)
    assert.match(error.stack, /template\.test\.mjs/)
    return true
  })
  assert.equal(await Template.exists(name), false)
})

test('a build in the background tells its state, and tags point at it', async () => {
  const name = newName()
  const info = await Template.buildInBackground(template().runCmd('echo one > v'), `${name}:v1`, { tags: ['stable'] })
  let status
  do {
    status = await Template.getBuildStatus(info)
  } while (status.status === 'building' || status.status === 'waiting')
  assert.equal(status.status, 'ready', status.reason?.message)
  assert.equal(await Template.exists(name), true)
  const tags = await Template.getTags(name)
  assert.deepEqual(tags.map((tag) => tag.tag).sort(), ['stable', 'v1'])
  await Template.assignTags(`${name}:v1`, 'default')
  const sandbox = await Sandbox.create(name)
  assert.equal(await sandbox.files.read('/home/user/v'), 'one\n')
  await sandbox.kill()
})

test('the command line creates, lists and deletes templates', async () => {
  const name = newName()
  const context = await mkdtemp(join(tmpdir(), 'dockerfile-'))
  try {
    await writeFile(join(context, 'e2b.Dockerfile'), 'FROM e2bdev/base\nCOPY notes.txt /srv/\nRUN cat /srv/notes.txt > /srv/copied\nENV A=b\nWORKDIR /srv\n')
    await writeFile(join(context, 'notes.txt'), 'from the command line\n')
    const created = await e2b(['template', 'create', name, '--path', context, '--cpu-count', '1', '--memory-mb', '512'])
    assert.equal(created.code, 0, created.stdout + created.stderr)
    const listed = await e2b(['template', 'list', '--format', 'json'])
    const found = JSON.parse(listed.stdout).find((entry) => entry.aliases.includes(name))
    assert(found, listed.stdout)
    assert.equal(found.cpuCount, 1)
    const sandbox = await Sandbox.create(name)
    assert.equal((await sandbox.commands.run('cat copied; echo $A')).stdout, 'from the command line\nb\n')
    await sandbox.kill()
    const published = await e2b(['template', 'publish', '--yes', name])
    assert.equal(published.code, 0, published.stdout + published.stderr)
    const deleted = await e2b(['template', 'delete', '--yes', name])
    assert.equal(deleted.code, 0, deleted.stdout + deleted.stderr)
    assert.equal(await Template.exists(name), false)
  } finally {
    await rm(context, { recursive: true })
  }
})
