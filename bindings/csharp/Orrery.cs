// Orrery for .NET: language models with long contexts inside your program.
//
//     using (var runtime = new Runtime())
//     using (var model = runtime.Open("model.gguf"))
//     using (var chat = model.OpenSession()) {
//         chat.AddMessage("user", "Why is the sky blue?");
//         foreach (var e in chat.Generate()) Console.Write(e.Text);
//     }
//
// Options are classes with the fields of include/orrery.h, which documents them. Calls that fail throw an OrreryException.
// Handles are disposed of in any order, or collected. A Runtime, Model and Vocab may be used by any number of threads, a
// Session by one at a time.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace Orrery {

public static partial class Library {
    public static uint AbiVersion { get { return Native.orrery_abi_version(); } }
    public static string Version { get { return Native.Text(Native.orrery_version()); } }
    public static string BuildInfo { get { return Native.Text(Native.orrery_build_info()); } }
    public static string StatusName(Status status) { return Native.Text(Native.orrery_status_name((int)status)); }

    /// <summary>The GPUs of this machine; RuntimeOptions.Device is an index of this list.</summary>
    public static DeviceInfo[] Devices() {
        var devices = new DeviceInfo[(int)Native.orrery_devices()];
        for (int i = 0; i < devices.Length; ++i) {
            var info = orrery_device_info.New();
            Native.Check((ref orrery_error e) => Native.orrery_device_get_info(Native.Size(i), ref info, ref e));
            devices[i] = new DeviceInfo(info);
        }
        return devices;
    }

    /// <summary>JSON: what is in a file.</summary>
    public static string Inspect(Source source) {
        using (var keep = new Keep()) {
            var file = Source.ToNative(source, keep);
            return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
                Native.orrery_inspect(ref file, to, capacity, ref n, ref e));
        }
    }

    /// <summary>Bytes of one token's K and V of one head, in a KvType.</summary>
    public static ulong KvTypeBytes(uint kvType, uint keyDim, uint valueDim) { return Native.orrery_kv_type_bytes(kvType, keyDim, valueDim); }

    /// <summary>JSON: the table of KV policies.</summary>
    public static string Policies() {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_policies(to, capacity, ref n, ref e));
    }

    public static string HeadProfileImport(string profileJson) {
        var json = Native.Utf8(profileJson);
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_head_profile_import(json, to, capacity, ref n, ref e));
    }

    public static string HeadProfileImportGates(string gates, double sparsity) {
        var lines = Native.Utf8(gates);
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_head_profile_import_gates(lines, sparsity, to, capacity, ref n, ref e));
    }

    /// <summary>What a model and a session would take, from the file's header alone.</summary>
    public static PlanResult Plan(Source source, RuntimeOptions runtime = null, ModelOptions model = null, SessionOptions session = null) {
        using (var keep = new Keep()) {
            var file = Source.ToNative(source, keep);
            var r = (runtime ?? new RuntimeOptions()).ToNative(keep);
            var m = (model ?? new ModelOptions()).ToNative(keep);
            var s = (session ?? new SessionOptions()).ToNative(keep);
            var plan = orrery_plan_result.New();
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_plan(ref file, ref r, ref m, ref s, ref plan, ref e));
            return new PlanResult(plan);
        }
    }

    /// <summary>The plan region by region: its sums are those of Plan.</summary>
    public static PlanRegion[] PlanRegions(Source source, RuntimeOptions runtime = null, ModelOptions model = null, SessionOptions session = null) {
        using (var keep = new Keep()) {
            var r = (runtime ?? new RuntimeOptions()).ToNative(keep);
            var m = (model ?? new ModelOptions()).ToNative(keep);
            var s = (session ?? new SessionOptions()).ToNative(keep);
            var file = Source.ToNative(source, keep);
            var n = UIntPtr.Zero;
            orrery_plan_region[] regions = null;
            keep.Callbacks.Check((ref orrery_error e) =>
                Native.orrery_plan_regions(ref file, ref r, ref m, ref s, null, UIntPtr.Zero, ref n, ref e));
            regions = new orrery_plan_region[(int)n];
            regions[0] = orrery_plan_region.New();
            keep.Callbacks.Check((ref orrery_error e) =>
                Native.orrery_plan_regions(ref file, ref r, ref m, ref s, regions, Native.Size(regions.Length), ref n, ref e));
            return regions.Take((int)n).Select(region => new PlanRegion(region)).ToArray();
        }
    }
}

/// <summary>Threads, the device and its arena.</summary>
public sealed class Runtime : IDisposable {
    internal readonly RuntimeHandle Handle;

    public Runtime(RuntimeOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new RuntimeOptions()).ToNative(keep);
            RuntimeHandle handle = null;
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_runtime_create(ref o, out handle, ref e));
            Handle = handle;
            Handle.Keep = keep.Callbacks;  // and so do models and sessions, which log as well
        }
    }

    public void Dispose() { Handle.Dispose(); }

    public RuntimeInfo Info() {
        var info = orrery_runtime_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_runtime_get_info(Handle, ref info, ref e));
        return new RuntimeInfo(info);
    }

    /// <summary>Opens a GGUF file: of a path, or of another Source. A Progress function that returns false cancels.</summary>
    public Model Open(Source source, ModelOptions options = null) {
        using (var keep = new Keep()) {
            var file = Source.ToNative(source, keep);
            var o = (options ?? new ModelOptions()).ToNative(keep);
            if (file.kind == SourceKind.Memory) o.load = LoadMode.Read;
            ModelHandle handle = null;
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_model_open(Handle, ref file, ref o, out handle, ref e));
            handle.Keep = Handle.Keep;
            return new Model(handle);
        }
    }

    /// <summary>Changes the number of threads and their Priority between two steps; 0: the default number.</summary>
    public void SetThreads(int nThreads, int priority = 0) {
        Native.Check((ref orrery_error e) => Native.orrery_runtime_set_threads(Handle, nThreads, priority, ref e));
    }
}

/// <summary>Where a GGUF file lies. A string is the source of that path.</summary>
public sealed class Source {
    string path;
    byte[] memory;
    int fd = -1;
    ulong offset, bytes;

    Source() {}
    public static implicit operator Source(string path) { return path == null ? null : new Source { path = path }; }

    /// <summary>The open file `fd`, or `bytes` of it from `offset` on (0: up to its end), such as an asset of an archive. The file may be closed
    /// behind the call.</summary>
    public static Source FromFd(int fd, ulong offset = 0, ulong bytes = 0) { return new Source { fd = fd, offset = offset, bytes = bytes }; }

    /// <summary>A whole file in memory. A model that is opened from it copies it.</summary>
    public static Source FromMemory(byte[] memory) {
        if (memory == null) throw new ArgumentNullException("memory");
        return new Source { memory = memory };
    }

    internal static orrery_source ToNative(Source source, Keep keep) {
        if (source == null) throw new ArgumentNullException("source");
        var raw = orrery_source.New();
        if (source.path != null) {
            raw.path = keep.Text(source.path);
        } else if (source.memory != null) {
            raw.kind = SourceKind.Memory;
            raw.memory = keep.Pin(source.memory);
            raw.memory_bytes = (ulong)source.memory.LongLength;
        } else {
            raw.kind = SourceKind.Fd;
            raw.fd = source.fd;
            raw.fd_offset = source.offset;
            raw.fd_bytes = source.bytes;
        }
        return raw;
    }
}

/// <summary>Tokenizer and chat template on their own.</summary>
public sealed class Vocab : IDisposable {
    readonly VocabHandle handle;

    internal Vocab(VocabHandle handle) { this.handle = handle; }

    /// <summary>Opens the vocabulary of a GGUF file: of a path, or of another Source.</summary>
    public static Vocab Open(Source source) {
        using (var keep = new Keep()) {
            var file = Source.ToNative(source, keep);
            VocabHandle handle = null;
            Native.Check((ref orrery_error e) => Native.orrery_vocab_open(ref file, out handle, ref e));
            return new Vocab(handle);
        }
    }

    public void Dispose() { handle.Dispose(); }

    public VocabInfo Info() {
        var info = orrery_vocab_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_vocab_get_info(handle, ref info, ref e));
        return new VocabInfo(info);
    }

    public int[] Tokenize(string text, uint flags = 0) {
        var bytes = Encoding.UTF8.GetBytes(text + "\0");  // a NUL behind it: never an empty array
        return Native.Sized((int[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_tokenize(handle, bytes, Native.Size(bytes.Length - 1), flags, to, capacity, ref n, ref e));
    }

    /// <summary>The bytes that the tokens stand for, possibly ending inside a character.</summary>
    public byte[] Detokenize(int[] tokens, uint flags = 0) {
        return Native.Sized((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_detokenize(handle, tokens, Native.Size(tokens.Length), flags, to, capacity, ref n, ref e));
    }

    public uint TokenFlags(int token) { return Native.orrery_token_flags(handle, token); }

    /// <summary>A grammar over these tokens, by the grammar options of Session.Generate.</summary>
    public Matcher Matcher(GenerateOptions options) {
        using (var keep = new Keep()) {
            var o = options.ToNative(keep);
            MatcherHandle matcher = null;
            Native.Check((ref orrery_error e) => Native.orrery_matcher_create(handle, ref o, out matcher, ref e));
            return new Matcher(matcher);
        }
    }

    public string RenderChat(string messagesJson, TemplateOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new TemplateOptions()).ToNative(keep);
            var json = Native.Utf8(messagesJson);
            return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
                Native.orrery_render_chat(handle, json, ref o, to, capacity, ref n, ref e));
        }
    }

    /// <summary>Describes as JSON how the template has reasoning and calls of tools written: "calls" is null where "why_none" says
    /// why.</summary>
    public string ChatFormat(TemplateOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new TemplateOptions()).ToNative(keep);
            return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
                Native.orrery_chat_format(handle, ref o, to, capacity, ref n, ref e));
        }
    }
}

/// <summary>Immutable; any number of threads may use it.</summary>
public sealed class Model : IDisposable {
    internal readonly ModelHandle handle;

    internal Model(ModelHandle handle) { this.handle = handle; }

    public void Dispose() { handle.Dispose(); }

    /// <summary>Layer i, from 0 to NLayers - 1: layers may differ in their heads, windows, states and experts.</summary>
    public LayerInfo Layer(uint i) {
        var info = orrery_layer_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_model_layer_info(handle, i, ref info, ref e));
        return new LayerInfo(info);
    }

    /// <summary>Where a mixture's experts lie, and what the link brought.</summary>
    public ExpertsInfo Experts() {
        var info = orrery_experts_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_model_experts(handle, ref info, ref e));
        return new ExpertsInfo(info);
    }

    /// <summary>The layers that lie in host memory, and what the link brought of them.</summary>
    public StreamingInfo Streaming() {
        var info = orrery_streaming_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_model_streaming(handle, ref info, ref e));
        return new StreamingInfo(info);
    }

    public ModelInfo Info() {
        var info = orrery_model_info.New();
        Native.Check((ref orrery_error e) => Native.orrery_model_get_info(handle, ref info, ref e));
        return new ModelInfo(info);
    }

    public Vocab Vocab() {
        var vocab = Native.orrery_model_vocab(handle);
        if (vocab.IsInvalid) throw new OutOfMemoryException("no memory for a vocabulary");
        return new Vocab(vocab);
    }

    public Session OpenSession(SessionOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new SessionOptions()).ToNative(keep);
            SessionHandle session = null;
            Native.Check((ref orrery_error e) => Native.orrery_session_open(handle, ref o, out session, ref e));
            session.Keep = handle.Keep;
            return new Session(session, Info());
        }
    }

    /// <summary>Opens a LoRA adapter of the model, whose source may go afterwards.</summary>
    public Adapter OpenAdapter(Source source) {
        using (var keep = new Keep()) {
            var from = Source.ToNative(source, keep);
            AdapterHandle adapter = null;
            Native.Check((ref orrery_error e) => Native.orrery_adapter_open(handle, ref from, out adapter, ref e));
            return new Adapter(adapter);
        }
    }

    /// <summary>Computes vectors of texts. Progress cancels by returning false.</summary>
    public Embeddings Embed(IEnumerable<string> texts, EmbedOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new EmbedOptions()).ToNative(keep);
            var given = keep.TextPointers(texts);
            int size = o.n_dimensions > 0 ? (int)o.n_dimensions : (int)Info().NEmbd;
            var n = UIntPtr.Zero;
            var nTokens = new uint[given.Length];
            Native.Check((ref orrery_error e) =>
                Native.orrery_embed(handle, given, Native.Size(given.Length), ref o, null, UIntPtr.Zero, ref n, null, ref e));
            var floats = new float[(int)n];
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_embed(
                handle, given, Native.Size(given.Length), ref o, floats, Native.Size(floats.Length), ref n, nTokens, ref e));
            var vectors = new float[floats.Length / size][];
            for (int i = 0; i < vectors.Length; ++i) Array.Copy(floats, i * size, vectors[i] = new float[size], 0, size);
            return new Embeddings(vectors, nTokens);
        }
    }

    /// <summary>How well each text answers the query: more is better. The model must have a reranker's head (ModelInfo.Purpose).</summary>
    public float[] Rank(string query, IEnumerable<string> texts, EmbedOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new EmbedOptions()).ToNative(keep);
            var given = keep.TextPointers(texts);
            var scores = new float[given.Length];
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_rank(
                handle, Native.Utf8(query), given, Native.Size(given.Length), ref o, scores, Native.Size(scores.Length), null, ref e));
            return scores;
        }
    }

    /// <summary>Finds out which heads attend alike, from texts as tokens.</summary>
    public Calibration Calibrate(IEnumerable<int[]> texts, CalibrateOptions options = null) {
        using (var keep = new Keep()) {
            var o = (options ?? new CalibrateOptions()).ToNative(keep);
            var tokens = texts.SelectMany(text => text).ToArray();
            var lengths = texts.Select(text => Native.Size(text.Length)).ToArray();
            CalibrationHandle calibration = null;
            keep.Callbacks.Check((ref orrery_error e) => Native.orrery_calibrate(
                handle, tokens, lengths, Native.Size(lengths.Length), ref o, out calibration, ref e));
            return new Calibration(calibration);
        }
    }
}

/// <summary>A grammar and a place in it, for samplers of your own and for checks. One thread at a time.</summary>
public sealed class Matcher : IDisposable {
    readonly MatcherHandle handle;

    internal Matcher(MatcherHandle handle) { this.handle = handle; }

    public void Dispose() { handle.Dispose(); }

    /// <summary>Bit i of word w: token 32 w + i may come next.</summary>
    public uint[] Mask() {
        return Native.Sized((uint[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_matcher_mask(handle, to, capacity, ref n, ref e));
    }

    /// <summary>Goes on with the first tokens that are allowed. Returns how many.</summary>
    public int Accept(int[] tokens) {
        var n = UIntPtr.Zero;
        Native.Check((ref orrery_error e) => Native.orrery_matcher_accept(handle, tokens, Native.Size(tokens.Length), ref n, ref e));
        return (int)n;
    }

    /// <summary>Goes back to the first nTokens accepted ones.</summary>
    public void Rewind(int nTokens) {
        Native.Check((ref orrery_error e) => Native.orrery_matcher_rewind(handle, Native.Size(nTokens), ref e));
    }

    /// <summary>Tokens of the text that follows in any case.</summary>
    public int[] Forced() {
        return Native.Sized((int[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_matcher_forced(handle, to, capacity, ref n, ref e));
    }

    /// <summary>How many bytes of a text can begin an answer; complete: the whole text is one.</summary>
    public int Match(string text, out bool complete) {
        byte[] bytes = Encoding.UTF8.GetBytes(text);
        var matched = UIntPtr.Zero;
        var whole = new uint[1];
        Native.Check((ref orrery_error e) =>
            Native.orrery_matcher_match(handle, bytes, Native.Size(bytes.Length), ref matched, whole, ref e));
        complete = whole[0] != 0;
        return (int)matched;
    }

    /// <summary>JSON: rules, states, bytes, and notices of what does not constrain.</summary>
    public string Describe() {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_matcher_describe(handle, to, capacity, ref n, ref e));
    }
}

/// <summary>Vectors in the order of the texts, one of each text or, without pooling, of each token.</summary>
public sealed class Embeddings {
    public float[][] Vectors { get; }
    /// <summary>Of each text.</summary>
    public uint[] NTokens { get; }

    internal Embeddings(float[][] vectors, uint[] nTokens) { Vectors = vectors; NTokens = nTokens; }
}

/// <summary>A LoRA adapter of a model. Sessions keep the adapters that they have.</summary>
public sealed class Adapter : IDisposable {
    internal readonly AdapterHandle Handle;

    internal Adapter(AdapterHandle handle) { Handle = handle; }

    public void Dispose() { Handle.Dispose(); }
}

/// <summary>A folder of saved sessions with a budget in bytes; 0: no limit. Sessions with the option Folder find their prompts' beginnings there.</summary>
public sealed class Folder : IDisposable {
    internal readonly FolderHandle handle;

    public Folder(string path, ulong maxBytes = 0) {
        FolderHandle opened = null;
        Native.Check((ref orrery_error e) => Native.orrery_folder_open(Native.Utf8(path), maxBytes, out opened, ref e));
        handle = opened;
    }

    public void Dispose() { handle.Dispose(); }

    /// <summary>Without a name, the entry takes the place of shorter ones of the same prompt.</summary>
    public void Save(Session session, string name = null) {
        Native.Check((ref orrery_error e) => Native.orrery_folder_save(handle, session.handle, Native.Utf8(name), ref e));
    }

    public void Load(Session session, string name) {
        Native.Check((ref orrery_error e) => Native.orrery_folder_load(handle, session.handle, Native.Utf8(name), ref e));
    }

    public void Remove(string name) { Native.Check((ref orrery_error e) => Native.orrery_folder_remove(handle, Native.Utf8(name), ref e)); }

    /// <summary>The entries as JSON, the last used first.</summary>
    public string List() {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_folder_list(handle, to, capacity, ref n, ref e));
    }
}

/// <summary>What Model.Calibrate found out.</summary>
public sealed class Calibration : IDisposable {
    readonly CalibrationHandle handle;

    internal Calibration(CalibrationHandle handle) { this.handle = handle; }

    public void Dispose() { handle.Dispose(); }

    /// <summary>JSON for SessionOptions.HeadProfile.</summary>
    public string Profile() {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_calibration_profile(handle, to, capacity, ref n, ref e));
    }

    public string Steps() {
        return Native.SizedText((byte[] to, UIntPtr capacity, ref UIntPtr n, ref orrery_error e) =>
            Native.orrery_calibration_steps(handle, to, capacity, ref n, ref e));
    }
}
}
