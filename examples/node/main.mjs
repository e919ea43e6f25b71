// A sandbox from Node: create, write, exec, read, stop, and what to do with errors.
//
//   sandbox-libkrun standalone --vmm auto     in another terminal, or an iii engine with the adapter
//   npm install && npm start                  III_URL says where, default ws://127.0.0.1:49134
import { registerWorker } from 'iii-sdk'

const url = process.env.III_URL ?? 'ws://127.0.0.1:49134'
const iii = registerWorker(url, { workerName: `sandbox-example-${process.pid}`, otel: { enabled: false } })

// Longer than a first create, which may have to fetch the image.
const TIMEOUT_MS = 330000
const RETRIES = 3

/** What failed, in the adapter's words: code, message, retryable, fix, docs_url. */
class SandboxError extends Error {
  constructor(e) {
    super(`${e.code}: ${e.message}`)
    Object.assign(this, { code: e.code, fix: e.fix, retryable: e.retryable, docsUrl: e.docs_url })
  }
}

// Errors of sandbox functions are JSON inside the message; others (an unknown function, a lost engine) are not.
function asSandboxError(error) {
  const text = String(error.message)
  const at = text.indexOf('handler error: {')
  return at < 0 ? error : new SandboxError(JSON.parse(text.slice(text.indexOf('{', at))))
}

async function once(name, payload) {
  try {
    return await iii.trigger({ function_id: `sandbox-libkrun::${name}`, payload, timeoutMs: TIMEOUT_MS })
  } catch (error) {
    throw asSandboxError(error)
  }
}

/** Calls a function, and does what its error says can be done. */
async function call(name, payload) {
  for (let tries = 0; ; tries++) {
    try {
      return await once(name, payload)
    } catch (error) {
      if (!(error instanceof SandboxError) || tries === RETRIES) throw error
      if (error.retryable) {
        await new Promise((go) => setTimeout(go, 1000 * 2 ** tries))
      } else if (error.fix && !('inner_code' in error.fix)) {
        // (`run` puts what happened into `fix`, with inner_code: nothing to merge.)
        console.log(`${error.code}: trying again with ${JSON.stringify(error.fix)}`)
        payload = { ...payload, ...error.fix }
      } else {
        throw error
      }
    }
  }
}

async function main() {
  const { sandbox_id } = await call('create', { image: 'python', memory_mb: 256, idle_timeout_secs: 120 })
  console.log('created')
  try {
    // The folder is not there: the error S211 brings {"parents": true} as its fix.
    await call('fs::write', {
      sandbox_id,
      path: '/work/squares.py',
      content: 'for n in range(4):\n    print(n * n)\nopen("/work/done.txt", "w").write("all done")\n',
    })

    const run = await call('exec', { sandbox_id, argv: ['python3', '/work/squares.py'], timeout_ms: 60000 })
    console.log(`exit ${run.exit_code}: ${run.stdout.trim().split('\n').join(' ')}`)

    // A small text file comes along as `body`; larger ones and other bytes through the channel `content`.
    const file = await call('fs::read', { sandbox_id, path: '/work/done.txt' })
    console.log(`read ${file.size} bytes: ${file.body}`)

    // A program that fails is no error: look at exit_code. A call that fails is one.
    const failed = await call('exec', { sandbox_id, argv: ['python3', '-c', 'raise SystemExit(3)'] })
    console.log(`exit ${failed.exit_code}`)
    try {
      await call('fs::read', { sandbox_id, path: '/nothing/here' })
    } catch (error) {
      if (error.code !== 'S211') throw error
      console.log(`${error.code} as expected`)
    }
  } finally {
    await call('stop', { sandbox_id, wait: true })
    console.log('stopped')
  }
}

let status = 0
try {
  await main()
} catch (error) {
  status = 1
  console.error(error instanceof SandboxError ? `${error.message}\nsee ${error.docsUrl}` : error)
}
await iii.shutdown()
process.exit(status)
