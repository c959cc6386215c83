// The mcp option of create, with the official MCP client for JavaScript.

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { Sandbox, SandboxError } from 'e2b'

// connect opens a session through the edge.
async function connect(sandbox, token) {
  const client = new Client({ name: 'test', version: '1.0.0' })
  await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', process.env.E2B_API_URL), {
    requestInit: { headers: {
      Authorization: `Bearer ${token}`, 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '50005',
    } },
  }))
  return client
}

describe('mcp', () => {
  test('two servers are one, for whoever has the token', async () => {
    const sandbox = await Sandbox.create({ mcp: { filesystem: { paths: ['/home/user'] }, time: {} }, timeoutMs: 300_000 })
    try {
      assert.equal(sandbox.getMcpUrl(), `https://${sandbox.getHost(50005)}/mcp`)
      const client = await connect(sandbox, await sandbox.getMcpToken())
      const names = (await client.listTools()).tools.map((tool) => tool.name)
      assert.ok(names.includes('write_file') && names.includes('convert_time'), names.join())
      await client.callTool({ name: 'write_file', arguments: { path: '/home/user/a.txt', content: 'by a tool' } })
      assert.equal(await sandbox.files.read('/home/user/a.txt'), 'by a tool')
      const answer = await client.callTool({ name: 'get_current_time', arguments: { timezone: 'Europe/Berlin' } })
      assert.equal(JSON.parse(answer.content[0].text).timezone, 'Europe/Berlin')
      await client.close()
      await assert.rejects(connect(sandbox, 'wrong'), /401|Authorization/)
    } finally {
      await sandbox.kill()
    }
  })

  test('a repository names its commands as JavaScript does', async () => {
    await assert.rejects(
      Sandbox.create({ mcp: { 'github/some/repo': { installCmd: 'true' } }, timeoutMs: 60_000 }),
      (error) => error instanceof SandboxError && /runCmd is missing/.test(error.message))
  })

  test('a server that nobody knows is refused by name', async () => {
    await assert.rejects(
      Sandbox.create({ mcp: { nobody: {} }, timeoutMs: 60_000 }),
      (error) => error instanceof SandboxError && /Failed to start MCP gateway.*nobody.*not in the catalogue/s.test(error.message))
  })
})
