// Prepare once, try several ways from there, keep the best.
//
// One sandbox loads the data. Each attempt is a fork of it, with the data in memory
// already, and cannot spoil the others. The best one is paused and brought back.

import { Sandbox } from '@e2b/code-interpreter'

const prepare = `
data = [3, 1, 4, 1, 5, 9, 2, 6]
score = lambda guess: sum(abs(guess - x) for x in data)
`
const attempts = ['2', '3', '5'] // what an agent would propose

const base = await Sandbox.create({ timeoutMs: 300_000 })
let copies = []
try {
  await base.runCode(prepare)

  copies = await base.fork({ count: attempts.length })
  const scores = await Promise.all(copies.map(async (copy, i) => {
    if (copy instanceof Error) throw copy // each fork succeeds or fails for itself
    const run = await copy.runCode(`best = ${attempts[i]}\nscore(best)`)
    return Number(run.text)
  }))

  const winner = copies[scores.indexOf(Math.min(...scores))].sandboxId
  await Sandbox.pause(winner) // memory, processes and files go to disk
  const back = await Sandbox.connect(winner) // the same sandbox, where it was
  console.log((await back.runCode("f'{best} is off by {score(best)}'")).text)
} finally {
  await Promise.all([base, ...copies].map((sandbox) => sandbox.kill?.()))
}
