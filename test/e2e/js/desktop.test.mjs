// The desktop template, through E2B's desktop client for JavaScript.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Sandbox } from '@e2b/desktop'
import { eventually } from './wait.mjs'

const server = new URL(process.env.E2B_API_URL)
let desktop

before(async () => { desktop = await Sandbox.create({ timeoutMs: 600_000 }) })
after(() => desktop?.kill())

// within is a path of a port of the sandbox, through the edge.
const within = (port, path) => fetch(new URL(path, server), {
  headers: { 'E2b-Sandbox-Id': desktop.sandboxId, 'E2b-Sandbox-Port': String(port) },
})

async function windowOf(application) {
  const look = () => desktop.getApplicationWindows(application).then((all) => all.find(Boolean), () => undefined)
  return eventually(look, 60_000, `a window of ${application}`)
}

describe('desktop', () => {
  test('a screenshot is a picture of the screen', async () => {
    const png = Buffer.from(await desktop.screenshot())
    assert.equal(png.subarray(1, 4).toString(), 'PNG')
    assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [1024, 768])
    assert.ok(png.length > 20_000, `a picture of one colour has fewer bytes than ${png.length}`)
    assert.deepEqual(await desktop.getScreenSize(), { width: 1024, height: 768 })
  })

  test('the mouse moves, presses and drags', async () => {
    await desktop.moveMouse(111, 222)
    assert.deepEqual(await desktop.getCursorPosition(), { x: 111, y: 222 })
    await desktop.drag([300, 300], [400, 350])
    assert.deepEqual(await desktop.getCursorPosition(), { x: 400, y: 350 })
    await desktop.leftClick(500, 400)
    await desktop.scroll('down', 3)
  })

  test('what is typed arrives in the terminal', async () => {
    await desktop.launch('xfce4-terminal')
    const id = await windowOf('xfce4-terminal')
    await desktop.commands.run(`xdotool windowactivate --sync ${id}`)
    await eventually(async () => await desktop.getCurrentWindowId() === id, 20_000, 'it has the focus')
    assert.match(await desktop.getWindowTitle(id), /Terminal/)
    await desktop.write("echo 'it is there' >typed")
    await desktop.press('enter')
    const typed = '/home/user/typed'
    await eventually(async () => await desktop.files.exists(typed) && await desktop.files.read(typed) === 'it is there\n', 20_000, 'the command has run')
  })

  test('the stream is served and ends', async () => {
    await desktop.stream.start({ requireAuth: true })
    const url = new URL(desktop.stream.getUrl({ authKey: desktop.stream.getAuthKey(), viewOnly: true }))
    assert.equal(url.pathname, '/vnc.html')
    assert.equal(url.searchParams.get('password').length, 16)
    const page = await within(6080, '/vnc.html')
    assert.equal(page.status, 200)
    assert.match(await page.text(), /noVNC/)
    await desktop.stream.stop()
  })
})
