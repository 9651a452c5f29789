"""Conformance, Python: carries out the steps of a script, prints what they give. ../../conformance/README.md has the verbs."""

import ctypes
import json
import math
import sys
import threading

import orrery
from orrery import _abi

unescape = lambda text: text.replace("\\n", "\n")  # noqa: E731
yes = lambda value: "yes" if value else "no"  # noqa: E731
things, pending, calls = {}, {}, {}  # handles by name; options of the next call, by struct; how often callbacks were called

class Raised(Exception):
    """What the callback `raise` raises."""

def quote(data):
    data = data.encode() if isinstance(data, str) else data
    return '"%s"' % "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else "\\x%02x" % b for b in data)

def field(value):
    return quote(value) if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)

def show(event):
    if isinstance(event, orrery.Progress):
        print("progress", event.done, event.total)
    elif isinstance(event, orrery.Text):
        print("text", quote(event.text))
    elif isinstance(event, orrery.Token):
        near = ["near %d" % math.floor(.5 - event.logprob)] if event.top else []
        print("token", event.token, quote(event.bytes), *near, *[token for token, _ in event.top])
    elif isinstance(event, orrery.Reasoning):
        print("reasoning", quote(event.text))
    elif isinstance(event, orrery.Call):
        print("call", event.call, event.name)
    elif isinstance(event, orrery.Arguments):
        print("arguments", event.call, event.name, quote(event.text))
    elif isinstance(event, orrery.CallEnd):
        print("call_end", event.call, event.name, event.id)
    else:
        print("done", event.finish_reason, event.stop_index, event.prompt_tokens, event.reused_tokens, event.generated_tokens,
              *(["complete"] if event.complete else []))
    return isinstance(event, orrery.Done)

def drain(generation, limit):
    while limit and not show(generation.next()):
        limit -= 1

def counted(limit):
    seen = []
    return lambda event: seen.append(show(event)) or len(seen) == limit

def leave_early(session, limit):
    for i, event in enumerate(session.generate(**take("generate"))):
        show(event)
        if i + 1 == limit:
            break

def answer(session):
    events = list(session.generate(**take("generate")))
    print(quote("".join(e.text for e in events if isinstance(e, orrery.Text))), events[-1].finish_reason)

def functions(session, most_turns, name, schema):
    def run(**given):
        print("function", name)
        return "seen by " + name
    text = session.run_tools(orrery.Function(name, "", run, json.loads(schema)), most_turns=most_turns, template=take("template"), **take("generate"))
    print(quote(text))

take = lambda struct: pending.pop(struct, {})  # noqa: E731

def set_option(name, words):
    struct, name = name.split(".")
    given, kind = pending.setdefault(struct, {}), dict(getattr(_abi, "orrery_%s_options" % struct)._fields_)[name]
    text = unescape(" ".join(words))
    if name == "stop":
        given.setdefault(name, []).append(text)
    elif name in ("policy_options", "logit_bias"):
        convert = str if name == "policy_options" else float
        given.setdefault(name, {})[words[0] if convert is str else int(words[0])] = convert(words[1])
    elif kind is ctypes.c_void_p:
        given[name] = things[text]
    else:
        given[name] = text if kind in (ctypes.c_char_p, ctypes.POINTER(_abi.orrery_source)) else (float if kind in (ctypes.c_float, ctypes.c_double) else int)(text)

def callback(name, action, numbers):
    struct, name = name.split(".")
    calls[name] = 0

    def function(*arguments):
        calls[name] += 1
        if action == "raise":
            raise Raised
        if action == "force":
            arguments[0][int(numbers[(calls[name] - 1) % len(numbers)])] = 1e9
        return action == "stop"
    pending.setdefault(struct, {})[name] = function

def fields_of(thing):
    return thing if isinstance(thing, orrery.PlanResult) else thing.stats() if isinstance(thing, orrery.Session) else thing.info()

def compare(fields, left, right):
    a, b = (int(x) if x.isdigit() else getattr(fields, x) for x in (left, right))
    print("<" if a < b else ">" if a > b else "=")

largest = lambda row: max(range(len(row)), key=lambda i: row[i])  # noqa: E731

def evaluate(session, rows, tokens):
    logits, n = session.evaluate(tokens, rows), 2048
    if rows:
        print("largest", *[largest(logits[i * n:(i + 1) * n]) for i in range(len(tokens))])

def cancel(generation):
    threading.Thread(target=generation.cancel).start()
    [t.join() for t in threading.enumerate() if t is not threading.current_thread()]

def regions(plan, path):
    all = orrery.plan_regions(path, take("runtime"), take("model"), take("session"))
    print(*[quote(r.name) for r in all], yes(sum(r.device_bytes for r in all) == plan.device_bytes))

def with_fd(path, f, offset=0, n_bytes=0):
    with open(path, "rb") as file:
        return f(orrery.Descriptor(file.fileno(), offset, n_bytes))

def data_of(path):
    with open(path, "rb") as file:
        return file.read()

plan_options = lambda: (take("runtime"), take("model"), take("session"))  # noqa: E731

def embed(model, texts):
    e = model.embed(texts, **take("embed"))
    products = [sum(a * b for a, b in zip(e.vectors[0], v)) for v in e.vectors[1:]]
    print(len(e.vectors), len(e.vectors[0]), *e.n_tokens, "nearest", 1 + largest(products))

def step(verb, w, rest, t):
    """`w`: the arguments as words; `rest(i)`: from the i-th on, as text; `t`: handles by name."""
    make = {
        "runtime": lambda: orrery.Runtime(**take("runtime")), "vocab": lambda: orrery.Vocab(rest(1)),
        "model": lambda: t[w[1]].open(rest(2), **take("model")), "model_fd": lambda: with_fd(rest(2), lambda fd: t[w[1]].open(fd, **take("model"))),
        "model_part": lambda: with_fd(rest(4), lambda fd: t[w[1]].open(fd, **take("model")), int(w[2]), int(w[3])),
        "model_memory": lambda: t[w[1]].open(orrery.Memory(data_of(rest(2))), **take("model")), "vocab_of": lambda: t[w[1]].vocab(),
        "vocab_fd": lambda: with_fd(rest(1), orrery.Vocab), "vocab_memory": lambda: orrery.Vocab(orrery.Memory(data_of(rest(1)))),
        "plan_fd": lambda: with_fd(rest(1), lambda fd: orrery.plan(fd, *plan_options())),
        "plan_memory": lambda: orrery.plan(orrery.Memory(data_of(rest(1))), *plan_options()),
        "adapter": lambda: t[w[1]].adapter(rest(2)), "folder": lambda: orrery.Folder(rest(2), int(w[1])),
        "session": lambda: t[w[1]].session(**take("session")), "fork": lambda: t[w[1]].fork(),
        "plan": lambda: orrery.plan(rest(1), *plan_options()),
        "calibrate": lambda: t[w[1]].calibrate([t[w[2]].tokenize(x) for x in rest(3).split("|")], **take("calibrate")),
        "matcher": lambda: t[w[1]].matcher(**take("generate")),
        "generate": lambda: t[w[1]].generate(**take("generate")), "save_buffer": lambda: t[w[1]].save_buffer(),
        "continue": lambda: t[w[1]].generate_tokens([int(x) for x in w[2:]], **take("generate")),
        "damage": lambda: t[w[0]][:-1] + bytes([t[w[0]][-1] ^ 1]),
    }
    do = {
        "abi": lambda: print(orrery.abi_version(), orrery.version(), yes(orrery.build_info())),
        "name": lambda: print(orrery.constant_name(w[0], int(w[1]))), "threads": lambda: t[w[0]].set_threads(int(w[1]), int(w[2])),
        "embed": lambda: embed(t[w[0]], rest(1).split("|")),
        "rank": lambda: print("best", largest(t[w[0]].rank(rest(1).split("|")[0], rest(1).split("|")[1:], **take("embed")))),
        "regions": lambda: regions(t[w[0]], rest(1)),
        "devices": lambda: print(yes(all(d.name or d.refused for d in orrery.devices()))), "cancel_session": lambda: cancel(t[w[0]]),
        "experts": lambda: print(*[field(getattr(t[w[0]].experts(), n)) for n in w[1:]]),
        "streaming": lambda: print(*[field(getattr(t[w[0]].streaming(), n)) for n in w[1:]]),
        "layer": lambda: print(*[field(getattr(t[w[0]].layer(int(w[1])), n)) for n in w[2:]]),
        "kv_bytes": lambda: print(orrery.kv_type_bytes(*[int(x) for x in w])),
        "status": lambda: print(orrery.status_name(int(w[0]))), "calls": lambda: print(yes(calls.get(w[0]))),
        "set": lambda: set_option(w[0], w[1:]), "callback": lambda: callback(*w[:2], w[2:]),
        "free": lambda: t[w[0]].close(), "info": lambda: print(*[field(getattr(fields_of(t[w[0]]), n)) for n in w[1:]]),
        "compare": lambda: compare(fields_of(t[w[0]]), *w[1:]), "tokenize": lambda: print(*t[w[0]].tokenize(rest(2), int(w[1]))),
        "detokenize": lambda: print(quote(t[w[0]].detokenize([int(x) for x in w[2:]], int(w[1])))),
        "allowed": lambda: print(sum(bin(word).count("1") for word in t[w[0]].mask())),
        "accept": lambda: print(t[w[0]].accept([int(x) for x in w[1:]])), "rewind_matcher": lambda: t[w[0]].rewind(int(w[1])),
        "forced": lambda: print(len(t[w[0]].forced()), *t[w[0]].forced()), "describe": lambda: print(yes(rest(1) in t[w[0]].describe())),
        "match": lambda: print(*(yes(x) if isinstance(x, bool) else x for x in t[w[0]].match(rest(1)))),
        "flags": lambda: print(t[w[0]].token_flags(int(w[1]))), "say_json": lambda: t[w[0]].add_message_json(rest(1)),
        "format": lambda: print(yes(rest(1) in json.dumps(t[w[0]].chat_format(**take("template")), separators=(",", ":")))),
        "render": lambda: print(quote(t[w[0]].render_chat(rest(1), **take("template")))),
        "say": lambda: t[w[0]].add_message(w[1], rest(2)), "rewind_messages": lambda: t[w[0]].rewind_messages(int(w[1])),
        "messages": lambda: print(*[quote(t[w[0]].message(i)) for i in range(t[w[0]].n_messages())]),
        "message": lambda: print(quote(t[w[0]].message(int(w[1])))), "template": lambda: t[w[0]].set_template(**take("template")),
        "tokens": lambda: print(t[w[0]].n_tokens(), *t[w[0]].tokens()[:8]), "rewind": lambda: t[w[0]].rewind(int(w[1])),
        "roles": lambda: print(*[field(getattr(t[w[0]].head_roles(), n)) for n in w[1:]]),
        "residency": lambda: print(*(f(t[w[0]].residency()) for f in (len, min, max))),
        "adapters": lambda: t[w[0]].set_adapters([(t[a], float(scale)) for a, scale in zip(w[1::2], w[2::2])]),
        "folder_save": lambda: t[w[0]].save(t[w[1]], None if rest(2) == "-" else rest(2)), "folder_load": lambda: t[w[0]].load(t[w[1]], rest(2)),
        "folder_remove": lambda: t[w[0]].remove(rest(1)),
        "folder_list": lambda: print(len(t[w[0]].list()), yes(rest(1) in json.dumps(t[w[0]].list(), separators=(",", ":")))),
        "save": lambda: t[w[0]].save(rest(1)), "load": lambda: t[w[0]].load(rest(1)),
        "load_buffer": lambda: t[w[0]].load_buffer(t[w[1]]), "evaluate": lambda: evaluate(t[w[0]], w[1] == "1", [int(x) for x in w[2:]]),
        "numbers": lambda: print(len(t[w[0]].logits()), largest(t[w[0]].logits()), len(t[w[0]].embedding())),
        "next": lambda: drain(t[w[0]], int(w[1])), "drain": lambda: drain(t[w[0]], -1), "answer": lambda: answer(t[w[0]]),
        "functions": lambda: functions(t[w[0]], int(w[1]), w[2], rest(3)),
        "run": lambda: t[w[0]].run(counted(int(w[1]))), "break": lambda: leave_early(t[w[0]], int(w[1])),
        "cancel": lambda: cancel(t[w[0]]), "inspect": lambda: print(yes(rest(1) in orrery.inspect(w[0]))),
        "policies": lambda: print(yes(rest(0) in orrery.policies())), "steps": lambda: print(yes(rest(1) in t[w[0]].steps())),
        "profile": lambda: print(yes(rest(1) in orrery.head_profile_import(t[w[0]].profile()))),
        "gates": lambda: print(yes(w[1] in orrery.head_profile_import_gates(rest(2), float(w[0])))),
    }
    if verb in make:
        t[w[0]] = make[verb]()
    else:
        do[verb]()

for line in open(sys.argv[1], encoding="utf-8"):
    words = line.rstrip("\n").split(" ")
    if words[0] and line[0] != "#":
        print(">", " ".join(words))
        try:
            step(words[0], words[1:], lambda i: unescape(" ".join(words[i + 1:])), things)
        except orrery.Error as e:
            print("error", e.status.name, e.line, e.column, e.offset, e.native_code, yes(e.bytes_requested), yes(e.message), e.option or "-")
        except Raised:
            print("raised")
