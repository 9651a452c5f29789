"""Node: how the addon calls each function (a table of parameters and a wrapper), constants, and TypeScript types."""

from . import banner, camel, docs, group_name, lower_camel

HINTS = {"cstr": "string", "source": "string", "opened": "object", "text": "Buffer", "bytes": "Buffer", "chars": "string", "strings": "string[]"}


def parameters(header, function):
    """[(kind, layout or None, slots)]: what the addon does with consecutive parameters."""
    out, params, i = [], function.params, 0
    while i < len(params):
        ctype, name = params[i]
        following = params[i + 1:i + 3]
        base, pointers = ctype.base, ctype.pointers
        counted = bool(following) and following[0][0].base == "size_t" and following[0][0].pointers == 0
        sized_out = counted and following[0][1] == "capacity" and len(following) == 2 and following[1][0].pointers == 1
        kind, layout, slots = None, None, 1
        if base == "orrery_error":
            kind = "ERROR"
        elif base in header.handles:
            kind, layout = ("NEW" if pointers == 2 else "HANDLE"), None
        elif base in header.structs and sized_out:
            kind, layout, slots = "OUT_STRUCTS", header.structs[base].short, 3
        elif base in header.structs and header.structs[base].fields[0].kind == "handle":
            kind, slots = "USES", 2
        elif base in header.structs:
            kind, layout = ("OPTIONS" if ctype.const else "RESULT"), header.structs[base].short
        elif base in header.callbacks:
            kind, slots = "CALLBACK", 2
        elif sized_out:
            kind, slots = {"char": "OUT_BYTES", "void": "OUT_BYTES", "int32_t": "OUT_I32", "uint32_t": "OUT_U32", "float": "OUT_F32"}[base], 3
        elif pointers == 0:
            kind = {"double": "F64", "int32_t": "I32", "uint32_t": "U32", "int64_t": "I64", "orrery_status": "I32"}.get(base, "U64")
        elif ctype.const and base == "char" and pointers == 2 and counted:
            kind, slots = "STRINGS", 2
        elif ctype.const and base == "char":
            kind, slots = ("BYTES", 2) if counted and following[0][1] == name + "_bytes" else ("STRING", 1)
        elif ctype.const and base == "void" and counted:
            kind, slots = "BYTES", 2
        elif base in ("int32_t", "uint32_t", "float", "size_t") and pointers == 1:
            kind, slots = "ARRAY", 2 if counted else 1
        else:
            raise ValueError("%s of %s" % (name, function.name))
        out.append((kind, layout, slots))
        i += slots
    return out


def slot(ctype, i):
    if ctype.pointers or ctype.base.endswith("_fn"):
        return "(%s%s%s)a[%d].p" % ("const " if ctype.const else "", ctype.base, " " + "*" * ctype.pointers if ctype.pointers else "", i)
    return "a[%d].d" % i if ctype.base == "double" else "(%s)a[%d].i" % (ctype.base, i)


def result_kind(function):
    result = function.result
    if result.base == "orrery_status" and result.pointers == 0:
        return "STATUS"
    if result.pointers:
        return "STRING" if result.base == "char" else "HANDLE"
    return "VOID" if result.base == "void" else "INTEGER"


def functions(header):
    initialisers = {s.init for s in header.structs.values()}
    out = [banner("//"), "#pragma once", '#include "../c/layouts.h"\n',
           "typedef union { void *p; int64_t i; double d; } slot;",
           "enum { P_ERROR, P_HANDLE, P_NEW, P_OPTIONS, P_RESULT, P_CALLBACK, P_OUT_BYTES, P_OUT_I32, P_OUT_U32, P_OUT_F32, P_OUT_STRUCTS,",
           "       P_I32, P_U32, P_I64, P_U64, P_F64, P_STRING, P_STRINGS, P_BYTES, P_ARRAY, P_USES };",
           "enum { R_STATUS, R_VOID, R_INTEGER, R_STRING, R_HANDLE };",
           "typedef struct { int kind, slots; const struct_layout *layout; } parameter;",
           "typedef struct {",
           "  const char *name;",
           "  int result, n_parameters;",
           "  void (*invoke)(slot *a, slot *result);",
           "  void (*free)(void *);            // frees what HANDLE results and P_NEW give",
           "  const parameter *parameters;",
           "} function;\n"]
    for handle in header.handles:
        out.append("static void free_%s(void *p) { %s_free(p); }" % (handle, handle))
    table = []
    for f in header.functions.values():
        if f.name in initialisers or any(t.array and t.base in header.handles for t, _ in f.params):  # a call works on one handle: calls run at the same time
            continue
        params = parameters(header, f)
        given = ", ".join(slot(t, i) for i, (t, _) in enumerate(f.params))
        kind = result_kind(f)
        store = {"STATUS": "result->i = ", "INTEGER": "result->i = ", "VOID": "", "STRING": "result->p = (void *)",
                 "HANDLE": "result->p = "}[kind]
        made = [t.base for t, _ in f.params if t.base in header.handles and t.pointers == 2]
        made += [f.result.base] if kind == "HANDLE" else []
        out.append("static void invoke_%s(slot *a, slot *result) { (void)a, (void)result, %s%s(%s); }" % (f.name, store, f.name, given)
                   if not store else "static void invoke_%s(slot *a, slot *result) { (void)a, %s%s(%s); }" % (f.name, store, f.name, given))
        if params:
            out.append("static const parameter parameters_%s[] = {%s};" % (f.name, ", ".join(
                "{P_%s, %d, %s}" % (k, n, "&%s_layout" % layout if layout else "0") for k, layout, n in params)))
        table.append('    {"%s", R_%s, %d, invoke_%s, %s, %s},' % (
            f.name, kind, len(params), f.name, "free_" + made[0] if made else "0", "parameters_" + f.name if params else "0"))
    return "\n".join(out + ["\nstatic const function functions[] = {"] + table + ["};"]) + "\n"


def constants(header):
    out = [banner("//"), "'use strict';\n", "exports.ABI_VERSION = %d;" % header.constants["ABI_VERSION"]]
    for prefix, members in header.groups().items():
        out.append("exports.%s = Object.freeze({%s});" % (group_name(prefix), ", ".join("%s: %d" % m for m in members.items())))
    out.append("exports.NAMES = Object.freeze({%s});" % ", ".join("%s: '%s'" % item for item in header.names().items()))
    return "\n".join(out) + "\n"


def hint(f):
    if f.kind == "array":
        return {"orrery_option": "Record<string, string | number>", "orrery_logit_bias": "Record<number, number>"}.get(
            f.type.base, "Array<{token: number; logprob: number}>")
    if f.kind == "fn":
        return {"orrery_log_fn": "(level: number, message: string) => void",
                "orrery_progress_fn": "(done: number, total: number) => unknown",
                "orrery_logits_fn": "(logits: Float32Array, tokens: Int32Array) => unknown"}[f.type.base]
    return HINTS.get(f.kind, "number | bigint" if f.name == "seed" else "number")


def types(header):
    out = [banner("//"), "export const ABI_VERSION: number;"]
    for prefix, members in header.groups().items():
        out.append("export const %s: {" % group_name(prefix))
        for m in members.items():
            out += docs.block(header.constant_doc(prefix, m[0]), "  ") + ["  readonly %s: %d;" % m]
        out.append("};")
    out.append("export type ConstantKind = %s;" % " | ".join("'%s'" % kind for kind in header.names()))
    for struct in header.options() + header.results():
        out.append("export interface %s {" % camel(struct.short))
        for f in struct.visible:
            out += docs.block(header.doc(struct.name, f), "  ")
            out.append("  %s%s: %s;" % (lower_camel(f.name), "?" if struct.is_options else "", hint(f)))
        out.append("}")
    return "\n".join(out) + "\n"
