// Types of Orrery for Node. Options and results are those of include/orrery.h, in camelCase: abi.d.ts, generated.
/// <reference types="node" />
import * as abi from './abi';
export * from './abi';

export class OrreryError extends Error {
  readonly code: string; // "ORRERY_BUSY"
  readonly status: number;
  readonly nativeCode: number;
  readonly bytesRequested: number;
  readonly bytesAvailable: number;
  readonly offset: number;
  readonly line: number;
  readonly column: number;
  readonly option: string; // the field of the options that is at fault; '': none
}

/** Where a GGUF file lies: a path; an open file, or `bytes` of it from `offset` on (none: up to its end); a whole file in memory. */
export type Source = string | { fd: number; offset?: number | bigint; bytes?: number | bigint } | { memory: Buffer };

export type Event =
  | { type: 'progress'; done: number; total: number }
  | { type: 'token'; token: number; bytes: Buffer; logprob: number; top: Array<{ token: number; logprob: number }> }
  | { type: 'text'; text: string }
  | { type: 'reasoning'; text: string } // with tools or splitReasoning, as are these:
  | { type: 'call'; call: number; name: string }
  | { type: 'arguments'; call: number; name: string; text: string }
  | { type: 'callEnd'; call: number; name: string; id: string; arguments: Record<string, unknown> }
  | { type: 'other'; number: number } // of a newer library
  | {
      type: 'done'; finishReason: number; stopIndex: number; promptTokens: number; reusedTokens: number;
      generatedTokens: number; firstTokenUs: number; prefillUs: number; decodeUs: number; complete: boolean;
    };

export interface GenerateOptions extends abi.GenerateOptions {
  signal?: AbortSignal; // cancels the answer
  schema?: object | string; // a JSON schema that the answer fits; see value()
}

/** A function that the model may call: see runTools(). */
export interface ToolFunction {
  name: string;
  description?: string;
  parameters?: object | string; // a JSON schema of the arguments; none: no parameters
  run(given: any): unknown; // the result, or a promise of it
}
export interface RunToolsOptions extends GenerateOptions {
  mostTurns?: number; // answers, at most; default 8
  template?: abi.TemplateOptions;
}

declare class Handle {
  close(): void; // behind the calls that use it; closing again does nothing
}
export class Runtime extends Handle {
  constructor(options?: abi.RuntimeOptions);
  info(): abi.RuntimeInfo;
  open(source: Source, options?: abi.ModelOptions): Promise<Model>; // copies memory
  setThreads(nThreads: number, priority?: number): Promise<void>;
}
export class Vocab extends Handle {
  static open(source: Source): Promise<Vocab>; // memory stays unchanged until then
  info(): abi.VocabInfo;
  tokenize(text: string | Buffer, flags?: number): Int32Array;
  detokenize(tokens: Iterable<number>, flags?: number): Buffer;
  tokenFlags(token: number): number;
  matcher(options: GenerateOptions): Matcher;
  renderChat(messages: string | object[], options?: abi.TemplateOptions): string;
  chatFormat(options?: abi.TemplateOptions): Record<string, any>; // how reasoning and calls of tools are written
}
export class Matcher extends Handle {
  mask(): Uint32Array; // bit i of word w: token 32 w + i may come next
  accept(tokens: Iterable<number>): number; // how many of the first ones are allowed
  rewind(nTokens: number): void;
  forced(): Int32Array;
  match(text: string | Buffer): { matchedBytes: number; complete: boolean };
  describe(): { rules: number; states: number; bytes: number; notices: string[] };
}
export class Model extends Handle {
  info(): abi.ModelInfo;
  layer(i: number): abi.LayerInfo;
  experts(): abi.ExpertsInfo;
  vocab(): Vocab;
  adapter(source: Source): Promise<Adapter>; // LoRA; the source may go afterwards
  session(options?: abi.SessionOptions & { adapters?: AdapterUse[]; draftModel?: Model; folder?: Folder }): Promise<Session>;
  embed(texts: string[], options?: abi.EmbedOptions): Promise<{ vectors: Float32Array[]; nTokens: number[] }>;
  rank(query: string, texts: string[], options?: abi.EmbedOptions): Promise<Float32Array>; // more is better
  calibrate(texts: Array<ArrayLike<number>>, options?: abi.CalibrateOptions): Promise<Calibration>;
}
export class Adapter extends Handle {}
export interface AdapterUse {
  adapter: Adapter;
  scale?: number; // default 1
}
export interface FolderEntry {
  name: string;
  bytes: number;
  used: number; // seconds since 1970
  tokens?: number;
  shared_tokens?: number;
  model?: string;
  error?: string; // it is damaged
}
export class Folder extends Handle {
  constructor(path: string, maxBytes?: number | bigint); // 0: no limit
  save(session: Session, name?: string | null): Promise<void>;
  load(session: Session, name: string): Promise<void>;
  remove(name: string): void;
  list(): FolderEntry[]; // the last used first
}
export class Calibration extends Handle {
  profile(): string;
  steps(): string;
}
export class Session extends Handle {
  addMessage(role: string, content: string): void;
  addMessageJson(message: string | object): void;
  nMessages(): number;
  message(i: number): string;
  setTemplate(options?: abi.TemplateOptions): void;
  rewindMessages(n: number): void;
  nTokens(): number;
  tokens(): Int32Array;
  rewind(nTokens: number): void;
  setAdapters(adapters: AdapterUse[]): void; // where the list changes, the session drops its tokens
  cancel(): void; // what it does now
  fork(): Promise<Session>;
  save(path: string): Promise<void>;
  load(path: string): Promise<void>;
  saveBuffer(): Promise<Buffer>;
  loadBuffer(bytes: Buffer): Promise<void>;
  evaluate(tokens: number[] | Int32Array, options?: { logits?: boolean }): Promise<Float32Array | undefined>;
  logits(): Float32Array;
  embedding(): Float32Array;
  stats(): abi.Stats;
  headRoles(): abi.HeadRoles;
  residency(): Uint32Array; // (nLayers, nKvHeads)
  ask(question: string, options?: GenerateOptions): Promise<string>; // adds a user's message; the whole answer
  runTools(functions: ToolFunction[], options?: RunToolsOptions): Promise<string>; // the answer that calls nothing
  generate(options?: GenerateOptions): Generation;
  generateTokens(tokens: Iterable<number>, options?: GenerateOptions): Generation;
}
export class Generation extends Handle implements AsyncIterable<Event> {
  next(): Promise<Event>;
  run(onEvent: (event: Event) => unknown): Promise<void>;
  cancel(): void;
  text(): AsyncGenerator<string>;
  value<T = any>(): Promise<T>; // of an answer under a schema
  [Symbol.asyncIterator](): AsyncGenerator<Event>;
}

export function abiVersion(): number;
export function version(): string;
export function buildInfo(): string;
export function statusName(status: number): string;
export function constantName(kind: abi.ConstantKind, value: number): string;
export function devices(): abi.DeviceInfo[];
export function inspect(source: Source): Promise<string>;
/** Bytes of one token's K and V of one head. */
export function kvTypeBytes(kvType: number, keyDim: number, valueDim: number): number;
export function policies(): string;
export function plan(source: Source, options?: { runtime?: abi.RuntimeOptions; model?: abi.ModelOptions; session?: abi.SessionOptions }):
  Promise<abi.PlanResult>;
/** The plan region by region: its sums are those of `plan`. */
export function planRegions(source: Source, options?: { runtime?: abi.RuntimeOptions; model?: abi.ModelOptions; session?: abi.SessionOptions }):
  Promise<abi.PlanRegion[]>;
export function headProfileImport(profile: string | object): string;
export function headProfileImportGates(gates: string, sparsity: number): string;
