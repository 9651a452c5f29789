"""C#: P/Invoke declarations, structs, handles, constants, and options and results as classes. C# 7, netstandard2.0."""

from . import banner, camel, docs, group_name

SCALARS = {"uint8_t": "byte", "int32_t": "int", "uint32_t": "uint", "int64_t": "long", "uint64_t": "ulong", "float": "float",
           "double": "double", "size_t": "UIntPtr", "orrery_status": "int", "char": "byte"}
KINDS = {"i32": "int", "u32": "uint", "i64": "long", "u64": "ulong", "f32": "float", "f64": "double"}
HOOKS = {"orrery_log_fn": "Action<int, string>", "orrery_progress_fn": "Func<ulong, ulong, bool>",
         "orrery_logits_fn": "LogitsHook"}


def handle(name):
    return camel(name[len("orrery_"):]) + "Handle"


def parameter(header, ctype):
    if ctype.pointers == 0:
        return SCALARS.get(ctype.base, ctype.base)
    if (ctype.base in header.handles or ctype.base == "char") and ctype.array:
        return "IntPtr[]"
    if ctype.base in header.handles:
        return ("out " if ctype.pointers == 2 else "") + handle(ctype.base)
    if ctype.base in header.structs and header.structs[ctype.base].fields[0].kind == "handle":
        return ctype.base + "[]"
    if ctype.base in header.structs:
        return "ref " + ctype.base
    if ctype.base == "size_t":
        return "UIntPtr[]" if ctype.const else "ref UIntPtr"
    if ctype.base == "void":
        return "byte[]" if ctype.const else "IntPtr"
    return SCALARS[ctype.base] + "[]"


def in_callback(header, ctype):
    if ctype.pointers == 0:
        return SCALARS[ctype.base]
    return "ref " + ctype.base if ctype.base in header.structs else "IntPtr"


def field(f):
    if f.kind == "bytes" or f.kind == "chars":
        return "public fixed byte %s[%d];" % (f.name, f.length)
    if f.type.pointers or f.kind == "fn":
        return "public IntPtr %s;" % f.name
    return "public %s @%s;" % (SCALARS[f.type.base], f.name)


def signature(header, f):
    params = []
    for i, (t, name) in enumerate(f.params):
        # A buffer that is written, and the functions that free, take plain pointers.
        ptype = "IntPtr" if f.name.endswith("_free") else parameter(header, t)
        if t.base in header.structs and i + 1 < len(f.params) and f.params[i + 1][1] == "capacity":
            ptype = "[In, Out] %s[]" % t.base
        if ptype == "IntPtr" and t.base == "void" and name != "user" and not t.const:
            ptype = "byte[]"
        params.append("%s @%s" % (ptype, name))
    result = f.result
    kind = "void" if result.base == "void" else SCALARS.get(result.base) if not result.pointers else "IntPtr"
    if result.base in header.handles:
        kind = handle(result.base)
    return kind, ", ".join(params)


def native(header):
    out = [banner("//"), "using System;", "using System.Collections.Generic;", "using System.Runtime.InteropServices;\n",
           "namespace Orrery {"]
    for prefix, members in header.groups().items():
        if prefix == "STATUS":
            out.append("public enum Status {")
            for n, v in members.items():
                out += docs.summary(header.constant_doc(prefix, n), "    ") + ["    %s = %d," % (camel(n), v)]
            out.append("}\n")
        else:
            kind = "int" if prefix in ("LOG", "PRIORITY") else "uint"
            out += ["public static class %s {" % group_name(prefix)]
            for n, v in members.items():
                out += docs.summary(header.constant_doc(prefix, n), "    ") + ["    public const %s %s = %d;" % (kind, camel(n), v)]
            out.append("}\n")
    for s in header.structs.values():
        out += ["[StructLayout(LayoutKind.Sequential)]", "internal unsafe struct %s {" % s.name]
        out += ["    " + field(f) for f in s.fields]
        if s.init:
            out += ["    public static %s New() {" % s.name, "        var value = new %s();" % s.name,
                    "        Native.%s(ref value, (UIntPtr)sizeof(%s));" % (s.init, s.name),
                    '        Native.CheckSize("%s", value.struct_size, sizeof(%s));' % (s.name, s.name), "        return value;", "    }"]
        out.append("}\n")
    for c in header.callbacks.values():
        out += ["[UnmanagedFunctionPointer(CallingConvention.Cdecl)]", "internal delegate %s %s(%s);\n" % (
            "void" if c.result.base == "void" else SCALARS[c.result.base], c.name,
            ", ".join("%s @%s" % (in_callback(header, t), n) for t, n in c.params))]
    for h in header.handles:
        out += ["internal sealed class %s : SafeHandle {" % handle(h), "    internal object Keep;  // callbacks that C may call as long as the handle is there",
                "    public %s() : base(IntPtr.Zero, true) {}" % handle(h),
                "    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }",
                "    protected override bool ReleaseHandle() { Native.%s_free(handle); return true; }" % h, "}\n"]
    out += ["internal static partial class Native {", "    internal const uint AbiVersion = %d;" % header.constants["ABI_VERSION"]]
    for f in header.functions.values():
        kind, params = signature(header, f)
        out += ['    [DllImport("orrery", CallingConvention = CallingConvention.Cdecl)]',
                "    internal static extern %s %s(%s);" % (kind, f.name, params)]
    out.append("}\n")
    out += ["public static partial class Library {",
            "    /// <summary>The name of a constant; kind: as in orrery_KIND_name. null: there is no such kind.</summary>",
            "    public static string ConstantName(string kind, long value) {", "        switch (kind) {"]
    for kind, function in header.names().items():
        out.append('            case "%s": return Native.Text(Native.%s((%s)value));' % (
            kind, function, SCALARS[header.functions[function].params[0][0].base]))
    out += ["            default: return null;", "        }", "    }", "}\n"]
    for s in header.options():
        options(header, s, out)
    for s in header.results():
        results(header, s, out)
    out.append("}")
    return "\n".join(out) + "\n"


def managed(header, f):
    if f.kind in ("cstr", "chars", "source"):
        return "string"
    if f.kind == "opened":
        return camel(f.type.base[len("orrery_"):])
    if f.kind == "uses":
        return "List<KeyValuePair<%s, float>>" % camel(header.structs[f.type.base].fields[0].type.base[len("orrery_"):])
    if f.kind == "strings":
        return "List<string>"
    if f.kind == "array":
        return "List<KeyValuePair<%s>>" % ", ".join("string" if e.kind == "cstr" else KINDS[e.kind]
                                                    for e in header.structs[f.type.base].fields)
    if f.kind == "fn":
        return HOOKS[f.type.base]
    return "byte[]" if f.kind == "bytes" else KINDS[f.kind]


def options(header, s, out):
    name = camel(s.short)
    out += ["/// <summary>%s of the header; a new one has the library's defaults.</summary>" % s.name, "public sealed class %s {" % name]
    for f in s.settable:
        kind = managed(header, f)
        out += docs.summary(header.doc(s.name, f), "    ")
        out.append("    public %s %s%s;" % (kind, camel(f.name), " = new %s()" % kind if kind.startswith("List") else ""))
    out += ["    public %s() {" % name, "        var raw = %s.New();" % s.name]
    out += ["        %s = raw.%s;" % (camel(f.name), f.name) for f in s.settable if f.kind in KINDS]
    out += ["    }", "    internal %s ToNative(Keep keep) {" % s.name, "        var raw = %s.New();" % s.name]
    for f in s.settable:
        value = camel(f.name)
        if f.kind == "cstr":
            out.append("        raw.%s = keep.Text(%s);" % (f.name, value))
        elif f.kind == "source":
            out.append("        raw.%s = keep.SourceOf(%s);" % (f.name, value))
        elif f.kind == "opened":
            out.append("        if (%s != null) raw.%s = keep.Held(%s.handle);" % (value, f.name, value))
        elif f.kind == "strings":
            out.append("        raw.%s = keep.Texts(%s);" % (f.name, value))
            out.append("        raw.%s = (%s)%s.Count;" % (f.count, SCALARS[s.field(f.count).type.base], value))
        elif f.kind == "array":
            element = f.type.base
            fields = header.structs[element].fields
            parts = ["%s = %s" % (e.name, ("keep.Text(pair.%s)" if e.kind == "cstr" else "pair.%s") % part)
                     for e, part in zip(fields, ("Key", "Value"))]
            out.append("        raw.%s = keep.Array(%s, pair => new %s { %s });" % (f.name, value, element, ", ".join(parts)))
            out.append("        raw.%s = (%s)%s.Count;" % (f.count, SCALARS[s.field(f.count).type.base], value))
        elif f.kind == "uses":
            out.append("        raw.%s = keep.Uses(%s);" % (f.name, value))
            out.append("        raw.%s = (%s)%s.Count;" % (f.count, SCALARS[s.field(f.count).type.base], value))
        elif f.kind == "fn":
            out.append("        if (%s != null) raw.%s = keep.Callbacks.%s(%s);" % (value, f.name, camel(f.type.base), value))
        else:
            out.append("        raw.%s = %s;" % (f.name, value))
    out += ["        return raw;", "    }", "}\n"]


def results(header, s, out):
    name = camel(s.short)
    out += ["/// <summary>%s of the header.</summary>" % s.name, "public sealed class %s {" % name]
    for f in s.visible:
        out += docs.summary(header.doc(s.name, f), "    ") + ["    public readonly %s %s;" % (managed(None, f), camel(f.name))]
    out += ["    internal unsafe %s(%s raw) {" % (name, s.name)]
    for f in s.visible:
        value = {"cstr": "Native.Text(raw.%s)" % f.name, "chars": "Native.Text((IntPtr)raw.%s)" % f.name,
                 "bytes": "Native.Bytes(raw.%s, %d)" % (f.name, f.length)}.get(f.kind, "raw." + f.name)
        out.append("        %s = %s;" % (camel(f.name), value))
    out += ["    }", "}\n"]
