"""Python: ctypes structures, function signatures, enumerations, exceptions, and types of options and results."""

from . import banner, camel, docs, group_name

CTYPES = {"u8": "c_uint8", "i32": "c_int32", "u32": "c_uint32", "i64": "c_int64", "u64": "c_uint64", "f32": "c_float",
          "f64": "c_double", "usize": "c_size_t", "size": "c_uint32", "cstr": "c_char_p", "text": "c_void_p", "data": "c_void_p", "source": "POINTER(orrery_source)",
          "user": "c_void_p", "strings": "POINTER(c_char_p)"}
HINTS = {"cstr": "str", "source": "object", "opened": "object", "text": "bytes", "bytes": "bytes", "chars": "str", "strings": "Sequence[str]", "f32": "float", "f64": "float"}
SCALARS = {"uint8_t": "c_uint8", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64",
           "float": "c_float", "double": "c_double", "size_t": "c_size_t", "orrery_status": "c_int32"}


def field_type(header, struct, f):
    if f.kind in ("count", "reserved"):
        return CTYPES["u64" if f.bytes == 8 else "u32"]
    if f.kind == "bytes":
        return "c_uint8 * %d" % f.length
    if f.kind == "chars":
        return "c_char * %d" % f.length
    if f.kind in ("array", "uses"):
        return "POINTER(%s)" % f.type.base
    if f.kind in ("handle", "opened"):
        return "c_void_p"
    if f.kind == "fn":
        return f.type.base
    return CTYPES[f.kind]


def argument(header, ctype):
    if ctype.pointers == 0:
        return "None" if ctype.base == "void" else SCALARS.get(ctype.base, ctype.base)
    if ctype.base in header.structs:
        return "POINTER(%s)" % ctype.base
    if ctype.base == "char" and ctype.const and ctype.pointers == 1:
        return "c_char_p"
    if ctype.base in SCALARS and ctype.pointers == 1:
        return "POINTER(%s)" % SCALARS[ctype.base]
    if ctype.base == "char" and ctype.const:
        return "POINTER(c_char_p)"
    return "c_void_p" if ctype.pointers == 1 else "POINTER(c_void_p)"


def signature(header, function):
    return ", ".join(argument(header, t) for t, _ in function.params)


def hint(f):
    if f.kind == "uses":
        return "Sequence[tuple[object, float]]"
    if f.kind == "array":
        return {"orrery_option": "Mapping[str, object]", "orrery_logit_bias": "Mapping[int, float]"}.get(
            f.type.base, "Sequence[tuple]")
    if f.kind == "fn":
        return "Callable"
    return HINTS.get(f.kind, "int")


def fields(header, struct, out):
    out += docs.quoted(header.doc(struct.name) or "%s of the header." % struct.name, "    ") + [""]
    for f in struct.fields:
        if not f.visible and f.kind != "uses":
            continue
        out.append("    %s: %s" % (f.name, hint(f)))
        out += docs.quoted(header.doc(struct.name, f), "    ")


def abi(header):
    out = [banner("#"), "from __future__ import annotations\n",
           "from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t,",
           "                    c_uint8, c_uint32, c_uint64, c_void_p)",
           "from dataclasses import dataclass", "from enum import IntEnum",
           "from typing import Callable, Mapping, Sequence, TypedDict\n",
           "ABI_VERSION = %d\n" % header.constants["ABI_VERSION"]]
    for prefix, members in header.groups().items():
        out.append("\nclass %s(IntEnum):" % group_name(prefix))
        for item in members.items():
            out.append("    %s = %d" % item)
            out += docs.quoted(header.constant_doc(prefix, item[0]), "    ")
        out.append("")
    out.append("""
class Error(Exception):
    \"\"\"A call of the library failed. The fields are those of orrery_error; `doing` names the function.\"\"\"

    status = Status.OK

    def __init__(self, message: str = "", native_code: int = 0, bytes_requested: int = 0, bytes_available: int = 0,
                 offset: int = 0, line: int = 0, column: int = 0, option: str = "", doing: str = "") -> None:
        super().__init__(message)
        self.message, self.native_code, self.option, self.doing = message, native_code, option, doing
        self.bytes_requested, self.bytes_available = bytes_requested, bytes_available
        self.offset, self.line, self.column = offset, line, column

""")
    for name in header.statuses[1:]:
        out += ["class %sError(Error):" % camel(name), "    status = Status.%s\n\n" % name]
    out.append("ERRORS = {c.status: c for c in Error.__subclasses__()}\n")
    for callback in header.callbacks.values():
        if not any(t.base in header.structs for t, _ in callback.params):
            out.append("%s = CFUNCTYPE(%s, %s)" % (callback.name, argument(header, callback.result), signature(header, callback)))
    elements = [s for s in header.structs.values() if s.short == "source"] + header.elements()
    elements += [s for s in header.structs.values() if s.fields[0].kind == "handle"]
    for struct in elements + [s for s in header.structs.values() if s not in elements]:
        out += ["\n", "class %s(Structure):" % struct.name, "    _fields_ = ["]
        out += ['        ("%s", %s),' % (f.name, field_type(header, struct, f)) for f in struct.fields]
        out.append("    ]")
        if struct.init:
            out += ['    INIT = "%s"' % struct.init,
                    "    COUNTS: dict[str, str] = {%s}" % ", ".join('"%s": "%s"' % (f.name, f.count) for f in struct.fields if f.count),
                    "    HANDLES: dict[str, str] = {%s}" % ", ".join('"%s": "%s_free"' % (f.name, f.type.base) for f in struct.fields if f.kind == "opened")]
    out.append("\n")
    for callback in header.callbacks.values():
        if any(t.base in header.structs for t, _ in callback.params):
            out.append("%s = CFUNCTYPE(%s, %s)" % (callback.name, argument(header, callback.result), signature(header, callback)))
    out += ["\n# Functions that name constants, by kind.",
            "NAMES = {%s}" % ",\n         ".join('"%s": "%s"' % item for item in header.names().items())]
    out += ["\nSTRUCTS = [%s]" % ",\n           ".join(header.structs), "",
            "# What each function returns and takes.", "FUNCTIONS = {"]
    for f in header.functions.values():
        result = "c_char_p" if f.result.base == "char" else argument(header, f.result)
        out.append('    "%s": (%s, [%s]),' % (f.name, result, signature(header, f)))
    out.append("}")
    for struct in header.options():
        out += ["\n", "class %s(TypedDict, total=False):" % camel(struct.short)]
        fields(header, struct, out)
    for struct in header.results():
        out += ["\n", "@dataclass(frozen=True)", "class %s:" % camel(struct.short)]
        fields(header, struct, out)
    return "\n".join(out) + "\n"
