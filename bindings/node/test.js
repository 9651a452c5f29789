// What Node's users expect beyond the conformance script: node --expose-gc test.js MODEL.gguf
'use strict';
const assert = require('assert');
const orrery = require('./index.js');

const TEXT = 'Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. ';
const CALLING = "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}" +
  "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}" +
  "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";
const QUESTION = TEXT + '\n\nWhere does Bruno live?';

async function main(path) {
  const runtime = new orrery.Runtime({ nThreads: 1, backend: 'cpu', deviceBudgetBytes: 256 << 20, reservoirBytes: 1 << 20 });
  const model = await runtime.open(path);
  const session = await model.session({ nContext: 8192 });
  const ask = (question, options) => {
    session.rewindMessages(0);
    session.addMessage('user', question);
    return session.generate(options);
  };

  const tests = {
    async 'the event loop goes on during a prefill'() {
      let ticks = 0, during = 0;
      const timer = setInterval(() => { ticks += 1; }, 1);
      for await (const e of ask(TEXT.repeat(80) + '\n\nWhere does Bruno live?')) if (e.type === 'progress') during = ticks;
      clearInterval(timer);
      assert(during > 5, `${during} ticks`);
    },
    async 'answers have their form'() {
      const schema = { type: 'object', properties: { town: { enum: ['Salem'] }, n: { const: 7 } }, required: ['town', 'n'], additionalProperties: false };
      assert.deepStrictEqual(await ask(QUESTION, { schema }).value(), { town: 'Salem', n: 7 });
      await assert.rejects(() => ask(QUESTION, { schema, maxTokens: 2 }).value(), /cut/);
      const matcher = model.vocab().matcher({ schema });
      assert.deepStrictEqual(matcher.match('{"town"}'), { matchedBytes: 7, complete: false });
      assert(matcher.accept(matcher.forced()) >= 1);
      assert(matcher.describe().states > 10);
    },
    async 'break frees at once'() {
      for await (const e of ask(QUESTION)) if (e) break;
      session.addMessage('user', 'not busy');
    },
    async 'an exception in the loop frees at once'() {
      await assert.rejects(async () => { for await (const e of ask(QUESTION)) throw new RangeError(e.type); }, RangeError);
      session.addMessage('user', 'not busy');
    },
    async 'an abort stops a prefill'() {
      const stop = new AbortController();
      setTimeout(() => stop.abort(), 30);
      let last;
      for await (last of ask(TEXT.repeat(150), { signal: stop.signal })) continue;
      assert.strictEqual(last.finishReason, orrery.FinishReason.CANCELLED);
      for await (last of ask(QUESTION, { signal: AbortSignal.abort() })) continue;
      assert.strictEqual(last.finishReason, orrery.FinishReason.CANCELLED);
    },
    async 'closing while next() is under way frees behind it'() {
      const generation = ask(TEXT.repeat(150)), pending = generation.next();
      generation.close();
      generation.close();
      await pending;
      session.addMessage('user', 'not busy');
      generation.cancel();
      await assert.rejects(async () => generation.next(), /closed/);
    },
    async 'errors have every field'() {
      await assert.rejects(model.session({ nContext: 16384, kvType: 1, policy: 'full' }).then((s) => s.fork()).then(() =>
        new orrery.Runtime({ backend: 'cpu', deviceBudgetBytes: 1 << 20 }).open(path).then((m) => m.session({ policy: 'full', nContext: 16384 }))),
      (e) => e instanceof orrery.OrreryError && e.code === 'ORRERY_OUT_OF_DEVICE_MEMORY' && e.bytesRequested > e.bytesAvailable);
      await assert.rejects(runtime.open('/nowhere'), { code: 'ORRERY_IO', nativeCode: 2, option: '' });
      const drafts = { nContext: 512, speculate: orrery.Speculate.DRAFT };
      await assert.rejects(model.session({ ...drafts, draftModel: 'model.gguf' }), /not a Model/);
      await assert.rejects(model.session({ ...drafts, draftModel: runtime }), /not a Model/);
      await assert.rejects(model.session({ ...drafts, draftModel: model }), { option: 'draft_model' });
      await assert.rejects(model.session({ speculateTokens: 9 }), { code: 'ORRERY_INVALID_ARGUMENT', option: 'speculate_tokens' });
      assert.throws(() => session.setTemplate({ templateSource: '\n {% endfor %}' }), { line: 2 });
    },
    async 'unknown options and wrong types are refused'() {
      assert.throws(() => ask(QUESTION, { temprature: 1 }), TypeError);
      assert.throws(() => ask(QUESTION, { reserved: 1 }), TypeError);
      assert.throws(() => ask(QUESTION, { stop: 'x' }), TypeError);
      assert.throws(() => ask(QUESTION, { temperature: 'warm' }), TypeError);
      assert.throws(() => ask(QUESTION, { logitsHook: 5 }), TypeError);
      assert.throws(() => session.addMessage('user', 'a\0b'), TypeError);
    },
    async 'numbers out of range are refused by name'() {
      for (const [option, value] of [['maxTokens', 2 ** 32], ['maxTokens', -1], ['maxTokens', 1.5], ['maxTokens', 2n ** 40n], ['topK', 2 ** 32],
        ['seed', -1n], ['seed', 2n ** 64n]])
        assert.throws(() => ask(QUESTION, { [option]: value }), (e) => e instanceof RangeError && e.message.startsWith(option), `${option} ${value}`);
      assert.throws(() => ask(QUESTION, { maxTokens: {} }), TypeError);
      assert.throws(() => session.rewind(2 ** 64), /orrery_session_rewind is out of range/);
      assert.throws(() => session.rewind(-1), RangeError);
      assert.throws(() => session.addMessage('user', undefined), TypeError);
      await assert.rejects(model.session({ nContext: 2 ** 32 + 256 }), /nContext is out of range/);
    },
    async 'ask returns the whole answer'() {
      session.rewindMessages(0);
      assert.strictEqual((await session.ask(QUESTION)).trim(), 'Bruno lives in Salem.');
      await assert.rejects(session.ask(TEXT.repeat(100), { signal: AbortSignal.abort() }), { name: 'AbortError' });
    },
    async 'modules import names'() {
      const { Runtime, KvType, abiVersion } = await import('./index.js');
      assert(Runtime === orrery.Runtime && KvType.F16 === 0 && abiVersion() === 2);
    },
    async 'what a hook throws rejects the call'() {
      const generation = ask(QUESTION, { logitsHook: () => { throw new RangeError('mine'); } });
      await assert.rejects(async () => { for await (const e of generation) void e; }, /mine/);
      session.addMessage('user', 'not busy');
    },
    async 'calls are events'() {
      const toolsJson = JSON.stringify([{ name: 'look', parameters: { type: 'object', properties: { at: { enum: ['here'] } }, required: ['at'] } }]);
      const asked = await model.session({ nContext: 1024 });
      asked.setTemplate({ templateSource: CALLING, toolsJson });
      asked.addMessage('user', 'hello');
      const events = [];
      for await (const e of asked.generate({ tools: orrery.Tools.REQUIRED, oneCall: 1, maxTokens: 80 })) events.push(e);
      assert.deepStrictEqual(events.find((e) => e.type === 'callEnd').arguments, { at: 'here' });
      assert.strictEqual(events.find((e) => e.type === 'call').name, 'look');
      assert.strictEqual(events[events.length - 1].finishReason, orrery.FinishReason.CALLS);
      asked.close();
    },
    async 'functions are tools'() {
      const asked = await model.session({ nContext: 1024 }), given = [];
      const parameters = { type: 'object', properties: { at: { enum: ['here'] } }, required: ['at'] };
      const look = { name: 'look', description: 'Looks.', parameters, run: async (x) => { given.push(x); return { sees: 'an "owl"' }; } };
      const forced = { template: { templateSource: CALLING }, tools: orrery.Tools.REQUIRED, oneCall: 1, maxTokens: 80, mostTurns: 2 };
      asked.addMessage('user', 'hello');
      assert.strictEqual(typeof await asked.runTools([look], forced), 'string');
      assert.deepStrictEqual(given, [{ at: 'here' }]);
      const { role, content } = JSON.parse(asked.message(2));
      assert.deepStrictEqual([role, JSON.parse(content), asked.nMessages()], ['tool', { sees: 'an "owl"' }, 4]);
      // What a function throws is told to the model; without parameters it gets none.
      const fails = { name: 'fails', run: (x) => { given.push(x); throw new RangeError('too far'); } };
      asked.rewindMessages(1);
      await asked.runTools([fails], forced);
      assert.strictEqual(JSON.parse(asked.message(2)).content, 'RangeError: too far');
      assert.deepStrictEqual(given[1], {});
      // One turn calls nothing, and an abort ends the loop.
      asked.rewindMessages(1);
      await asked.runTools([look], { ...forced, mostTurns: 1 });
      assert.strictEqual(given.length, 2);
      const stop = new AbortController();
      asked.rewindMessages(1);
      await assert.rejects(asked.runTools([{ ...look, run: () => stop.abort() }], { ...forced, signal: stop.signal }), { name: 'AbortError' });
      await assert.rejects(asked.runTools([look], { mostTurns: 0 }), /mostTurns/);
      asked.close();
    },
    async 'a seed may be a bigint'() {
      for await (const e of ask(QUESTION, { seed: 2n ** 63n, temperature: 0.5, maxTokens: 1 })) void e;
    },
    async 'a log function hears of other threads'() {
      const heard = [];
      const loud = new orrery.Runtime({ backend: 'cpu', log: (level, message) => heard.push(message), logLevel: 4 });
      (await loud.open(path)).close();
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert(heard.length > 0 && heard.every((m) => typeof m === 'string'));
    },
    async 'handles are collected in any order'() {
      for (let i = 0; i < 8; ++i) (await model.session({ nContext: 256 })).vocab = model.vocab();
      global.gc();
      await new Promise((resolve) => setTimeout(resolve, 5));
      global.gc();
      assert.strictEqual(model.info().nLayers, 4);
    },
  };
  for (const [name, test] of Object.entries(tests)) {
    await test().catch((e) => { e.message = `${name}: ${e.message}`; throw e; });
  }
}
main(process.argv[2]).catch((e) => {
  console.error(e);
  process.exit(1);
});
