// The npm iii-sdk drives sandboxes. Arguments: folder with node_modules, URL, pid of the daemon, KiB
// it may grow by during a stream, name of the case. Says `done CASE` when all was as it should be.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { readFileSync } from 'node:fs'
import { createCipheriv, createHash, randomUUID } from 'node:crypto'
import assert from 'node:assert/strict'
import path from 'node:path'

const [folder, url, pid, growth, wanted] = process.argv.slice(2)
const require = createRequire(path.join(folder, 'package.json'))
const load = (name) => import(pathToFileURL(require.resolve(name)).href)
const { registerWorker, InvocationError } = await load('iii-sdk')
const { createChannel } = await load('iii-sdk/helpers')
const { ChannelReader } = await load('iii-sdk/channel')

const BIG = 200 * 1000 * 1000
const CALL_MS = 120000

const iii = registerWorker(url, { workerName: 'node-client', otel: { enabled: false } })
const call = (name, payload = {}, timeoutMs = CALL_MS) =>
  iii.trigger({ function_id: `sandbox-libkrun::${name}`, payload, timeoutMs })
const create = async () => (await call('create', { image: 'python' })).sandbox_id

/** The call must fail with this code; returns the error that the adapter sent. */
async function refused(code, part, name, payload) {
  const e = await call(name, payload).then(
    (r) => assert.fail(`${name} went well: ${JSON.stringify(r)}`), (x) => x)
  assert.ok(e instanceof InvocationError, String(e))
  assert.equal(e.code, 'invocation_failed')
  const prefix = 'invocation_failed: handler error: '
  assert.ok(e.message.startsWith(prefix), e.message)
  const error = JSON.parse(e.message.slice(prefix.length))
  assert.deepEqual(Object.keys(error), ['code', 'docs_url', 'fix', 'fix_note', 'message', 'retryable', 'type'])
  assert.equal(error.code, code, error.message)
  assert.ok(error.message.includes(part), error.message)
  assert.ok(error.docs_url.endsWith('#' + code), error.docs_url)
  return error
}

async function bytesOf(content, take) {
  for await (const chunk of new ChannelReader(url, content).stream) take(chunk)
}

async function textOf(content) {
  const chunks = []
  await bytesOf(content, (chunk) => chunks.push(chunk))
  return Buffer.concat(chunks).toString()
}

/** Highest resident size of the daemon while `work` runs, above what it was before. */
async function growthDuring(work) {
  const rss = () => Number(/VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1])
  const before = rss()
  let peak = before
  const watch = setInterval(() => { peak = Math.max(peak, rss()) }, 20)
  try {
    await work()
  } finally {
    clearInterval(watch)
  }
  return peak - before
}

/** Pieces of `bytes` bytes that no compression or repetition makes smaller, the same each time. */
function* noise(bytes) {
  const cipher = createCipheriv('aes-128-ctr', Buffer.alloc(16, 7), Buffer.alloc(16))
  const zeros = Buffer.alloc(65536)
  for (let left = bytes; left > 0; left -= 65536) yield cipher.update(zeros.subarray(0, Math.min(65536, left)))
}

const cases = {
  async life() {
    const info = await call('adapter::info')
    assert.equal(info.adapter, 'sandbox-libkrun')
    assert.deepEqual(info.contract, { major: 1, minor: 1 })
    const made = await call('create', { image: 'python', name: 'mine', env: { GREETING: 'hé' } })
    assert.equal(made.image, 'python')
    const s = made.sandbox_id
    const [row] = (await call('list')).sandboxes
    assert.deepEqual([row.sandbox_id, row.name, row.stopped], [s, 'mine', false])

    const code = 'import os\nx = os.environ["GREETING"]\nprint(x, 6 * 7)\n'
    const written = await call('fs::write', { sandbox_id: s, path: '/root/w/a.py', content: code, parents: true })
    assert.deepEqual(written, { bytes_written: Buffer.byteLength(code), path: '/root/w/a.py' })
    const ran = await call('exec', { sandbox_id: s, argv: ['python3', '/root/w/a.py'] })
    assert.deepEqual([ran.stdout, ran.stderr, ran.exit_code, ran.success], ['hé 42\n', '', 0, true])
    const failed = await call('exec', { sandbox_id: s, cmd: 'sh -c "cat >&2; exit 3"', stdin: 'aGk=' })
    assert.deepEqual([failed.stdout, failed.stderr, failed.exit_code, failed.success], ['', 'hi', 3, false])

    const read = await call('fs::read', { sandbox_id: s, path: '/root/w/a.py' })
    assert.deepEqual([read.body, read.size, read.mode], [code, Buffer.byteLength(code), '0644'])
    assert.equal(await textOf(read.content), code)
    await call('fs::write', { sandbox_id: s, path: '/root/w/b.txt', content_b64: '' })
    const empty = await call('fs::read', { sandbox_id: s, path: '/root/w/b.txt' })
    assert.deepEqual([empty.body, empty.size, await textOf(empty.content)], ['', 0, ''])

    const grep = await call('fs::grep', { sandbox_id: s, path: '/root/w', pattern: '^\\w = os' })
    assert.deepEqual(grep, {
      matches: [{ content: 'x = os.environ["GREETING"]', line: 2, path: '/root/w/a.py' }], truncated: false })
    const sed = await call('fs::sed', { sandbox_id: s, path: '/root/w', pattern: '(\\d) \\* 7', replacement: '$1 * 8' })
    assert.equal(sed.total_replacements, 1)
    assert.deepEqual(sed.results.filter((r) => r.replacements),
      [{ path: '/root/w/a.py', replacements: 1, success: true }])
    const again = await call('exec', { sandbox_id: s, argv: ['python3', '/root/w/a.py'] })
    assert.equal(again.stdout, 'hé 48\n')

    assert.deepEqual(await call('stop', { sandbox_id: s, wait: true }), { sandbox_id: s, stopped: true })
    assert.deepEqual(await call('list'), { sandboxes: [] })
    await refused('S002', s, 'exec', { sandbox_id: s, cmd: 'true' })
  },

  async errors() {
    await refused('S001', 'image', 'create', {})
    await refused('S001', 'nonsense', 'exec', { sandbox_id: 'nonsense', cmd: 'true' })
    const nobody = randomUUID()
    await refused('S002', nobody, 'exec', { sandbox_id: nobody, cmd: 'true' })
    await refused('S100', 'perl', 'create', { image: 'perl' })

    const s = await create()
    await refused('S001', 'stdin', 'exec', { sandbox_id: s, cmd: 'cat', stdin: 'not base64!' })
    const write = { sandbox_id: s, path: '/root/no/such/f', content: 'x' }
    const missing = await refused('S211', 'parent not found', 'fs::write', write)
    assert.deepEqual([missing.retryable, missing.type, missing.fix], [false, 'filesystem', { parents: true }])
    assert.equal((await call('fs::write', { ...write, ...missing.fix })).bytes_written, 1)
    const absent = await refused('S211', '/root/none', 'fs::read', { sandbox_id: s, path: '/root/none' })
    assert.equal(absent.fix, null)
    await refused('S212', '/root', 'fs::read', { sandbox_id: s, path: '/root' })
    await refused('S217', 'not closed', 'fs::grep', { sandbox_id: s, path: '/root', pattern: '(' })

    const late = await refused('S200', '1500', 'exec', {
      sandbox_id: s, argv: ['sh', '-c', 'echo said before; sleep 600'], timeout_ms: 1500 })
    assert.equal(late.retryable, false)
    const channel = await createChannel(iii)
    channel.writer.stream.write(Buffer.from('and no more'))
    const stalled = await refused('S218', 'channel', 'fs::write', {
      sandbox_id: s, path: '/root/stalled', content: channel.readerRef })
    assert.equal(stalled.retryable, true)
    await refused('S211', '/root/stalled', 'fs::stat', { sandbox_id: s, path: '/root/stalled' })
    channel.writer.stream.destroy()
    assert.equal((await call('exec', { sandbox_id: s, cmd: 'echo', args: ['still', 'here'] })).stdout, 'still here\n')
  },

  async big() {
    const s = await create()
    const channel = await createChannel(iii)
    const sent = createHash('sha256')
    const up = await growthDuring(async () => {
      const answer = call('fs::write', { sandbox_id: s, path: '/root/big', content: channel.readerRef })
      const stream = channel.writer.stream
      for (const piece of noise(BIG)) {
        sent.update(piece)
        if (!stream.write(piece)) await new Promise((go) => stream.once('drain', go))
      }
      stream.end()
      assert.equal((await answer).bytes_written, BIG)
    })
    const digest = sent.digest('hex')
    const there = await call('exec', { sandbox_id: s, cmd: 'sha256sum /root/big' })
    assert.equal(there.stdout.split(' ')[0], digest, 'the file in the guest')

    const back = createHash('sha256')
    let got = 0
    const down = await growthDuring(async () => {
      const read = await call('fs::read', { sandbox_id: s, path: '/root/big' })
      assert.deepEqual([read.size, 'body' in read], [BIG, false])
      await bytesOf(read.content, (chunk) => {
        got += chunk.length
        back.update(chunk)
      })
    })
    assert.equal(got, BIG)
    assert.equal(back.digest('hex'), digest, 'what came back')
    assert.ok(up < Number(growth), `it grew by ${up} KiB during the upload`)
    assert.ok(down < Number(growth), `it grew by ${down} KiB during the download`)
  },
}

let status = 0
try {
  await cases[wanted]()
  console.log(`done ${wanted}`)
} catch (e) {
  console.error(e)
  status = 1
}
await iii.shutdown()
process.exit(status)
