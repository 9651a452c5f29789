"""Rust: the orrery-sys crate, and in the orrery crate options and results as Rust values."""

from . import banner, camel, docs, group_name

SCALARS = {"uint8_t": "u8", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64", "uint64_t": "u64", "float": "f32",
           "double": "f64", "char": "c_char", "size_t": "usize", "void": "c_void"}
KINDS = {"u8": "u8", "i32": "i32", "u32": "u32", "i64": "i64", "u64": "u64", "f32": "f32", "f64": "f64"}
SIGNED = ("STATUS", "LOG", "PRIORITY")
HOOKS = {"orrery_log_fn": "LogFn", "orrery_progress_fn": "ProgressFn", "orrery_logits_fn": "LogitsFn"}


def ctype(t):
    base = SCALARS.get(t.base, t.base)
    for i in range(t.pointers):
        base = ("*const " if t.const or (t.array and i > 0) else "*mut ") + base
    return base


def field_type(f):
    if f.length:
        return "[%s; %d]" % (SCALARS[f.type.base], f.length)
    return ctype(f.type)


def parameters(function, name=True):
    return ", ".join(("%s: " % n.replace("type", "type_") if name else "") + ctype(t) for t, n in function.params)


def result(function):
    r = function.result
    return "" if r.base == "void" and not r.pointers else " -> " + ctype(r)


def sys(header):
    out = [banner("//"), "#![allow(non_camel_case_types)]", "use std::os::raw::{c_char, c_void};\n", "pub type orrery_status = i32;"]
    for prefix, members in header.groups().items():
        for name, value in members.items():
            full = name if prefix == "STATUS" else prefix + "_" + name
            out += docs.wrap(header.doc(full), "/// ")
            out.append("pub const ORRERY_%s: %s = %d;" % (full, "i32" if prefix in SIGNED else "u32", value))
    out.append("pub const ORRERY_ABI_VERSION: u32 = %d;\n" % header.constants["ABI_VERSION"])
    for handle in header.handles:
        out.append("#[repr(C)]\npub struct %s {\n    _private: [u8; 0],\n}" % handle)
    for c in header.callbacks.values():
        out.append("pub type %s = Option<unsafe extern \"C\" fn(%s)%s>;" % (c.name, parameters(c), result(c)))
    for s in header.structs.values():
        out.append("\n#[repr(C)]\n#[derive(Clone, Copy)]\npub struct %s {" % s.name)
        for f in s.fields:
            out += docs.wrap(header.doc(s.name, f), "    /// ")
            out.append("    pub %s: %s," % (f.name if f.name != "type" else "r#type", field_type(f)))
        out.append("}\nconst _: () = assert!(std::mem::size_of::<%s>() == %d);" % (s.name, s.bytes))
    out.append('\n#[cfg_attr(not(feature = "vendored"), link(name = "orrery"))]\n#[cfg_attr(feature = "vendored", link(name = "orrery", kind = "static"))]\nextern "C" {')
    for f in header.functions.values():
        out += docs.wrap(header.doc(f.name), "    /// ")
        out.append("    pub fn %s(%s)%s;" % (f.name, parameters(f), result(f)))
    out.append("}")
    return "\n".join(out) + "\n"


def element_fields(header, f):
    return header.structs[f.type.base].fields


def rust_type(header, f):
    if f.kind in ("cstr", "source"):
        return "Option<String>"
    if f.kind == "opened":
        return "Option<Arc<%s>>" % camel(f.type.base[len("orrery_"):])
    if f.kind == "uses":
        return "Vec<(Arc<%s>, f32)>" % camel(element_fields(header, f)[0].type.base[len("orrery_"):])
    if f.kind == "strings":
        return "Vec<String>"
    if f.kind == "array":
        return "Vec<(%s)>" % ", ".join("String" if e.kind == "cstr" else KINDS[e.kind] for e in element_fields(header, f))
    if f.kind == "fn":
        return "Option<%s>" % HOOKS[f.type.base]
    return KINDS[f.kind]


def init_call(struct):
    return "raw::init(|p: *mut sys::{0}, bytes| unsafe {{ sys::{1}(p, bytes) }})".format(struct.name, struct.init)


def options(header, s, out):
    name = camel(s.short)
    out.append("\n/// `%s` of the header. `..Default::default()` fills in the library's defaults.\npub struct %s {" % (s.name, name))
    for f in s.settable:
        out += docs.wrap(header.doc(s.name, f), "    /// ")
        out.append("    pub %s: %s," % (f.name, rust_type(header, f)))
    out.append("}\n\nimpl Default for %s {\n    fn default() -> Self {\n        let raw = %s;\n        %s {" % (name, init_call(s), name))
    for f in s.settable:
        value = {"cstr": "None", "source": "None", "opened": "None", "fn": "None", "strings": "Vec::new()", "array": "Vec::new()", "uses": "Vec::new()"}.get(f.kind, "raw." + f.name)
        out.append("            %s%s," % (f.name + ": ", value))
    out.append("        }\n    }\n}\n\nimpl %s {" % name)
    out.append("    pub(crate) fn into_raw(self, keep: &mut Keep) -> Result<sys::%s> {\n        let mut raw = %s;" % (s.name, init_call(s)))
    for f in s.settable:
        if f.kind == "cstr":
            out.append("        if let Some(text) = &self.%s {\n            raw.%s = keep.string(text)?;\n        }" % (f.name, f.name))
        elif f.kind == "source":
            out.append("        if let Some(path) = &self.%s {\n            raw.%s = keep.source(path)?;\n        }" % (f.name, f.name))
        elif f.kind == "opened":
            out.append("        if let Some(opened) = &self.%s {\n            raw.%s = opened.raw;\n            keep.hold(opened.clone());\n        }" % (f.name, f.name))
        elif f.kind == "strings":
            out.append("        raw.%s = keep.strings(&self.%s)?;\n        raw.%s = self.%s.len() as _;" % (f.name, f.name, f.count, f.name))
        elif f.kind == "array":
            fields = element_fields(header, f)
            names = [e.name for e in fields]
            out.append("        let mut items = Vec::new();\n        for (%s) in &self.%s {" % (", ".join(names), f.name))
            out.append("            items.push(sys::%s { %s });\n        }" % (f.type.base, ", ".join(
                "%s: %s" % (e.name, "keep.string(%s)?" % e.name if e.kind == "cstr" else "*" + e.name) for e in fields)))
            out.append("        raw.%s = items.len() as _;\n        raw.%s = keep.array(items);" % (f.count, f.name))
        elif f.kind == "uses":
            handle, factor = element_fields(header, f)[0].name, next(e.name for e in element_fields(header, f) if e.kind == "f32")
            out.append("        let mut items = Vec::new();\n        for (opened, %s) in &self.%s {" % (factor, f.name))
            out.append("            keep.hold(opened.clone());")
            out.append("            items.push(sys::%s { %s });\n        }" % (f.type.base, ", ".join(
                {handle: "%s: opened.raw", factor: "%s: *" + factor}.get(e.name, "%s: std::ptr::null()" if e.type.pointers else "%s: 0") % e.name
                for e in element_fields(header, f))))
            out.append("        raw.%s = items.len() as _;\n        raw.%s = keep.array(items);" % (f.count, f.name))
        elif f.kind == "fn":
            out.append("        if let Some(function) = self.%s {\n            let (call, user) = keep.%s(function);" % (f.name, f.type.base))
            out.append("            raw.%s = call;\n            raw.%s = user;\n        }" % (f.name, f.user))
        else:
            out.append("        raw.%s = self.%s;" % (f.name, f.name))
    out.append("        Ok(raw)\n    }\n")
    out.append("    /// Sets a field by its name from text, as a command line gives it; lists grow by one: \"NAME VALUE\" for pairs.")
    out.append("    /// False: there is no such field, or the text does not fit it.")
    out.append("    pub fn set(&mut self, field: &str, text: &str) -> bool {\n        match field {")
    for f in s.settable:
        if f.kind in ("cstr", "source"):
            out.append('            "%s" => self.%s = Some(text.to_owned()),' % (f.name, f.name))
        elif f.kind == "strings":
            out.append('            "%s" => self.%s.push(text.to_owned()),' % (f.name, f.name))
        elif f.kind == "array":
            out.append('            "%s" => match raw::pair(text) {\n                Some(pair) => self.%s.push(pair),\n'
                       '                None => return false,\n            },' % (f.name, f.name))
        elif f.kind not in ("fn", "opened", "uses"):
            out.append('            "%s" => match text.parse() {\n                Ok(value) => self.%s = value,\n'
                       '                Err(_) => return false,\n            },' % (f.name, f.name))
    out.append("            _ => return false,\n        }\n        true\n    }\n}")


def results(header, s, out):
    name = camel(s.short)
    types = {"cstr": "String", "chars": "String", "bytes": "Vec<u8>"}
    out.append("\n/// `%s` of the header.\n#[derive(Clone, Debug, PartialEq)]\npub struct %s {" % (s.name, name))
    for f in s.visible:
        out += docs.wrap(header.doc(s.name, f), "    /// ")
        out.append("    pub %s: %s," % (f.name, types.get(f.kind) or KINDS[f.kind]))
    out.append("}\n\nimpl %s {\n    pub(crate) fn fill(call: impl FnOnce(*mut sys::%s) -> Result<()>) -> Result<Self> {" % (name, s.name))
    out.append("        let mut raw = %s;\n        call(&mut raw)?;\n        Ok(%s {" % (init_call(s), name))
    for f in s.visible:
        value = {"cstr": "raw::text(raw.%s)", "chars": "raw::text(raw.%s.as_ptr())", "bytes": "raw.%s.to_vec()"}.get(f.kind, "raw.%s") % f.name
        out.append("            %s: %s," % (f.name, value))
    out.append("        })\n    }\n\n    /// A field by its name.\n    pub fn get(&self, field: &str) -> Option<Value> {\n        Some(match field {")
    for f in s.visible:
        value = {"cstr": "Value::Text(self.%s.clone())", "chars": "Value::Text(self.%s.clone())", "bytes": "Value::Bytes(self.%s.clone())", "f32": "Value::Float(self.%s.into())",
                 "f64": "Value::Float(self.%s)"}.get(f.kind, "Value::Integer(self.%s.into())") % f.name
        out.append('            "%s" => %s,' % (f.name, value))
    out.append("            _ => return None,\n        })\n    }\n}")


def types(header):
    out = [banner("//"), "use crate::raw::{self, Keep};",
           "use crate::{Adapter, Folder, LogFn, LogitsFn, Model, ProgressFn, Result, Status, Value};\nuse orrery_sys as sys;\nuse std::sync::Arc;\n"]
    groups = header.groups()
    out.append("impl Status {")
    for item in groups.pop("STATUS").items():
        out += docs.wrap(header.constant_doc("STATUS", item[0]), "    /// ")
        out.append("    pub const %s: Status = Status(%d);" % item)
    out.append("}")
    for prefix, members in groups.items():
        name = group_name(prefix)
        snake = "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
        out.append("pub mod %s {" % snake)
        for n, v in members.items():
            out += docs.wrap(header.constant_doc(prefix, n), "    /// ")
            out.append("    pub const %s: %s = %d;" % (n, "i32" if prefix in SIGNED else "u32", v))
        out.append("}")
    out += ["\n/// The name of a constant; kind: as in `orrery_KIND_name`. None: there is no such kind.",
            "pub fn constant_name(kind: &str, value: i64) -> Option<String> {", "    let name = unsafe {", "        match kind {"]
    for kind, function in header.names().items():
        out.append('            "%s" => sys::%s(value as %s),' % (kind, function, SCALARS[header.functions[function].params[0][0].base]))
    out += ["            _ => return None,", "        }", "    };", "    Some(raw::text(name))", "}"]
    for s in header.options():
        options(header, s, out)
    for s in header.results():
        results(header, s, out)
    return "\n".join(out) + "\n"
