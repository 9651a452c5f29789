// Between C# and C: statuses to exceptions, texts, buffers of the header's "Sizes out" kind, and functions that C calls. An
// exception does not cross C: it ends the call there, and is thrown behind it.
using System;
using System.Collections.Generic;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Text;

namespace Orrery {

/// <summary>A call of the library failed. The fields are those of orrery_error.</summary>
public sealed class OrreryException : Exception {
    public readonly Status Status;
    public readonly long NativeCode;
    public readonly ulong BytesRequested, BytesAvailable, Offset;
    public readonly uint Line, Column;
    /// <summary>The field of the options that is at fault; empty: none.</summary>
    public readonly string Option;

    internal unsafe OrreryException(int status, ref orrery_error e) : base(Native.Message(ref e)) {
        Status = (Status)status;
        NativeCode = e.native_code;
        BytesRequested = e.bytes_requested;
        BytesAvailable = e.bytes_available;
        Offset = e.offset;
        Line = e.line;
        Column = e.column;
        fixed (byte* option = e.option) Option = Native.Text((IntPtr)option);
    }
}

internal delegate int Call(ref orrery_error error);
internal delegate int SizedCall<T>(T[] buffer, UIntPtr capacity, ref UIntPtr n, ref orrery_error error);

internal static partial class Native {
    static Native() {
        // Before anything else: the library that was loaded is the one that this assembly knows.
        if (orrery_abi_version() != AbiVersion)
            throw new NotSupportedException("the library has ABI " + orrery_abi_version() + ", this assembly wants " + AbiVersion);
    }

    internal static void CheckSize(string name, uint library, int here) {
        if (library != here) throw new NotSupportedException(name + " has " + library + " bytes in the library, " + here + " here");
    }

    internal static void Check(Call call) {
        var error = orrery_error.New();
        int status = call(ref error);
        if (status != 0) throw new OrreryException(status, ref error);
    }

    /// Calls a function for the size, then for the content.
    internal static T[] Sized<T>(SizedCall<T> call) {
        var n = UIntPtr.Zero;
        Check((ref orrery_error e) => call(null, UIntPtr.Zero, ref n, ref e));
        for (;;) {
            var capacity = n;
            var buffer = new T[Math.Max(1, (long)capacity)];
            try {
                Check((ref orrery_error e) => call(buffer, capacity, ref n, ref e));
            } catch (OrreryException e) when (e.Status == Status.InvalidArgument && (ulong)n > (ulong)capacity) {
                continue;  // longer meanwhile
            }
            Array.Resize(ref buffer, (int)n);
            return buffer;
        }
    }

    internal static string SizedText(SizedCall<byte> call) { return Encoding.UTF8.GetString(Sized(call)); }

    internal static byte[] Utf8(string text) {
        if (text == null) return null;
        if (text.IndexOf('\0') >= 0) throw new ArgumentException("a NUL in a string");
        var bytes = new byte[Encoding.UTF8.GetByteCount(text) + 1];
        Encoding.UTF8.GetBytes(text, 0, text.Length, bytes, 0);
        return bytes;
    }

    internal static byte[] Bytes(IntPtr at, ulong n) {
        var bytes = new byte[n];
        if (n > 0) Marshal.Copy(at, bytes, 0, (int)n);
        return bytes;
    }

    internal static unsafe byte[] Bytes(byte* at, int n) { return Bytes((IntPtr)at, (ulong)n); }

    internal static unsafe string Text(IntPtr at) {
        if (at == IntPtr.Zero) return "";
        ulong n = 0;
        while (((byte*)at)[n] != 0) ++n;
        return Encoding.UTF8.GetString(Bytes(at, n));
    }

    internal static unsafe string Message(ref orrery_error e) {
        fixed (byte* message = e.message) return Text((IntPtr)message);
    }

    internal static UIntPtr Size(long n) { return (UIntPtr)(ulong)n; }
}

/// Changes logits in place, for the next token; false cancels.
public delegate bool LogitsHook(float[] logits, int[] tokens);

/// Functions that C calls; a handle that may call them keeps them alive.
internal sealed class Callbacks {
    readonly List<Delegate> kept = new List<Delegate>();
    ExceptionDispatchInfo thrown;

    IntPtr Keep(Delegate function) {
        kept.Add(function);
        return Marshal.GetFunctionPointerForDelegate(function);
    }

    /// 0 to go on; 1, which cancels, also where the function throws.
    internal int Enter(Func<bool> function) {
        try {
            return function() ? 0 : 1;
        } catch (Exception e) {
            if (thrown == null) thrown = ExceptionDispatchInfo.Capture(e);
            return 1;
        }
    }

    /// Native.Check, and behind it what a callback threw.
    internal void Check(Call call) {
        try {
            Native.Check(call);
        } finally {
            var e = thrown;
            thrown = null;
            if (e != null) e.Throw();
        }
    }

    internal IntPtr OrreryLogFn(Action<int, string> log) {
        return Keep(new orrery_log_fn((user, level, message) => {
            try { log(level, Native.Text(message)); } catch (Exception) {}  // there is nobody to tell
        }));
    }

    internal IntPtr OrreryProgressFn(Func<ulong, ulong, bool> progress) {
        return Keep(new orrery_progress_fn((user, done, total) => Enter(() => progress(done, total))));
    }

    internal IntPtr OrreryLogitsFn(LogitsHook hook) {
        return Keep(new orrery_logits_fn((user, logits, n, tokens, nTokens) => Enter(() => {
            var row = new float[(int)n];
            var ids = new int[(int)nTokens];
            Marshal.Copy(logits, row, 0, row.Length);
            if (ids.Length > 0) Marshal.Copy(tokens, ids, 0, ids.Length);
            bool goOn = hook(row, ids);
            Marshal.Copy(row, 0, logits, row.Length);
            return goOn;
        })));
    }
}

/// What options point to, in C's memory, until the call is over.
internal sealed class Keep : IDisposable {
    readonly List<IntPtr> blocks = new List<IntPtr>();
    readonly List<GCHandle> pinned = new List<GCHandle>();
    readonly List<SafeHandle> held = new List<SafeHandle>();
    internal readonly Callbacks Callbacks = new Callbacks();

    IntPtr Allocate(int bytes) {
        var block = Marshal.AllocHGlobal(Math.Max(1, bytes));
        blocks.Add(block);
        return block;
    }

    /// The address of an array's bytes, which stay there until Dispose.
    internal IntPtr Pin(byte[] bytes) {
        var handle = GCHandle.Alloc(bytes, GCHandleType.Pinned);
        pinned.Add(handle);
        return handle.AddrOfPinnedObject();
    }

    internal IntPtr Text(string text) {
        var bytes = Native.Utf8(text);
        if (bytes == null) return IntPtr.Zero;
        var block = Allocate(bytes.Length);
        Marshal.Copy(bytes, 0, block, bytes.Length);
        return block;
    }

    internal IntPtr[] TextPointers(IEnumerable<string> texts) {
        var pointers = new List<IntPtr>();
        foreach (var text in texts) pointers.Add(Text(text));
        return pointers.ToArray();
    }

    /// A handle's pointer, which stays valid until Dispose.
    internal IntPtr Held(SafeHandle handle) {
        bool added = false;
        handle.DangerousAddRef(ref added);
        held.Add(handle);
        return handle.DangerousGetHandle();
    }

    /// Adapters and their scales, which stay open until Dispose.
    internal IntPtr Uses(List<KeyValuePair<Adapter, float>> adapters) {
        return Array(adapters, pair => new orrery_adapter_use { adapter = Held(pair.Key.Handle), scale = pair.Value });
    }

    internal IntPtr SourceOf(string path) {
        if (path == null) return IntPtr.Zero;
        var block = Allocate(Marshal.SizeOf(typeof(orrery_source)));
        Marshal.StructureToPtr(Source.ToNative(path, this), block, false);
        return block;
    }

    internal IntPtr Texts(List<string> texts) {
        var block = Allocate(texts.Count * IntPtr.Size);
        for (int i = 0; i < texts.Count; ++i) Marshal.WriteIntPtr(block, i * IntPtr.Size, Text(texts[i]));
        return block;
    }

    internal IntPtr Array<A, B, T>(List<KeyValuePair<A, B>> pairs, Func<KeyValuePair<A, B>, T> convert) where T : struct {
        int size = Marshal.SizeOf(typeof(T));
        var block = Allocate(pairs.Count * size);
        for (int i = 0; i < pairs.Count; ++i) Marshal.StructureToPtr(convert(pairs[i]), IntPtr.Add(block, i * size), false);
        return block;
    }

    public void Dispose() {
        foreach (var block in blocks) Marshal.FreeHGlobal(block);
        foreach (var handle in pinned) handle.Free();
        foreach (var handle in held) handle.DangerousRelease();
    }
}
}
