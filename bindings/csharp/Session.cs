// Sessions and generations: a conversation, and one answer of it under way.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Orrery {

/// <summary>One sequence of tokens, its KV cache and the conversation. While a generation of it is there and unfinished, calls
/// that change it fail with Status.Busy.</summary>
public sealed partial class Session : IDisposable {
    internal readonly SessionHandle handle;
    readonly ModelInfo model;

    internal Session(SessionHandle handle, ModelInfo model) {
        this.handle = handle;
        this.model = model;
    }

    public void Dispose() { handle.Dispose(); }

    public void AddMessage(string role, string content) {
        Native.Check((ref orrery_error e) => Native.orrery_session_add_message(handle, Native.Utf8(role), Native.Utf8(content), ref e));
    }
    public void AddMessageJson(string message) {
        Native.Check((ref orrery_error e) => Native.orrery_session_add_message_json(handle, Native.Utf8(message), ref e));
    }
    public int NMessages { get { return (int)Native.orrery_session_n_messages(handle); } }

    /// <summary>Message i as JSON.</summary>
    public string Message(int i) {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_session_message(handle, Native.Size(i), to, capacity, ref n, ref e));
    }
    public void SetTemplate(TemplateOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new TemplateOptions()).ToNative(keep);
            Native.Check((ref orrery_error e) => Native.orrery_session_set_template(handle, ref o, ref e));
        }
    }
    public void RewindMessages(int n) {
        Native.Check((ref orrery_error e) => Native.orrery_session_rewind_messages(handle, Native.Size(n), ref e));
    }
    public int NTokens { get { return (int)Native.orrery_session_n_tokens(handle); } }

    public int[] Tokens() {
        return Native.Sized((int[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_session_tokens(handle, to, capacity, ref n, ref e));
    }
    public void Rewind(int nTokens) {
        Native.Check((ref orrery_error e) => Native.orrery_session_rewind(handle, Native.Size(nTokens), ref e));
    }
    /// <summary>Cancels what the session does now, a generation or a long call; from any thread. What begins later is not
    /// cancelled.</summary>
    public void Cancel() {
        try {
            Native.orrery_session_cancel(handle);
        } catch (ObjectDisposedException) {}
    }
    /// <summary>Replaces the session's adapters: each with its scale. Where the list changes, the session drops its tokens.</summary>
    public void SetAdapters(params KeyValuePair<Adapter, float>[] adapters) {
        using (var keep = new Keep()) {
            var uses = new orrery_adapter_use[adapters.Length];
            for (int i = 0; i < adapters.Length; ++i) {
                uses[i].adapter = keep.Held(adapters[i].Key.Handle);
                uses[i].scale = adapters[i].Value;
            }
            Native.Check((ref orrery_error e) => Native.orrery_session_set_adapters(handle, uses, Native.Size(uses.Length), ref e));
        }
    }
    public Session Fork() {
        SessionHandle fork = null;
        Native.Check((ref orrery_error e) => Native.orrery_session_fork(handle, out fork, ref e));
        fork.Keep = handle.Keep;
        return new Session(fork, model);
    }
    public void Save(string path) {
        Native.Check((ref orrery_error e) => Native.orrery_session_save(handle, Native.Utf8(path), ref e));
    }
    public void Load(string path) {
        Native.Check((ref orrery_error e) => Native.orrery_session_load(handle, Native.Utf8(path), ref e));
    }
    public byte[] SaveBuffer() {
        return Native.Sized((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_session_save_buffer(handle, to, capacity, ref n, ref e));
    }
    public void LoadBuffer(byte[] bytes) {
        Native.Check((ref orrery_error e) => Native.orrery_session_load_buffer(handle, bytes, Native.Size(bytes.Length), ref e));
    }

    /// <summary>Appends tokens without generating; `logits`: null, or (tokens, vocabulary) for theirs.</summary>
    public void Evaluate(int[] tokens, float[] logits = null) {
        if (logits != null && logits.Length != tokens.Length * model.NVocab) throw new ArgumentException("logits has another size");
        Native.Check((ref orrery_error e) => Native.orrery_session_evaluate(handle, tokens, Native.Size(tokens.Length), logits, ref e));
    }

    /// <summary>Of the last computed token.</summary>
    public float[] Logits() {
        var logits = new float[model.NVocab];
        Native.Check((ref orrery_error e) => Native.orrery_session_logits(handle, logits, Native.Size(logits.Length), ref e));
        return logits;
    }

    /// <summary>The final hidden state of the last computed token.</summary>
    public float[] Embedding() {
        var embedding = new float[model.NEmbd];
        Native.Check((ref orrery_error e) => Native.orrery_session_embedding(handle, embedding, Native.Size(embedding.Length), ref e));
        return embedding;
    }
    public Stats Stats() {
        var stats = orrery_stats.New();
        Native.Check((ref orrery_error e) => Native.orrery_session_stats(handle, ref stats, ref e));
        return new Stats(stats);
    }
    /// <summary>The number of KV heads in each of HeteroCache's roles.</summary>
    public HeadRoles HeadRoles() {
        var roles = orrery_head_roles.New();
        Native.Check((ref orrery_error e) => Native.orrery_session_head_roles(handle, ref roles, ref e));
        return new HeadRoles(roles);
    }
    /// <summary>(n_layers, n_kv_heads), flat: the tokens that each KV head holds on the device.</summary>
    public uint[] Residency() {
        return Native.Sized((uint[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_session_residency(handle, to, capacity, ref n, ref e));
    }

    /// <summary>Adds a user's message and returns the whole answer's text. An answer that fails, or that the token cancels, leaves the
    /// message in the conversation.</summary>
    public string Ask(string question, GenerateOptions options = null, CancellationToken token = default(CancellationToken)) {
        AddMessage("user", question);
        var answer = new System.Text.StringBuilder();
        foreach (var e in Generate(options, token)) answer.Append(e.Text);
        return answer.ToString();
    }

    /// <summary>Begins the answer to the conversation; the token cancels it, also during the prompt.</summary>
    public Generation Generate(GenerateOptions options = null, CancellationToken token = default(CancellationToken)) {
        return Begin(options, token, null, true);
    }

    /// `tools`: instead of the options', which stay the caller's. `named`: with the options' tool's name.
    Generation Begin(GenerateOptions options, CancellationToken token, uint? tools, bool named) {
        using (var keep = new Keep()) {
            var o = (options ?? new GenerateOptions()).ToNative(keep);
            o.tools = tools ?? o.tools;
            if (!named) o.tool_name = IntPtr.Zero;
            GenerationHandle generation = null;
            Native.Check((ref orrery_error e) => Native.orrery_generate(handle, ref o, out generation, ref e));
            return new Generation(generation, keep.Callbacks, handle.Keep, token);
        }
    }

    /// <summary>Begins a continuation of exactly these tokens.</summary>
    public Generation GenerateTokens(int[] tokens, GenerateOptions options = null, CancellationToken token = default(CancellationToken)) {
        using (var keep = new Keep()) {
            var o = (options ?? new GenerateOptions()).ToNative(keep);
            GenerationHandle generation = null;
            Native.Check((ref orrery_error e) => Native.orrery_generate_tokens(
                handle, tokens, Native.Size(tokens.Length), ref o, out generation, ref e));
            return new Generation(generation, keep.Callbacks, handle.Keep, token);
        }
    }
}

/// <summary>One answer under way. Leaving a foreach or an await foreach over it, however, disposes of it and frees the session.</summary>
public sealed class Generation : IDisposable, IEnumerable<Event>
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP3_0_OR_GREATER
    , IAsyncEnumerable<Event>
#endif
{
    readonly GenerationHandle handle;
    readonly Callbacks callbacks;
    readonly CancellationToken token;
    readonly CancellationTokenRegistration registration;

    internal Generation(GenerationHandle handle, Callbacks callbacks, object log, CancellationToken token) {
        this.handle = handle;
        this.callbacks = callbacks;
        this.token = token;
        handle.Keep = new[] { callbacks, log };
        registration = token.Register(Cancel);
    }

    /// <summary>From any thread, also when the answer has ended or is disposed of: the next event is then Done.</summary>
    public void Cancel() {
        try {
            Native.orrery_cancel(handle);  // the handle is kept from being freed meanwhile
        } catch (ObjectDisposedException) {}
    }

    /// <summary>A call under way ends first.</summary>
    public void Dispose() {
        registration.Dispose();
        Cancel();
        handle.Dispose();
    }

    /// <summary>Works until there is something to tell; behind the end it repeats Done. Where the token ended the answer, it throws
    /// an OperationCanceledException.</summary>
    public Event Next() {
        var raw = orrery_event.New();
        callbacks.Check((ref orrery_error e) => Native.orrery_next(handle, ref raw, ref e));
        var next = new Event(ref raw);
        if (next.FinishReason == FinishReason.Cancelled) token.ThrowIfCancellationRequested();
        return next;
    }

    /// <summary>Hands every event to onEvent, which cancels by returning false.</summary>
    public void Run(Func<Event, bool> onEvent) {
        var function = new orrery_event_fn((IntPtr user, ref orrery_event raw) => {
            var e = new Event(ref raw);
            return callbacks.Enter(() => onEvent(e));
        });
        callbacks.Check((ref orrery_error e) => Native.orrery_run(handle, function, IntPtr.Zero, ref e));
        GC.KeepAlive(function);
    }

    /// <summary>Runs to the end of an answer under a grammar, and returns its text: JSON under a JSON schema. Throws an
    /// InvalidDataException where the answer was cut before it was whole.</summary>
    public string Whole() {
        var text = new StringBuilder();
        bool complete = false;
        foreach (var e in this) {
            text.Append(e.Text);
            complete |= e.Complete;
        }
        if (!complete) throw new System.IO.InvalidDataException("the answer was cut before it was whole: " + text);
        return text.ToString();
    }

    public IEnumerator<Event> GetEnumerator() {
        try {
            for (;;) {
                var e = Next();
                yield return e;
                if (e.Type == EventType.Done) yield break;
            }
        } finally {
            Dispose();
        }
    }
    IEnumerator IEnumerable.GetEnumerator() { return GetEnumerator(); }

    /// <summary>For await foreach of C# 8: each event is computed on a thread of the pool. The token cancels the answer, which then throws an
    /// OperationCanceledException.</summary>
    public AsyncEvents GetAsyncEnumerator(CancellationToken token = default(CancellationToken)) { return new AsyncEvents(this, token); }
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP3_0_OR_GREATER
    IAsyncEnumerator<Event> IAsyncEnumerable<Event>.GetAsyncEnumerator(CancellationToken token) { return GetAsyncEnumerator(token); }
#endif
}

/// <summary>The events of an answer, one after the other. It has the members that await foreach looks for; where the framework has
/// IAsyncEnumerator, it is one.</summary>
public sealed class AsyncEvents
#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP3_0_OR_GREATER
    : IAsyncEnumerator<Event>
#endif
{
    readonly Generation generation;
    readonly CancellationToken token;
    readonly CancellationTokenRegistration registration;

    internal AsyncEvents(Generation generation, CancellationToken token) {
        this.generation = generation;
        this.token = token;
        registration = token.Register(generation.Cancel);
    }

    /// <summary>The last event; null before the first.</summary>
    public Event Current { get; private set; }

#if NETSTANDARD2_1_OR_GREATER || NETCOREAPP3_0_OR_GREATER
    /// <summary>Works until there is one more event; false behind Done.</summary>
    public ValueTask<bool> MoveNextAsync() { return new ValueTask<bool>(Move()); }
    /// <summary>Cancels what is left of the answer, and frees the session.</summary>
    public ValueTask DisposeAsync() { return new ValueTask(End()); }
#else
    /// <summary>Works until there is one more event; false behind Done.</summary>
    public Task<bool> MoveNextAsync() { return Move(); }
    /// <summary>Cancels what is left of the answer, and frees the session.</summary>
    public Task DisposeAsync() { return End(); }
#endif

    async Task<bool> Move() {
        if (Current != null && Current.Type == EventType.Done) return false;
        var next = await Task.Run(() => generation.Next()).ConfigureAwait(false);
        if (next.FinishReason == FinishReason.Cancelled) token.ThrowIfCancellationRequested();
        Current = next;
        return true;
    }

    Task End() {
        registration.Dispose();
        return Task.Run(() => generation.Dispose());
    }
}

/// <summary>One thing that a generation tells; Type, one of EventType, says which fields it has.</summary>
public sealed class Event {
    public readonly uint Type;
    public readonly ulong Done, Total;                     // Progress: prompt tokens
    public readonly string Text = "";                      // Text, Reasoning: whole characters; Arguments, CallEnd: JSON
    public readonly uint Call;                             // Call, Arguments, CallEnd: the call's number
    public readonly string Name = "", CallId = "";         // the same: the tool's name; CallEnd: the call's id
    public readonly byte[] Bytes;                          // Token: its bytes
    public readonly int Token;                             // Token
    public readonly float Logprob;                         // Token
    public readonly KeyValuePair<int, float>[] Top;        // Token: the likeliest, with their log-probabilities
    public readonly uint FinishReason, StopIndex;          // Done
    public readonly ulong PromptTokens, ReusedTokens, GeneratedTokens, FirstTokenUs, PrefillUs, DecodeUs;  // Done
    public readonly bool Complete;                         // Done: the text is whole by the grammar

    /// What the event points to lives until the next call: it is copied.
    internal unsafe Event(ref orrery_event e) {
        Type = e.type;
        Done = e.done;
        Total = e.total;
        Token = e.token;
        Logprob = e.logprob;
        FinishReason = e.finish_reason;
        StopIndex = e.stop_index;
        PromptTokens = e.prompt_tokens;
        ReusedTokens = e.reused_tokens;
        GeneratedTokens = e.generated_tokens;
        FirstTokenUs = e.first_token_us;
        PrefillUs = e.prefill_us;
        DecodeUs = e.decode_us;
        Complete = e.complete != 0;
        if (Type != EventType.Token && e.text_bytes > 0) Text = Encoding.UTF8.GetString(Native.Bytes(e.text, e.text_bytes));
        Call = e.call;
        if (e.name != IntPtr.Zero) Name = Native.Text(e.name);
        if (e.call_id != IntPtr.Zero) CallId = Native.Text(e.call_id);
        if (Type != EventType.Token) return;
        Bytes = Native.Bytes(e.text, e.text_bytes);
        Top = new KeyValuePair<int, float>[e.n_top];
        for (int i = 0; i < Top.Length; ++i) {
            var top = ((orrery_token_logprob*)e.top)[i];
            Top[i] = new KeyValuePair<int, float>(top.token, top.logprob);
        }
    }
}
}
