// A chat program: node chat.js MODEL.gguf. Each line of the input is a question; Ctrl-C stops an answer and keeps the talk.
'use strict';
const readline = require('readline');
const orrery = require('./index.js');

async function main(path) {
  const runtime = new orrery.Runtime();
  const model = await runtime.open(path);
  // A long conversation forgets its beginning instead of stopping.
  const chat = await model.session({ overflow: orrery.Overflow.DROP_OLDEST });
  let stop = null;
  const input = readline.createInterface({ input: process.stdin, output: process.stderr, prompt: '> ' });
  const interrupt = () => (stop ? stop.abort() : input.close());
  process.on('SIGINT', interrupt);
  input.on('SIGINT', interrupt);

  input.prompt();
  for await (const line of input) {
    if (line.trim()) {
      chat.addMessage('user', line.trim());
      stop = new AbortController();
      for await (const piece of chat.generate({ maxTokens: 1024, signal: stop.signal }).text()) process.stdout.write(piece);
      stop = null;
      process.stdout.write('\n');
    }
    input.prompt();
  }
}

if (process.argv.length !== 3) {
  console.error('usage: node chat.js MODEL.gguf');
  process.exit(2);
}
main(process.argv[2]).catch((e) => {
  console.error(`${e.message} (${e.code})`);
  process.exit(1);
});
