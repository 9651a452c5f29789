"""Reads include/orrery.h and include/orrery_lab.h and describes them: constants, structs with offsets, callbacks, functions.

They keep to a small part of C: fixed-width scalars, pointers, arrays of a literal length, no padding. Whatever else
appears there is a ParseError, so that no language silently misses it. Offsets are those of 64-bit machines; the generated
conformance/layout.c lets a C compiler check every one of them.
"""

import re

from . import docs

SCALARS = {  # C type: (kind, bytes)
    "uint8_t": ("u8", 1), "int32_t": ("i32", 4), "uint32_t": ("u32", 4), "int64_t": ("i64", 8), "uint64_t": ("u64", 8),
    "float": ("f32", 4), "double": ("f64", 8), "char": ("char", 1), "size_t": ("usize", 8), "orrery_status": ("i32", 4),
}


class ParseError(Exception):
    """The header has something that this description does not know."""


class Type:
    """A C type: `base` is a scalar, "void" or one of the header's names; `pointers` counts its stars."""

    def __init__(self, text):
        words = text.replace("*", " * ").split()
        self.const = words[0] == "const"
        self.pointers = words.count("*")
        self.array = "*const" in text.replace(" ", "")  # T *const *: pointers that the function reads
        names = [w for w in words if w not in ("const", "*")]
        if len(names) != 1:
            raise ParseError("the type '%s'" % text)
        self.base = names[0]
        self.text = text.strip()

    def __repr__(self):
        return self.text


class Field:
    """One member of a struct. `kind` says how languages treat it:

    a scalar's kind (u8 ... f64); "cstr"; "bytes" (u8[length]); "chars" (char[length]); "fn" and its "user" pointer;
    "strings" (const char *const *) and "array" (pointer to structs), both counted by the field named `count`;
    "source" (const orrery_source *, which languages take as a path at least); "opened" (a handle in options, which languages take as
    their object); "handle" (in an element of an array); "uses" (an array of such
    elements, which languages take in options as objects with a number each); "text" (const char * with `count` bytes); "data" (const void *, the same); "count" (counts another field); "size" (struct_size); "reserved".
    """

    def __init__(self, name, ctype, length):
        self.name, self.type, self.length = name, ctype, length
        self.kind = self.count = self.user = None
        self.offset = self.bytes = self.align = 0

    @property
    def visible(self):
        """Whether users of a language set or read it."""
        return self.kind not in ("size", "reserved", "count", "user", "uses")


class Struct:
    """`init` is the symbol that fills the struct, or None; it takes the caller's size."""

    def __init__(self, name, fields):
        self.name, self.fields = name, fields
        self.init = None
        self.bytes = 0

    @property
    def short(self):
        return self.name[len("orrery_"):]

    @property
    def is_options(self):
        return self.name.endswith("_options")

    @property
    def visible(self):
        return [f for f in self.fields if f.visible]

    @property
    def settable(self):
        """What languages take in options: `visible`, and lists of handles."""
        return [f for f in self.fields if f.visible or f.kind == "uses"]

    def field(self, name):
        return next(f for f in self.fields if f.name == name)


class Function:
    def __init__(self, name, result, params):
        self.name, self.result, self.params = name, result, params  # params: [(Type, name)]


class Header:
    def __init__(self, text):
        self.constants = {}  # name: value, in the header's order
        self.statuses = []   # names of constants
        self.stable = []     # declarations of functions without ORRERY_UNSTABLE
        self.structs, self.handles, self.callbacks, self.functions = {}, [], {}, {}
        self._docs = docs.read(text)
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"//[^\n]*", " ", text)
        self._constants(text)
        body = re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*$", "", text, flags=re.M).replace('extern "C" {', "")
        self._declarations(re.sub(r"}\s*$", "", body.rstrip()))
        self._lay_out()

    def _constants(self, text):
        after_status = False
        for line in text.split("\n"):
            if "orrery_status;" in line:
                after_status = True
            match = re.match(r"#define\s+(orrery_\w+)\s+(orrery_\w+)\s*$", line)
            if match:
                raise ParseError("a macro that renames %s: who binds by symbol does not see it" % match[1])
            match = re.match(r"#define\s+ORRERY_(\w+)\s+(.+?)\s*$", line)
            if match and match[1] not in ("API",):
                value = re.sub(r"(?<=[0-9a-fA-F])[uU]?[lL]*\b", "", match[2])
                if not re.fullmatch(r"[-0-9a-fA-Fx() <|]+", value):
                    raise ParseError("the constant " + line)
                self.constants[match[1]] = eval(value, {})
                if after_status:
                    self.statuses.append(match[1])
            elif after_status and line.strip() and not line.startswith("#") and "orrery_status;" not in line:
                after_status = False

    def _declarations(self, text):
        at = 0
        while text[at:].strip():
            match = re.compile(
                r"\s*(?:(?P<body>(?:typedef\s+)?struct\s+(?P<name>\w+)\s*\{(?P<fields>[^}]*)\}\s*\w*)"
                r"|(?P<other>[^;{]*));").match(text, at)
            if not match:
                raise ParseError("a declaration at '%s'" % text[at:at + 60].strip())
            at = match.end()
            if match["body"]:
                self.structs[match["name"]] = Struct(match["name"], self._fields(match["fields"]))
            else:
                self._declaration(" ".join(match["other"].split()))

    def _declaration(self, text):
        if not text or text == "typedef int32_t orrery_status":
            return
        match = re.fullmatch(r"typedef struct (\w+) \1", text)
        if match:
            self.handles.append(match[1])
            return
        match = re.fullmatch(r"typedef (.+?)\(\*(\w+)\)\((.*)\)", text)
        if match:
            self.callbacks[match[2]] = Function(match[2], Type(match[1]), self._params(match[3]))
            return
        match = re.fullmatch(r"(ORRERY_UNSTABLE )?ORRERY_API (.+?)(\w+)\((.*)\)", text)
        if not match:
            raise ParseError("the declaration '%s'" % text)
        if not match[1]:
            self.stable.append("%s %s(%s)" % (match[2].strip(), match[3], match[4]))
        self.functions[match[3]] = Function(match[3], Type(match[2]), self._params(match[4]))

    def _params(self, text):
        params = []
        for part in text.split(","):
            if part.strip() == "void":
                continue
            match = re.fullmatch(r"(.*?)(\w+)", part.strip())
            params.append((Type(match[1]), match[2]))
        return params

    def _fields(self, text):
        fields = []
        for line in text.split(";"):
            line = " ".join(line.split())
            if not line:
                continue
            match = re.fullmatch(r"((?:const )?\w+[ *](?:[*]|const )*)(.+)", line)
            if not match:
                raise ParseError("the field '%s'" % line)
            for declarator in match[2].split(","):
                name, _, length = declarator.strip().partition("[")
                fields.append(Field(name, Type(match[1]), int(length.rstrip("]")) if length else 0))
        return fields

    def _lay_out(self):
        self.handles = [h for h in self.handles if h not in self.structs]
        for struct in self.structs.values():
            names = {f.name for f in struct.fields}
            offset = 0
            for i, field in enumerate(struct.fields):
                self._kind(struct, field, names, i)
                field.align = field.bytes
                if field.length:
                    field.bytes *= field.length
                if offset % field.align:
                    raise ParseError("padding before %s.%s" % (struct.name, field.name))
                field.offset = offset
                offset += field.bytes
            struct.bytes = offset
            if offset % max(f.align for f in struct.fields):
                raise ParseError("padding at the end of " + struct.name)
            init = struct.name + "_init"
            if init in self.functions:
                struct.init = init
                if [t.text for t, _ in self.functions[init].params] != [struct.name + " *", "size_t"]:
                    raise ParseError(init + " does not take the struct and its size")
        for struct in self.structs.values():
            for field in struct.fields:
                if field.count:
                    struct.field(field.count).kind = "count"

    def _kind(self, struct, field, names, i):
        ctype, name = field.type, field.name
        if ctype.pointers == 0 and ctype.base in SCALARS:
            field.kind, field.bytes = SCALARS[ctype.base]
            if field.length:
                field.kind = {"u8": "bytes", "char": "chars"}[field.kind]
            elif name == "struct_size":
                field.kind = "size"
            elif name.startswith("reserved"):
                field.kind = "reserved"
            return
        field.bytes = 8
        if ctype.pointers == 0 and ctype.base in self.callbacks:
            field.kind, field.user = "fn", struct.fields[i + 1].name
        elif ctype.base == "void" and ctype.pointers == 1 and name + "_bytes" in names:
            field.kind, field.count = "data", name + "_bytes"
        elif ctype.base == "void" and ctype.pointers == 1:
            field.kind = "user"
        elif ctype.base == "orrery_source" and ctype.pointers == 1:
            field.kind = "source"
        elif ctype.base == "char" and ctype.pointers == 1:
            field.kind = "cstr"
            if name + "_bytes" in names:
                field.kind, field.count = "text", name + "_bytes"
        elif ctype.base == "char" and ctype.pointers == 2 and "n_" + name in names:
            field.kind, field.count = "strings", "n_" + name
        elif ctype.base in self.handles and ctype.pointers == 1:
            field.kind = "opened" if struct.is_options else "handle"
        elif ctype.base in self.structs and ctype.pointers == 1 and "n_" + name in names:
            holds = any(f.type.base in self.handles for f in self.structs[ctype.base].fields)
            field.kind, field.count = "uses" if holds else "array", "n_" + name
        else:
            raise ParseError("the field %s of %s" % (name, struct.name))

    def doc(self, name, field=None):
        """The header's comment on a constant ("KV_K8V4"), a struct, its field or a function; "" where it has none."""
        return self._docs.get("%s.%s" % (name, field.name) if field else name, "")

    def constant_doc(self, prefix, name):
        return self.doc(name if prefix == "STATUS" else prefix + "_" + name)

    def groups(self):
        """Enumerations by the first word of their constants: {"KV": {"F16": 0, ...}, "STATUS": {"OK": 0, ...}}."""
        groups = {"STATUS": {name: self.constants[name] for name in self.statuses}}
        for name, value in self.constants.items():
            prefix, _, rest = name.partition("_")
            if name not in self.statuses and prefix not in ("VERSION", "ABI"):
                groups.setdefault(prefix, {})[rest] = value
        return groups

    def names(self):
        """Functions that name constants, by kind: {"kv_type": "orrery_kv_type_name", ...}; orrery_status_name is none of them."""
        return {name[len("orrery_"):-len("_name")]: name for name in self.functions
                if name.endswith("_name") and name != "orrery_status_name"}

    def named(self):
        """Constants of which orrery_KIND_name() gives the name."""
        prefixes = {"STATUS", "KV", "ROPE", "LOAD", "OVERFLOW", "EVENT", "FINISH", "RESERVOIR", "PRIORITY", "LOG", "REGION",
                    "SPECULATE", "GPU", "SOURCE", "LAYER", "POOLING"}
        return [name if prefix == "STATUS" else prefix + "_" + name for prefix, members in self.groups().items()
                if prefix in prefixes for name in members]

    def elements(self):
        """Structs without struct_size: elements of arrays."""
        return [s for s in self.structs.values() if s.fields[0].kind not in ("size", "handle")]

    def options(self):
        return [s for s in self.structs.values() if s.is_options]

    def results(self):
        """Structs that a function fills; orrery_error, orrery_event and orrery_source, which every language treats by hand, are not."""
        return [s for s in self.structs.values()
                if s.fields[0].kind == "size" and not s.is_options and s.short not in ("error", "event", "source")]


def read(*paths):
    """Headers one after another, as if they were one."""
    texts = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            texts.append(file.read().replace("#ifdef __cplusplus\n}\n#endif\n", ""))
    return Header("\n".join(texts))
