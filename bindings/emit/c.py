"""C: tables of every struct's fields by name (for the Node addon and the conformance runner), and a check of offsets."""

from . import banner

KINDS = ["i32", "u32", "i64", "u64", "f32", "f64", "cstr", "source", "opened", "text", "data", "bytes", "chars", "strings", "array", "fn"]


def layouts(header):
    out = [banner("//"), "#pragma once\n", "#include <orrery_lab.h>", "#include <string.h>\n",
           "// How a field is held; `text`, `strings` and `array` have their length in the field at count_offset.",
           "enum { %s };" % ", ".join("FIELD_" + k.upper() for k in KINDS), "",
           "typedef struct struct_layout struct_layout;",
           "typedef struct field_layout {",
           "  const char *name;",
           "  int kind;",
           "  uint32_t offset, bytes;                // of an array: of all of it",
           "  uint32_t count_offset, count_bytes;    // of the field that counts, 0: none",
           "  uint32_t user_offset;                  // FIELD_FN: of its user pointer",
           "  const struct_layout *element;          // FIELD_ARRAY",
           "  const char *callback;                  // FIELD_FN: its type",
           "} field_layout;",
           "struct struct_layout {",
           "  const char *name;                      // without orrery_",
           "  uint32_t bytes;",
           "  uint32_t n_fields;                     // those that users see",
           "  const field_layout *fields;",
           "  void (*init)(void *);                  // NULL for elements of arrays",
           "};", ""]
    elements = header.elements()
    ordered = elements + [s for s in header.structs.values() if s not in elements and s.fields[0].kind != "handle"]
    for struct in ordered:
        out.append("static const field_layout %s_fields[] = {" % struct.short)
        for f in struct.visible:
            count = struct.field(f.count) if f.count else None
            out.append('    {"%s", FIELD_%s, %d, %d, %d, %d, %d, %s, %s},' % (
                f.name, f.kind.upper(), f.offset, f.bytes, count.offset if count else 0, count.bytes if count else 0,
                struct.field(f.user).offset if f.user else 0,
                "&%s_layout" % f.type.base[len("orrery_"):] if f.kind == "array" else "0",
                '"%s"' % f.type.base if f.kind == "fn" else "0"))
        out.append("};")
        init = "0"
        if struct.init:
            init = "init_" + struct.short
            out.append("static void %s(void *p) { %s(p, sizeof(%s)); }" % (init, struct.init, struct.name))
        out.append('static const struct_layout %s_layout = {"%s", %d, %d, %s_fields, %s};\n' % (
            struct.short, struct.short, struct.bytes, len(struct.visible), struct.short, init))
    out += ["/* The name of a constant; kind: as in orrery_KIND_name(). NULL: there is no such kind. */",
            "static const char *constant_name(const char *kind, int64_t value) {"]
    for kind, function in header.names().items():
        out.append('  if (strcmp(kind, "%s") == 0) return %s((%s)value);' % (kind, function, header.functions[function].params[0][0].base))
    out += ["  return 0;", "}\n"]
    out.append("static const struct_layout *const all_layouts[] = {%s};" % ", ".join("&%s_layout" % s.short for s in ordered))
    return "\n".join(out) + "\n"


def layout_check(header):
    """A program of static assertions: the C compiler agrees with every offset and every constant of the description."""
    out = [banner("//"), "#include <orrery_lab.h>\n"]
    for struct in header.structs.values():
        out.append('_Static_assert(sizeof(%s) == %d, "size");' % (struct.name, struct.bytes))
        for f in struct.fields:
            out.append('_Static_assert(offsetof(%s, %s) == %d, "offset");' % (struct.name, f.name, f.offset))
    for name, value in header.constants.items():
        out.append('_Static_assert(ORRERY_%s == %d, "value");' % (name, value))
    return "\n".join(out) + "\n"
