// Orrery for Node: language models with long contexts inside your program. index.d.ts has the types, README.md the shortest
// chat. What computes or reads files returns a promise, and works on a thread of libuv's pool; the event loop goes on.
'use strict';

const abi = require('./abi.js');
const { sync, async, setErrorClass } = require(process.env.ORRERY_ADDON || './build/orrery.node');

// A call of the library failed: `code` is the status's name, the other fields are those of orrery_error.
class OrreryError extends Error {
  constructor(fields) {
    super(fields.message);
    this.name = 'OrreryError';
    this.code = sync.orrery_status_name(fields.status);
    const { message, ...detail } = fields;
    Object.assign(this, detail);
  }
}
setErrorClass(OrreryError);
if (sync.orrery_abi_version() !== abi.ABI_VERSION) {
  throw new Error(`the library has ABI ${sync.orrery_abi_version()}, this package wants ${abi.ABI_VERSION}`);
}

// A handle of the library. close() frees it once, behind the calls that use it; so does the collector.
class Handle {
  constructor(handle) {
    Object.defineProperty(this, 'handle', { value: handle, enumerable: false });
  }
  close() {
    sync[this.constructor.free](this.handle);
  }
}
if (Symbol.dispose) Handle.prototype[Symbol.dispose] = Handle.prototype.close;

// Where a GGUF file lies, as the header has it: a path; {fd, offset, bytes} of an open file, bytes 0 or none: up to its end; {memory}.
function sourceOf(given) {
  if (given === undefined || given === null) throw new TypeError('a source is missing: a path, {fd} or {memory}');
  if (given.memory !== undefined) return { kind: abi.SourceKind.MEMORY, memory: given.memory };
  if (given.fd !== undefined) return { kind: abi.SourceKind.FD, fd: given.fd, fdOffset: given.offset, fdBytes: given.bytes };
  return { path: given };
}

class Runtime extends Handle {
  static free = 'orrery_runtime_free';
  constructor(options = {}) {
    super(sync.orrery_runtime_create(options));
  }
  info() {
    return sync.orrery_runtime_get_info(this.handle);
  }
  // `source`: a path, {fd, offset, bytes} or {memory}, whose bytes are copied: a Buffer may go, or change, behind the call.
  async open(source, options = {}) {
    const file = sourceOf(source);
    const o = file.kind === abi.SourceKind.MEMORY ? { ...options, load: abi.LoadMode.READ } : options;
    return new Model(await async.orrery_model_open(this.handle, file, o));
  }
  // Between two steps.
  setThreads(nThreads, priority = abi.Priority.NORMAL) {
    return async.orrery_runtime_set_threads(this.handle, nThreads, priority);
  }
}

class Vocab extends Handle {
  static free = 'orrery_vocab_free';
  static async open(source) {
    return new Vocab(await async.orrery_vocab_open(sourceOf(source)));
  }
  info() {
    return sync.orrery_vocab_get_info(this.handle);
  }
  tokenize(text, flags = 0) {
    return sync.orrery_tokenize(this.handle, text, flags);
  }
  detokenize(tokens, flags = 0) {
    return sync.orrery_detokenize(this.handle, Int32Array.from(tokens), flags);
  }
  tokenFlags(token) {
    return sync.orrery_token_flags(this.handle, token);
  }
  // A grammar over these tokens: `schema`, or the grammar options of generate().
  matcher({ schema, ...options } = {}) {
    return new Matcher(sync.orrery_matcher_create(this.handle, formed(options, schema)));
  }
  renderChat(messages, options = {}) {
    return sync.orrery_render_chat(this.handle, json(messages), options).toString();
  }
  // How the template has reasoning and calls of tools written; `calls` is null where `why_none` says why.
  chatFormat(options = {}) {
    return JSON.parse(sync.orrery_chat_format(this.handle, options).toString());
  }
}

class Model extends Handle {
  static free = 'orrery_model_free';
  info() {
    return sync.orrery_model_get_info(this.handle);
  }
  // Layer i, from 0 to nLayers - 1: layers may differ in their heads, windows, states and experts.
  layer(i) {
    return sync.orrery_model_layer_info(this.handle, i);
  }
  // Where a mixture's experts lie, and what the link brought.
  experts() {
    return sync.orrery_model_experts(this.handle);
  }
  // The layers that lie in host memory, and what the link brought of them.
  streaming() {
    return sync.orrery_model_streaming(this.handle);
  }
  vocab() {
    return new Vocab(sync.orrery_model_vocab(this.handle));
  }
  // A LoRA adapter of the model; its source may go afterwards.
  async adapter(source) {
    return new Adapter(await async.orrery_adapter_open(this.handle, sourceOf(source)));
  }
  // Beside the header's options: `adapters`, as Session.setAdapters() takes them.
  async session({ adapters, ...options } = {}) {
    const session = new Session(await async.orrery_session_open(this.handle, options), this.info());
    if (adapters) session.setAdapters(adapters);
    return session;
  }
  // Vectors of texts: {vectors: Float32Array[], nTokens: number[]}; without pooling a vector of each token.
  async embed(texts, options = {}) {
    const nTokens = new Uint32Array(texts.length), size = options.nDimensions || this.info().nEmbd;
    const all = await async.orrery_embed(this.handle, texts, options, nTokens);
    const vectors = Array.from({ length: all.length / size }, (_, i) => all.subarray(i * size, (i + 1) * size));
    return { vectors, nTokens: Array.from(nTokens) };
  }
  // How well each text answers the query: more is better.
  async rank(query, texts, options = {}) {
    const scores = new Float32Array(texts.length);
    await async.orrery_rank(this.handle, query, texts, options, scores, null);
    return scores;
  }
  // `texts`: arrays of tokens.
  async calibrate(texts, options = {}) {
    const lengths = BigUint64Array.from(texts, (text) => BigInt(text.length));
    const tokens = Int32Array.from(texts.flatMap((text) => Array.from(text)));
    return new Calibration(await async.orrery_calibrate(this.handle, tokens, lengths, options));
  }
}

// Sessions keep the adapters that they have.
class Adapter extends Handle {
  static free = 'orrery_adapter_free';
}

// Saved sessions with a budget in bytes; 0: no limit. Sessions with the option `folder` find their prompts' beginnings there.
class Folder extends Handle {
  static free = 'orrery_folder_free';
  constructor(path, maxBytes = 0) {
    super(sync.orrery_folder_open(path, maxBytes));
  }
  // Without a name, the entry takes the place of shorter ones of the same prompt.
  async save(session, name = null) {
    return async.orrery_folder_save(this.handle, sessionOf(session), name);
  }
  async load(session, name) {
    return async.orrery_folder_load(this.handle, sessionOf(session), name);
  }
  remove(name) {
    sync.orrery_folder_remove(this.handle, name);
  }
  // The last used first.
  list() {
    return JSON.parse(sync.orrery_folder_list(this.handle).toString());
  }
}

class Calibration extends Handle {
  static free = 'orrery_calibration_free';
  profile() {
    return sync.orrery_calibration_profile(this.handle).toString();
  }
  steps() {
    return sync.orrery_calibration_steps(this.handle).toString();
  }
}

class Session extends Handle {
  static free = 'orrery_session_free';
  constructor(handle, modelInfo) {
    super(handle);
    Object.defineProperty(this, 'modelInfo', { value: modelInfo, enumerable: false });
  }
  addMessage(role, content) {
    sync.orrery_session_add_message(this.handle, role, content);
  }
  addMessageJson(message) {
    sync.orrery_session_add_message_json(this.handle, json(message));
  }
  nMessages() {
    return sync.orrery_session_n_messages(this.handle);
  }
  message(i) {
    return sync.orrery_session_message(this.handle, i).toString();
  }
  setTemplate(options = {}) {
    sync.orrery_session_set_template(this.handle, options);
  }
  rewindMessages(n) {
    sync.orrery_session_rewind_messages(this.handle, n);
  }
  nTokens() {
    return sync.orrery_session_n_tokens(this.handle);
  }
  tokens() {
    return sync.orrery_session_tokens(this.handle);
  }
  rewind(nTokens) {
    sync.orrery_session_rewind(this.handle, nTokens);
  }
  // Replaces the adapters: [{adapter, scale}], scale 1 where it is left out. Where the list changes, the session drops its tokens.
  setAdapters(adapters) {
    sync.orrery_session_set_adapters(this.handle, adapters.map(({ adapter, scale = 1 }) => [adapter.handle, scale]));
  }
  // What the session does now, a generation or a long call; what begins later is not cancelled.
  cancel() {
    sync.orrery_session_cancel(this.handle);
  }
  async fork() {
    return new Session(await async.orrery_session_fork(this.handle), this.modelInfo);
  }
  save(path) {
    return async.orrery_session_save(this.handle, path);
  }
  load(path) {
    return async.orrery_session_load(this.handle, path);
  }
  saveBuffer() {
    return async.orrery_session_save_buffer(this.handle);
  }
  loadBuffer(bytes) {
    return async.orrery_session_load_buffer(this.handle, bytes);
  }
  // With {logits: true} resolves to a Float32Array of (tokens, vocabulary), else to undefined.
  async evaluate(tokens, { logits = false } = {}) {
    const out = logits ? new Float32Array(tokens.length * this.modelInfo.nVocab) : null;
    await async.orrery_session_evaluate(this.handle, Int32Array.from(tokens), out);
    return out || undefined;
  }
  logits() {
    const out = new Float32Array(this.modelInfo.nVocab);
    sync.orrery_session_logits(this.handle, out);
    return out;
  }
  embedding() {
    const out = new Float32Array(this.modelInfo.nEmbd);
    sync.orrery_session_embedding(this.handle, out);
    return out;
  }
  stats() {
    return sync.orrery_session_stats(this.handle);
  }
  // The number of KV heads in each of HeteroCache's roles.
  headRoles() {
    return sync.orrery_session_head_roles(this.handle);
  }
  // (nLayers, nKvHeads): tokens that each KV head holds on the device.
  residency() {
    return sync.orrery_session_residency(this.handle);
  }
  // Adds a user's message, and resolves to the whole answer's text. An answer that fails, or that the signal aborts, leaves the message in
  // the conversation; an abort rejects with the signal's reason.
  async ask(question, options = {}) {
    this.addMessage('user', question);
    let answer = '';
    for await (const piece of this.generate(options).text()) answer += piece;
    return answer;
  }
  // Answers the conversation with functions that the model may call: [{name, description, parameters, run}], where `parameters` is a JSON schema
  // (none: no parameters), and run(arguments) returns or resolves to the result. Calls are run in turn, and their results are messages, until an
  // answer calls nothing: resolves to that answer's text. What run throws is the call's result, as text. `tools` chooses as in generate()
  // (default AUTO); after the first answer it is AUTO, in the last turn NONE. This sets the session's template to the file's with these
  // tools, and with `template` (options of setTemplate()).
  async runTools(functions, { mostTurns = 8, template = {}, ...options } = {}) {
    if (!Number.isInteger(mostTurns) || mostTurns < 1) throw new RangeError(`mostTurns is ${mostTurns}: at least one answer is needed`);
    const byName = new Map(functions.map((f) => [f.name, f]));
    const described = functions.map(({ name, description, parameters = NO_PARAMETERS }) =>
      ({ type: 'function', function: { name, description, parameters: typeof parameters === 'string' ? JSON.parse(parameters) : parameters } }));
    this.setTemplate({ ...template, toolsJson: JSON.stringify(described) });
    let answer = { ...options, tools: options.tools || abi.Tools.AUTO };
    for (let turn = 1; ; ++turn) {
      if (turn > 1) answer = { ...answer, tools: abi.Tools.AUTO, toolName: undefined };
      if (turn === mostTurns) answer = { ...answer, tools: abi.Tools.NONE, toolName: undefined };
      let text = '', cancelled = false;
      const calls = [];
      for await (const e of this.generate(answer)) {
        if (e.type === 'text') text += e.text;
        if (e.type === 'callEnd') calls.push(e);
        if (e.type === 'done') cancelled = e.finishReason === abi.FinishReason.CANCELLED;
      }
      if (options.signal) options.signal.throwIfAborted();
      if (calls.length === 0 || cancelled) return text;
      for (const call of calls) {
        const content = await resultOf(byName.get(call.name), call.arguments);
        this.addMessageJson({ role: 'tool', tool_call_id: call.id, name: call.name, content });
      }
    }
  }
  // Beside the header's options: `signal`, an AbortSignal that cancels the answer; `schema`, a JSON schema that the answer fits.
  generate({ signal, schema, ...options } = {}) {
    return new Generation(sync.orrery_generate(this.handle, formed(options, schema)), signal);
  }
  generateTokens(tokens, { signal, schema, ...options } = {}) {
    return new Generation(sync.orrery_generate_tokens(this.handle, Int32Array.from(tokens), formed(options, schema)), signal);
  }
}

// A grammar and a place in it, for samplers of your own and for checks.
class Matcher extends Handle {
  static free = 'orrery_matcher_free';
  // Bit i of word w: token 32 w + i may come next.
  mask() {
    return sync.orrery_matcher_mask(this.handle);
  }
  // Goes on with the first tokens that are allowed. Returns how many.
  accept(tokens) {
    const n = new BigUint64Array(1);
    sync.orrery_matcher_accept(this.handle, Int32Array.from(tokens), n);
    return Number(n[0]);
  }
  rewind(nTokens) {
    sync.orrery_matcher_rewind(this.handle, nTokens);
  }
  // Tokens of the text that follows in any case.
  forced() {
    return sync.orrery_matcher_forced(this.handle);
  }
  // How many bytes of a text can begin an answer, and whether the whole text is one.
  match(text) {
    const matched = new BigUint64Array(1), complete = new Uint32Array(1);
    sync.orrery_matcher_match(this.handle, Buffer.from(text), matched, complete);
    return { matchedBytes: Number(matched[0]), complete: complete[0] !== 0 };
  }
  describe() {
    return JSON.parse(sync.orrery_matcher_describe(this.handle).toString());
  }
}

// One answer under way. `for await` yields its events; leaving the loop, however, frees it.
class Generation extends Handle {
  static free = 'orrery_generation_free';
  #signal;
  #onAbort;
  constructor(handle, signal) {
    super(handle);
    if (!signal) return;
    this.#signal = signal;
    this.#onAbort = () => this.cancel();
    signal.addEventListener('abort', this.#onAbort, { once: true });
    if (signal.aborted) this.cancel();
  }
  async next() {
    return event(await async.orrery_next(this.handle));
  }
  // Hands every event to onEvent, which cancels by returning something other than 0 or nothing.
  run(onEvent) {
    return async.orrery_run(this.handle, (raw) => onEvent(event(raw)));
  }
  // At any time, also when the answer has ended or is closed: the next event is then done.
  cancel() {
    sync.orrery_cancel(this.handle);
  }
  // A call under way ends first: within a layer.
  close() {
    if (this.#signal) this.#signal.removeEventListener('abort', this.#onAbort);
    this.cancel();
    super.close();
  }
  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        const e = await this.next();
        yield e;
        if (e.type === 'done') return;
      }
    } finally {
      this.close();
    }
  }
  // Runs to the end of an answer under a JSON schema; resolves to its value. An answer that was cut before it was whole rejects.
  async value() {
    let text = '', complete = false;
    for await (const e of this) {
      if (e.type === 'text') text += e.text;
      if (e.type === 'done') complete = e.complete;
    }
    if (!complete) throw Object.assign(new Error('the answer was cut before it was whole'), { text });
    return JSON.parse(text);
  }
  // The answer's text alone, piece by piece; rejects with the signal's reason where that has stopped the answer.
  async *text() {
    for await (const e of this) {
      if (e.type === 'text') yield e.text;
      if (e.type === 'done' && e.finishReason === abi.FinishReason.CANCELLED && this.#signal) this.#signal.throwIfAborted();
    }
  }
}

function event(raw) {
  const { EventType: T } = abi;
  if (raw.type === T.PROGRESS) return { type: 'progress', done: raw.done, total: raw.total };
  if (raw.type === T.TEXT) return { type: 'text', text: raw.text.toString() };
  if (raw.type === T.REASONING) return { type: 'reasoning', text: raw.text.toString() };
  const { call, name } = raw;
  if (raw.type === T.CALL) return { type: 'call', call, name };
  if (raw.type === T.ARGUMENTS) return { type: 'arguments', call, name, text: raw.text.toString() };
  if (raw.type === T.CALL_END) return { type: 'callEnd', call, name, id: raw.callId, arguments: JSON.parse(raw.text.toString()) };
  if (raw.type > T.CALL_END) return { type: 'other', number: raw.type };
  const { token, text, logprob, top } = raw;
  if (raw.type === T.TOKEN) return { type: 'token', token, bytes: text, logprob, top };
  const { finishReason, stopIndex, promptTokens, reusedTokens, generatedTokens, firstTokenUs, prefillUs, decodeUs } = raw;
  const times = { firstTokenUs, prefillUs, decodeUs };
  return { type: 'done', finishReason, stopIndex, promptTokens, reusedTokens, generatedTokens, ...times, complete: raw.complete !== 0 };
}

const NO_PARAMETERS = { type: 'object', properties: {} };

// A function's result as a message's text: text as it is, other values as JSON.
async function resultOf(func, given) {
  try {
    const value = await func.run(given);
    return typeof value === 'string' ? value : JSON.stringify(value === undefined ? null : value);
  } catch (e) {
    return String(e); // the model is told
  }
}

function sessionOf(session) {
  if (session instanceof Session) return session.handle;
  throw new TypeError('not a Session');
}

const formed = (options, schema) =>
  schema === undefined ? options : { ...options, grammar: json(schema), grammarKind: abi.Grammar.JSON_SCHEMA };
const json = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

// Written so that `import {Runtime, KvType} from 'orrery'` finds every name: constants of an imported module, then plain names.
module.exports = { ...require('./abi.js'), OrreryError, Runtime, Vocab, Model, Folder, Calibration, Session, Matcher, Generation };
module.exports.abiVersion = () => sync.orrery_abi_version();
module.exports.version = () => sync.orrery_version();
module.exports.buildInfo = () => sync.orrery_build_info();
module.exports.statusName = (status) => sync.orrery_status_name(status);
module.exports.constantName = (kind, value) => sync[abi.NAMES[kind]](value);
module.exports.devices = () => Array.from({ length: sync.orrery_devices() }, (_, i) => sync.orrery_device_get_info(i));
module.exports.inspect = async (source) => (await async.orrery_inspect(sourceOf(source))).toString();
module.exports.kvTypeBytes = (kvType, keyDim, valueDim) => sync.orrery_kv_type_bytes(kvType, keyDim, valueDim);
module.exports.policies = () => sync.orrery_policies().toString();
module.exports.plan = async (source, { runtime, model, session } = {}) =>
  async.orrery_plan(sourceOf(source), runtime, model, session);
module.exports.planRegions = async (source, { runtime, model, session } = {}) =>
  async.orrery_plan_regions(sourceOf(source), runtime, model, session);
module.exports.headProfileImport = (profile) => sync.orrery_head_profile_import(json(profile)).toString();
module.exports.headProfileImportGates = (gates, sparsity) => sync.orrery_head_profile_import_gates(gates, sparsity).toString();
