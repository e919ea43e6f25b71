// The npm iii-sdk against echo_worker, as TAP. Arguments: folder with node_modules, URL, pid of the
// worker, KiB it may grow by during a stream.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { readFileSync } from 'node:fs'
import assert from 'node:assert/strict'
import path from 'node:path'

const [folder, url, pid, growth] = process.argv.slice(2)
const require = createRequire(path.join(folder, 'package.json'))
const load = (name) => import(pathToFileURL(require.resolve(name)).href)
const { registerWorker, TriggerAction, InvocationError } = await load('iii-sdk')
const { createChannel } = await load('iii-sdk/helpers')
const { ChannelReader } = await load('iii-sdk/channel')

const MB = 1000 * 1000
const period = Buffer.from(Array.from({ length: 65536 }, (_, p) => (p * 31 + (p >> 8) * 7) & 255))
const twice = Buffer.concat([period, period])
const pattern = (start, length) => twice.subarray(start % 65536, (start % 65536) + length)
const rss = () => Number(/VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1])

const iii = registerWorker(url, { workerName: 'node-client', otel: { enabled: false } })
const call = (function_id, payload = {}, timeoutMs = 60000) => iii.trigger({ function_id, payload, timeoutMs })

async function upload(bytes, chunk = 65536) {
  const channel = await createChannel(iii)
  const answer = call('t::upload', { content: channel.readerRef }, 240000)
  const stream = channel.writer.stream
  for (let at = 0; at < bytes; at += chunk) {
    const piece = pattern(at, Math.min(chunk, bytes - at))
    if (!stream.write(Buffer.from(piece))) await new Promise((go) => stream.once('drain', go))
  }
  stream.end()
  return answer
}

async function download(bytes) {
  const { content, size } = await call('t::download', { bytes })
  assert.equal(size, bytes)
  assert.equal(content.direction, 'read')
  const reader = new ChannelReader(url, content)
  let got = 0
  let peak = 0
  for await (const chunk of reader.stream) {
    for (let at = 0; at < chunk.length; at += 65536) {
      const piece = chunk.subarray(at, at + 65536)
      assert.ok(piece.equals(pattern(got, piece.length)), `wrong bytes behind ${got}`)
      got += piece.length
    }
    peak = Math.max(peak, rss())
  }
  assert.equal(got, bytes)
  return peak
}

const cases = {
  async answers_what_it_was_asked() {
    const data = { text: 'héllo \u{1f4a5} \u0000', big: Number.MAX_SAFE_INTEGER, deep: [[[{ a: null }]]] }
    const { _caller_worker_id, ...rest } = await call('t::echo', data)
    assert.deepEqual(rest, data)
    assert.match(_caller_worker_id, /^[0-9a-f-]{36}$/)
  },
  async an_error_has_its_code_and_message() {
    const e = await call('t::error').then(() => assert.fail(), (x) => x)
    assert.ok(e instanceof InvocationError)
    assert.equal(e.code, 'invocation_failed')
    assert.ok(e.message.startsWith(e.code + ': handler error: {'), e.message)
    assert.equal(JSON.parse(e.message.slice(e.message.indexOf('{'))).code, 'S211')
  },
  async an_unknown_function_is_not_found() {
    const e = await call('t::nope').then(() => assert.fail(), (x) => x)
    assert.equal(e.code, 'function_not_found')
  },
  async fifty_calls_run_beside_a_slow_one() {
    let slow = 'running'
    const waiting = call('t::slow', { ms: 1500 }).then((r) => { slow = r })
    const all = await Promise.all(Array.from({ length: 50 }, (_, i) => call('t::echo', { i })))
    assert.equal(slow, 'running')
    all.forEach((r, i) => assert.equal(r.i, i))
    await waiting
    assert.deepEqual(slow, { gone: false })
  },
  async void_calls_arrive() {
    const before = (await call('t::count')).notes
    for (let i = 0; i < 5; i++) iii.trigger({ function_id: 't::note', payload: {}, action: TriggerAction.Void() })
    let after = before
    for (let i = 0; i < 1000 && after < before + 5; i++) after = (await call('t::count')).notes
    assert.equal(after, before + 5)
  },
  async a_big_reply_in_the_worst_escaping_arrives() {
    const { blob } = await call('t::blob', { bytes: 2 << 20 })
    assert.equal(blob.length, 2 << 20)
    assert.ok(/^\u0001*$/.test(blob))
  },
  async bytes_that_are_no_text_arrive_as_replacements() {
    assert.deepEqual(await call('t::dirty'), { raw: '\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd', added: '\ufffd' })
  },
  async it_serves_calls_too() {
    iii.registerFunction('node::double', async ({ n }) => ({ n: n * 2 }))
    let answer
    for (let i = 0; i < 200 && !answer; i++) answer = await call('node::double', { n: 21 }).catch(() => undefined)
    assert.deepEqual(answer, { n: 42 })
  },
  async an_upload_of_200_mb_arrives_whole_in_bounded_memory() {
    let peak = 0
    const watch = setInterval(() => { peak = Math.max(peak, rss()) }, 20)
    const before = rss()
    const r = await upload(200 * MB)
    clearInterval(watch)
    assert.deepEqual({ bytes: r.bytes, right: r.right, end: r.end }, { bytes: 200 * MB, right: true, end: 'end' })
    assert.ok(peak - before < Number(growth), `it grew by ${peak - before} KiB`)
  },
  async a_download_of_200_mb_arrives_whole_in_bounded_memory() {
    const before = rss()
    const peak = await download(200 * MB)
    assert.ok(peak - before < Number(growth), `it grew by ${peak - before} KiB`)
  },
  async an_empty_download_ends_at_once() {
    await download(0)
  },
  async small_pieces_arrive_whole() {
    const r = await upload(100001, 17)
    assert.deepEqual({ bytes: r.bytes, right: r.right, end: r.end }, { bytes: 100001, right: true, end: 'end' })
  },
  async an_upload_that_never_starts_stalls() {
    const channel = await createChannel(iii)
    const r = await call('t::upload', { content: channel.readerRef, idle_ms: 300 })
    assert.equal(r.end, 'stalled')
  },
  async a_reference_nobody_made_is_refused() {
    const content = { channel_id: '00000000-0000-4000-8000-000000000000', access_key: 'x', direction: 'read' }
    // The SDK turns references in arguments into readers only on the callee's side.
    assert.equal((await call('t::upload', { content })).end, 'refused')
  },
}

const names = Object.keys(cases)
console.log(`1..${names.length}`)
let failed = 0
for (const [i, name] of names.entries()) {
  try {
    await cases[name]()
    console.log(`ok ${i + 1} - ${name}`)
  } catch (e) {
    failed++
    console.log(`not ok ${i + 1} - ${name}`)
    console.error(e)
  }
}
await iii.shutdown()
process.exit(failed ? 1 : 0)
