import { Sandbox } from '@e2b/code-interpreter'

const agentCode = 'x = 21 * 2\nx'

const sandbox = await Sandbox.create()
try {
  const result = await sandbox.runCode(agentCode)
  console.log(result.text)
} finally {
  await sandbox.kill()
}
