// Waiting for conditions, since no test sleeps and hopes.

import assert from 'node:assert/strict'
import { setTimeout as pause } from 'node:timers/promises'

// eventually calls condition until it is truthy and resolves to that value; it
// fails after `within` milliseconds, naming `what` was awaited.
export async function eventually(condition, within, what) {
  const deadline = Date.now() + within
  for (;;) {
    const value = await condition()
    if (value) return value
    if (Date.now() > deadline) assert.fail(`not within ${within} ms: ${what}`)
    await pause(50)
  }
}
