// Make a template of a Dockerfile, and a sandbox in which its command runs already.

import { fileURLToPath } from 'node:url'
import { Sandbox, Template, waitForPort } from 'e2b'

const web = fileURLToPath(new URL('web/', import.meta.url))

const template = Template({ fileContextPath: web }) // where files to copy are
  .fromDockerfile(`${web}/Dockerfile`)
  .setReadyCmd(waitForPort(8000)) // without it the command of the Dockerfile is given 20 seconds

// Two tags for one build: v1 stays what it is, stable may be moved to the next.
await Template.build(template, 'example-web-js', { tags: ['v1', 'stable'], cpuCount: 1, memoryMB: 512 })

const sandbox = await Sandbox.create('example-web-js:stable')
try {
  const { stdout } = await sandbox.commands.run('curl -s localhost:8000')
  process.stdout.write(stdout)
} finally {
  await sandbox.kill()
}
