"""Go: cgo reads the header itself; generated are constants, options and results as Go values, and the way between the two."""

import re

from . import banner, camel, docs, group_name

KINDS = {"i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64", "f32": "float32", "f64": "float64"}
C_KINDS = {"i32": "int32_t", "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double"}
HOOKS = {"orrery_log_fn": "func(level LogLevel, message string)", "orrery_progress_fn": "func(done, total uint64) bool",
         "orrery_logits_fn": "func(logits []float32, tokens []int32) bool"}


def group_of(header, struct, f):
    """The enumeration that a field's comment names: "ORRERY_KV_". A field that counts from one, "1 + ORRERY_KV_", is a number."""
    doc = header.doc(struct.name, f) or ""
    found = {p for p in re.findall(r"(?<!1 \+ )\bORRERY_([A-Z]+)_", doc) if p in header.groups()}
    return found.pop() if f.kind in ("i32", "u32") and len(found) == 1 and "1 + ORRERY_" not in doc else None


def number_type(header, struct, f):
    group = group_of(header, struct, f)
    return group_name(group) if group else KINDS[f.kind]


def name_functions(header):
    """Enumerations with a name function: {"KvType": ("kv_type", "orrery_kv_type_name"), ...}."""
    return {camel(re.sub("_kind$", "", kind)): (kind, function) for kind, function in header.names().items()}


def enumeration(header, name):
    """A type for the constants of an enumeration, which knows their names. Status is written by hand."""
    if name == "Status":
        return []
    kind, function = name_functions(header).get(name, (None, None))
    base = header.functions[function].params[0][0].base if kind else "uint32_t"
    what = "is one of the constants %s...%s" % (name, "" if kind else ", or several of them, added")
    out = ["// %s %s" % (name, what), "type %s %s\n" % (name, base[:-len("_t")])]
    if kind:
        out += ["// String is the constant's name, as ConstantName has it.", "func (v %s) String() string { return ConstantName(\"%s\", int64(v)) }\n" % (name, kind)]
    return out


def go_type(f):
    if f.kind in ("cstr", "chars", "source"):
        return "string"
    if f.kind == "opened":
        return "*" + camel(f.type.base[len("orrery_"):])
    if f.kind == "strings":
        return "[]string"
    if f.kind in ("array", "uses"):
        return "[]" + camel(f.type.base[len("orrery_"):])
    if f.kind == "fn":
        return HOOKS[f.type.base]
    return "[]byte" if f.kind == "bytes" else KINDS[f.kind]


def trampoline(f):
    return "goOrrery" + camel(f.type.base[len("orrery_"):-len("_fn")])


def init(s):
    return "C.%s(p, C.sizeof_%s)" % (s.init, s.name)


def preamble(header):
    """The exported Go functions, and a setter for each callback: cgo has no C function pointers."""
    out = ["/*", "#include <stdlib.h>", "#include <orrery_lab.h>"]
    for callback in header.callbacks.values():
        if callback.name in HOOKS:
            out.append("extern %s goOrrery%s(%s);" % (callback.result.text, camel(callback.name[len("orrery_"):-len("_fn")]), ", ".join(
                t.text.replace("const ", "") for t, _ in callback.params)))
    for s in header.options():
        for f in s.fields:
            if f.kind == "fn":
                out.append("static void set_%s_%s(%s *o, void *user) { o->%s = (%s)%s; o->%s = user; }" % (
                    s.short, f.name, s.name, f.name, f.type.base, trampoline(f), f.user))
    return "\n".join(out + ["*/", 'import "C"'])


def types(header):
    out = [banner("//"), "package orrery\n", preamble(header), ""]
    out += ['import "unsafe"\n', "const abiVersion = %d\n" % header.constants["ABI_VERSION"]]
    for prefix, members in header.groups().items():
        name = group_name(prefix)
        out += enumeration(header, name)
        out.append("const (")
        for n, v in members.items():
            out += docs.wrap(header.constant_doc(prefix, n), "\t// ")
            out.append("\t%s%s %s = %d" % (name, camel(n), name, v))
        out.append(")\n")
    out += ["// ConstantName is the name of a constant; kind: as in orrery_KIND_name. Of a kind that there is not it is empty.",
            "func ConstantName(kind string, value int64) string {", "\tswitch kind {"]
    for kind, function in header.names().items():
        out += ['\tcase "%s":' % kind, "\t\treturn C.GoString(C.%s(C.%s(value)))" % (function, header.functions[function].params[0][0].base)]
    out += ["\t}", '\treturn ""', "}\n"]
    for s in header.elements():
        if s.short == "token_logprob":
            continue
        out.append("type %s struct {" % camel(s.short))
        fields(header, s, s.fields, out)
        out.append("}\n")
    for s in header.options():
        options(header, s, out)
    for s in header.results():
        results(header, s, out)
    return align("\n".join(out))


def fields(header, struct, shown, out):
    for f in shown:
        out += docs.wrap(header.doc(struct.name, f), "\t// ")
        out.append("\t%s %s" % (camel(f.name), number_type(header, struct, f) if f.kind in KINDS else go_type(f)))


def align(text):
    """Columns as gofmt has them: names and types of a struct's fields, names and values of constants."""
    lines, block, out = text.split("\n"), [], []

    def flush():
        rows = [line.strip().split(" ", 1) for line in block]
        width = max((len(r[0]) for r in rows), default=0)
        if rows and all(" = " in r[1] for r in rows):
            typed = max(len(r[1].split("= ")[0].strip()) for r in rows)
            out.extend("\t%s %s= %s" % (r[0].ljust(width), (r[1].split("= ")[0].strip().ljust(typed) + " ") if typed else "",
                                         r[1].split("= ")[1]) for r in rows)
        else:
            out.extend("\t%s %s" % (r[0].ljust(width), r[1]) for r in rows)
        block.clear()

    inside = False
    for line in lines:
        if line.startswith("type ") and line.endswith("struct {") or line == "const (":
            inside = True
            out.append(line)
        elif inside and line in ("}", ")"):
            flush()
            inside = False
            out.append(line)
        elif inside and line.startswith("\t//"):
            flush()
            out.append(line)
        elif inside:
            block.append(line)
        else:
            out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"


def options(header, s, out):
    name = camel(s.short)
    out.append("// %s is %s of the header. Begin with Default%s(); a nil pointer means the defaults." % (name, s.name, name))
    out.append("type %s struct {" % name)
    fields(header, s, s.settable, out)
    out += ["}\n", "// Default%s has the library's defaults." % name, "func Default%s() %s {" % (name, name)]
    out += ["\tp := new(C.%s)" % s.name, "\t" + init(s), "\tcheckSize(uint32(p.struct_size), C.sizeof_%s)" % s.name, "\tvar o %s" % name]
    out += ["\to.%s = %s(p.%s)" % (camel(f.name), number_type(header, s, f), f.name) for f in s.settable if f.kind in KINDS]
    out += ["\treturn o", "}\n", "func (o *%s) c(k *keep) *C.%s {" % (name, s.name)]
    out += ["\tp := (*C.%s)(k.alloc(C.sizeof_%s))" % (s.name, s.name), "\t" + init(s),
            "\tcheckSize(uint32(p.struct_size), C.sizeof_%s)" % s.name, "\tif o == nil {", "\t\treturn p", "\t}"]
    for f in s.settable:
        go = "o." + camel(f.name)
        if f.kind == "cstr":
            out += ["\tif %s != \"\" {" % go, "\t\tp.%s = (*C.char)(k.str(%s))" % (f.name, go), "\t}"]
        elif f.kind == "source":
            out += ["\tif %s != \"\" {" % go, "\t\tp.%s = k.source(%s)" % (f.name, go), "\t}"]
        elif f.kind == "opened":
            out += ["\tif %s != nil {" % go, "\t\tp.%s = (*C.%s)(k.hold(%s.handle))" % (f.name, f.type.base, go), "\t}"]
        elif f.kind in ("strings", "array"):
            count = s.field(f.count)
            element = "*C.char" if f.kind == "strings" else "C." + f.type.base
            out += ["\tif n := len(%s); n > 0 {" % go,
                    "\t\tp.%s = (*%s)(k.alloc(n * int(unsafe.Sizeof(*p.%s))))" % (f.name, element, f.name),
                    "\t\tp.%s = C.uint%d_t(n)" % (f.count, count.bytes * 8),
                    "\t\tfor i, item := range %s {" % go,
                    "\t\t\tto := (*%s)(unsafe.Add(unsafe.Pointer(p.%s), i*int(unsafe.Sizeof(*p.%s))))" % (element, f.name, f.name)]
            if f.kind == "strings":
                out.append("\t\t\t*to = (*C.char)(k.str(item))")
            else:
                for e in header.structs[f.type.base].fields:
                    value = "item." + camel(e.name)
                    out.append("\t\t\tto.%s = %s" % (e.name, "(*C.char)(k.str(%s))" % value if e.kind == "cstr"
                                                      else "C.%s(%s)" % (C_KINDS[e.kind], value)))
            out += ["\t\t}", "\t}"]
        elif f.kind == "uses":
            out += ["\tif n := len(%s); n > 0 {" % go, "\t\tp.%s = k.uses(%s)" % (f.name, go),
                    "\t\tp.%s = C.uint%d_t(n)" % (f.count, s.field(f.count).bytes * 8), "\t}"]
        elif f.kind == "fn":
            out += ["\tif %s != nil {" % go, "\t\tC.set_%s_%s(p, k.callback(%s))" % (s.short, f.name, go), "\t}"]
        else:
            out.append("\tp.%s = C.%s(%s)" % (f.name, C_KINDS[f.kind], go))
    out += ["\treturn p", "}\n"]


def results(header, s, out):
    name = camel(s.short)
    out += ["// %s is %s of the header." % (name, s.name), "type %s struct {" % name]
    fields(header, s, s.visible, out)
    out += ["}\n", "func fill%s(call func(*C.%s) error) (%s, error) {" % (name, s.name, name)]
    out += ["\tp, r := new(C.%s), %s{}" % (s.name, name), "\t" + init(s), "\tcheckSize(uint32(p.struct_size), C.sizeof_%s)" % s.name,
            "\tif err := call(p); err != nil {", "\t\treturn r, err", "\t}"]
    for f in s.visible:
        value = {"cstr": "C.GoString(p.%s)", "chars": "C.GoString(&p.%s[0])", "bytes": "C.GoBytes(unsafe.Pointer(&p.%%s), %d)" % f.length}.get(
            f.kind, "%s(p.%%s)" % (number_type(header, s, f) if f.kind in KINDS else None)) % f.name
        out.append("\tr.%s = %s" % (camel(f.name), value))
    out += ["\treturn r, nil", "}\n"]
