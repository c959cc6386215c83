import { execFile } from 'node:child_process'

export const program = 'node_modules/.bin/e2b'

// e2b runs the command line and resolves to its exit code and output.
export function e2b(args, input = '') {
  return new Promise((resolve) => {
    const child = execFile(program, args, { timeout: 60_000 }, (error, stdout, stderr) => {
      resolve({ code: error ? error.code : 0, stdout, stderr })
    })
    child.stdin.end(input)
  })
}
