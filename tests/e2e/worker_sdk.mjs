// A worker as a project would write one with the npm iii-sdk. It counts in a file on its own disk,
// and tells what it sees of the machine it is in.
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { webcrypto } from 'node:crypto'
import { registerWorker } from 'iii-sdk'

globalThis.crypto ??= webcrypto // the SDK's handlers want it there, where Node 18 does not have it

const STATE = '/var/lib/counter'
const INSTALLS = '/var/lib/installs'
const name = process.env.III_WORKER_NAME

const text = (path) => (existsSync(path) ? readFileSync(path, 'latin1') : '')

function save(count) {
  const file = openSync(STATE + '.new', 'w')
  writeSync(file, String(count))
  fsyncSync(file)
  closeSync(file)
  renameSync(STATE + '.new', STATE)
  const folder = openSync('/var/lib', 'r')
  fsyncSync(folder)
  closeSync(folder)
}

const iii = registerWorker(process.env.III_URL, { workerName: name, otel: { enabled: false } })

iii.registerFunction(`${name}::add`, async ({ by }) => {
  const count = Number(text(STATE)) + by
  save(count)
  console.log(`counted to ${count}`)
  return { count }
})

iii.registerFunction(`${name}::tell`, async () => ({
  cwd: process.cwd(),
  env: process.env,
  installs: text(INSTALLS).split('\n').filter(Boolean).length,
  // What everything in the VM can read, and only the worker should have been told.
  exposed: ['/proc/cmdline', '/proc/1/cmdline', '/proc/1/environ', '/etc/environment'].map(text).join('\n'),
}))

process.on('SIGTERM', async () => {
  console.log('asked to leave')
  await iii.shutdown()
  process.exit(0)
})

console.log(`node ${process.version} starts at ${Number(text(STATE))}`)
