// Conformance, Node: carries out the steps of a script, prints what they give. ../conformance/README.md has the verbs.
'use strict';
const fs = require('fs');
const orrery = require('./index.js');

const things = {}, calls = {}; // handles by name; how often callbacks were called
let pending = {}; // options of the next call, by struct
class Raised extends Error {}

const lines = [];
const print = (...words) => lines.push(words.join(' '));
const yes = (value) => (value ? 'yes' : 'no');
const unescape = (text) => text.replaceAll('\\n', '\n');
const camel = (name) => name.replace(/_([a-z])/g, (_, c) => c.toUpperCase());
const largest = (row) => row.reduce((best, x, i) => (x > row[best] ? i : best), 0);
const quote = (data) => `"${Array.from(Buffer.from(data), (b) => (b >= 32 && b < 127 && b !== 34 && b !== 92
  ? String.fromCharCode(b) : '\\x' + b.toString(16).padStart(2, '0'))).join('')}"`;
const field = (v) => (typeof v === 'string' ? quote(v) : Buffer.isBuffer(v) ? v.toString('hex') : String(v));

function take(struct) {
  const options = pending[struct] || {};
  delete pending[struct];
  return options;
}

function set(name, words) {
  const [struct, snake] = name.split('.'), key = camel(snake), text = unescape(words.join(' '));
  const given = (pending[struct] = pending[struct] || {});
  if (key === 'stop') (given.stop = given.stop || []).push(text);
  else if (key === 'policyOptions' || key === 'logitBias') (given[key] = given[key] || {})[words[0]] = words[1];
  else given[key] = key === 'draftModel' || key === 'folder' ? things[text] : text;
}

function callback(name, action, numbers) {
  const [struct, key] = name.split('.');
  calls[key] = 0;
  (pending[struct] = pending[struct] || {})[camel(key)] = (logits) => {
    calls[key] += 1;
    if (action === 'raise') throw new Raised();
    if (action === 'force') logits[numbers[(calls[key] - 1) % numbers.length]] = 1e9;
    return action === 'stop' ? 1 : 0;
  };
}

function show(e) {
  if (e.type === 'progress') print('progress', e.done, e.total);
  if (e.type === 'text') print('text', quote(e.text));
  const near = e.top && e.top.length ? ['near', Math.floor(0.5 - e.logprob), ...e.top.map((t) => t.token)] : [];
  if (e.type === 'token') print('token', e.token, quote(e.bytes), ...near);
  if (e.type === 'reasoning') print('reasoning', quote(e.text));
  if (e.type === 'call') print('call', e.call, e.name);
  if (e.type === 'arguments') print('arguments', e.call, e.name, quote(e.text));
  if (e.type === 'callEnd') print('call_end', e.call, e.name, e.id);
  if (e.type === 'done') print('done', e.finishReason, e.stopIndex, e.promptTokens, e.reusedTokens, e.generatedTokens, ...(e.complete ? ['complete'] : []));
  return e.type === 'done';
}

async function drain(generation, limit) {
  while (limit-- && !show(await generation.next()));
}

async function leaveEarly(session, limit) {
  for await (const e of session.generate(take('generate'))) {
    show(e);
    if (--limit === 0) break;
  }
}

async function answer(session) {
  let text = '', last;
  for await (last of session.generate(take('generate'))) text += last.type === 'text' ? last.text : '';
  print(quote(text), last.finishReason);
}

async function functions(session, mostTurns, name, parameters) {
  const run = () => { print('function', name); return `seen by ${name}`; };
  print(quote(await session.runTools([{ name, parameters, run }], { mostTurns, template: take('template'), ...take('generate') })));
}

const fields = (t) => (t instanceof orrery.Session ? t.stats() : t.info ? t.info() : t);

function compare(values, ...sides) {
  const [a, b] = sides.map((x) => (/^\d/.test(x) ? Number(x) : values[camel(x)]));
  print(a < b ? '<' : a > b ? '>' : '=');
}

async function evaluate(session, rows, tokens) {
  const logits = await session.evaluate(tokens, { logits: rows }), n = session.modelInfo.nVocab;
  if (rows) print('largest', ...tokens.map((_, i) => largest(logits.subarray(i * n, (i + 1) * n))));
}

async function embed(model, texts) {
  const { vectors, nTokens } = await model.embed(texts, take('embed'));
  const products = vectors.slice(1).map((v) => v.reduce((sum, x, i) => sum + x * vectors[0][i], 0));
  print(vectors.length, vectors[0].length, ...nTokens, 'nearest', 1 + largest(products));
}

async function rank(model, [query, ...texts]) {
  print('best', largest(await model.rank(query, texts, take('embed'))));
}

async function regions(plan, path) {
  const all = await orrery.planRegions(path, { runtime: take('runtime'), model: take('model'), session: take('session') });
  print(...all.map((r) => quote(r.name)), yes(all.reduce((sum, r) => sum + r.deviceBytes, 0) === plan.deviceBytes));
}

async function withFd(path, f) {
  const fd = fs.openSync(path);
  try {
    return await f(fd);
  } finally {
    fs.closeSync(fd);
  }
}

const planOptions = () => ({ runtime: take('runtime'), model: take('model'), session: take('session') });

async function step(verb, w, rest, t) {
  const make = {
    runtime: () => new orrery.Runtime(take('runtime')), vocab: () => orrery.Vocab.open(rest(1)),
    vocab_fd: () => withFd(rest(1), (fd) => orrery.Vocab.open({ fd })), vocab_memory: () => orrery.Vocab.open({ memory: fs.readFileSync(rest(1)) }),
    plan_fd: () => withFd(rest(1), (fd) => orrery.plan({ fd }, planOptions())),
    plan_memory: () => orrery.plan({ memory: fs.readFileSync(rest(1)) }, planOptions()),
    model_fd: () => withFd(rest(2), (fd) => t[w[1]].open({ fd }, take('model'))),
    model_memory: () => t[w[1]].open({ memory: fs.readFileSync(rest(2)) }, take('model')),
    model_part: () => withFd(rest(4), (fd) => t[w[1]].open({ fd, offset: Number(w[2]), bytes: Number(w[3]) }, take('model'))),
    model: () => t[w[1]].open(rest(2), take('model')), vocab_of: () => t[w[1]].vocab(),
    adapter: () => t[w[1]].adapter(rest(2)), folder: () => new orrery.Folder(rest(2), Number(w[1])),
    session: () => t[w[1]].session(take('session')), fork: () => t[w[1]].fork(),
    plan: () => orrery.plan(rest(1), planOptions()),
    calibrate: () => t[w[1]].calibrate(rest(3).split('|').map((x) => t[w[2]].tokenize(x)), take('calibrate')),
    matcher: () => t[w[1]].matcher(take('generate')),
    generate: () => t[w[1]].generate(take('generate')), save_buffer: () => t[w[1]].saveBuffer(),
    continue: () => t[w[1]].generateTokens(w.slice(2), take('generate')),
    damage: () => Buffer.from(t[w[0]].map((b, i) => (i === t[w[0]].length - 1 ? b ^ 1 : b))),
  };
  const self = t[w[0]];
  const act = {
    abi: () => print(orrery.abiVersion(), orrery.version(), yes(orrery.buildInfo())), set: () => set(w[0], w.slice(1)),
    name: () => print(orrery.constantName(w[0], Number(w[1]))), threads: () => self.setThreads(Number(w[1]), Number(w[2])),
    regions: () => regions(self, rest(1)), embed: () => embed(self, rest(1).split('|')), rank: () => rank(self, rest(1).split('|')),
    devices: () => print(yes(orrery.devices().every((d) => d.name || d.refused))), cancel_session: () => self.cancel(),
    status: () => print(orrery.statusName(Number(w[0]))), callback: () => callback(w[0], w[1], w.slice(2)),
    calls: () => print(yes(calls[w[0]])), free: () => self.close(), compare: () => compare(fields(self), w[1], w[2]),
    allowed: () => print(Array.from(self.mask(), (word) => word.toString(2).replace(/0/g, '').length).reduce((a, b) => a + b, 0)),
    accept: () => print(self.accept(w.slice(1))), rewind_matcher: () => self.rewind(Number(w[1])),
    forced: () => print(self.forced().length, ...self.forced()), describe: () => print(yes(JSON.stringify(self.describe()).includes(rest(1)))),
    match: () => print(self.match(rest(1)).matchedBytes, yes(self.match(rest(1)).complete)),
    info: () => print(...w.slice(1).map((n) => field(fields(self)[camel(n)]))),
    tokenize: () => print(...self.tokenize(rest(2), Number(w[1]))), flags: () => print(self.tokenFlags(Number(w[1]))),
    detokenize: () => print(quote(self.detokenize(w.slice(2), Number(w[1])))),
    format: () => print(yes(JSON.stringify(self.chatFormat(take('template'))).includes(rest(1)))),
    render: () => print(quote(self.renderChat(rest(1), take('template')))), say: () => self.addMessage(w[1], rest(2)),
    say_json: () => self.addMessageJson(rest(1)), rewind_messages: () => self.rewindMessages(Number(w[1])),
    messages: () => print(...Array.from({ length: self.nMessages() }, (_, i) => quote(self.message(i)))),
    message: () => print(quote(self.message(Number(w[1])))), template: () => self.setTemplate(take('template')),
    tokens: () => print(self.nTokens(), ...self.tokens().subarray(0, 8)), rewind: () => self.rewind(Number(w[1])),
    roles: () => print(...w.slice(1).map((n) => field(self.headRoles()[camel(n)]))),
    residency: () => print(self.residency().length, Math.min(...self.residency()), Math.max(...self.residency())),
    adapters: () => self.setAdapters(w.slice(1).flatMap((a, i, all) => (i % 2 ? [] : [{ adapter: t[a], scale: Number(all[i + 1]) }]))),
    folder_save: () => self.save(t[w[1]], rest(2) === '-' ? null : rest(2)), folder_load: () => self.load(t[w[1]], rest(2)),
    folder_remove: () => self.remove(rest(1)),
    folder_list: () => print(self.list().length, yes(JSON.stringify(self.list()).includes(rest(1)))),
    save: () => self.save(rest(1)), load: () => self.load(rest(1)), load_buffer: () => self.loadBuffer(t[w[1]]),
    evaluate: () => evaluate(self, w[1] === '1', w.slice(2)),
    numbers: () => print(self.logits().length, largest(self.logits()), self.embedding().length),
    next: () => drain(self, Number(w[1])), drain: () => drain(self, -1), answer: () => answer(self),
    functions: () => functions(self, Number(w[1]), w[2], rest(3)),
    run: () => { let n = 0; return self.run((e) => { show(e); return ++n === Number(w[1]) ? 1 : 0; }); },
    break: () => leaveEarly(self, Number(w[1])), cancel: () => self.cancel(),
    experts: () => print(...w.slice(1).map((n) => field(self.experts()[camel(n)]))),
    streaming: () => print(...w.slice(1).map((n) => field(self.streaming()[camel(n)]))),
    layer: () => print(...w.slice(2).map((n) => field(self.layer(Number(w[1]))[camel(n)]))),
    kv_bytes: () => print(orrery.kvTypeBytes(...w.map(Number))),
    inspect: async () => print(yes((await orrery.inspect(w[0])).includes(rest(1)))),
    policies: () => print(yes(orrery.policies().includes(rest(0)))), steps: () => print(yes(self.steps().includes(rest(1)))),
    profile: () => print(yes(orrery.headProfileImport(self.profile()).includes(rest(1)))),
    gates: () => print(yes(orrery.headProfileImportGates(rest(2), Number(w[0])).includes(w[1]))),
  };
  if (make[verb]) t[w[0]] = await make[verb]();
  else await act[verb]();
}

(async () => {
  for (const line of fs.readFileSync(process.argv[2], 'utf8').split('\n')) {
    if (!line || line[0] === '#') continue;
    print('>', line);
    const [verb, ...words] = line.split(' ');
    try {
      await step(verb, words, (i) => unescape(words.slice(i).join(' ')), things);
    } catch (e) {
      if (e instanceof Raised) print('raised');
      else if (!(e instanceof orrery.OrreryError)) throw e;
      else print('error', e.code.slice(7), e.line, e.column, e.offset, e.nativeCode, yes(e.bytesRequested), yes(e.message), e.option || '-');
    }
  }
  process.stdout.write(lines.join('\n') + '\n');
})();
