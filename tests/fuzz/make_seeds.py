"""Writes the named seeds of the targets that this says inputs of, to corpus/TARGET: inputs as the heads of their sources
describe them. Those of fuzz_session come from make_session_seeds.py, those of fuzz_gguf from seed_gguf.cpp; the others' are
texts, and stand for themselves."""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def write(target, seeds):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- chat: flags, then template, messages, tools, variables, name ----

def chat(flags, *fields):
    return bytes([flags]) + "\x1e".join(fields).encode()


TURNS = ('{"role": "system", "content": "Be \\u00e9."}, {"role": "user", "content": "Hi \\ud83d\\ude00"}, '
         '{"role": "assistant", "content": null, "tool_calls": [{"id": "abcdefghi", "type": "function", "function": '
         '{"name": "f", "arguments": {"x": [1, 2.5, "y"]}}}]}, {"role": "tool", "content": "3", "name": "f"}')
TOOLS = '[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "array"}}}}}]'
LOOP = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}"
CHAT = {
    "plain": chat(1, LOOP, f"[{TURNS}]"),
    "own": chat(3, "", f"[{TURNS}]"),
    "named": chat(3, "", f"[{TURNS}]", TOOLS, "", "more"),
    "no-such-name": chat(2, "", "[]", "", "", "other"),
    "tools": chat(1, "{% if tools %}{{ tools | tojson(indent=2) }}{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}" + LOOP, f"[{TURNS}]", TOOLS),
    "thinking": chat(1, "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}" + LOOP, f"[{TURNS}]", "", '{"enable_thinking": false, "n": 3}'),
    "raises": chat(0, "{% if messages[0].role != 'user' %}{{ raise_exception('user first: ' + messages[0].role) }}{% endif %}", f"[{TURNS}]"),
    "calls": chat(0, "{% for m in messages if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}{% endfor %}", f"[{TURNS}]"),
    "namespace": chat(0, "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + (m.content or '') | length %}{% endfor %}{{ ns.n }}", f"[{TURNS}]"),
    "macro": chat(0, "{% macro turn(m, end='.') %}{{ m['role'] | upper }}{{ end }}{% endmacro %}{% for m in messages | reverse %}{{ turn(m) }}{% endfor %}", f"[{TURNS}]"),
    "slices": chat(0, "{{ messages[1:][0].content[::-1] }}{{ (messages | last).content.strip().split('a') | join('-') }}", f"[{TURNS}]"),
    "parts": chat(1, "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}", '[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]'),
    "not-messages": chat(1, LOOP, '{"role": "user"}'),
    "not-tools": chat(1, LOOP, "[]", "{}"),
    "not-variables": chat(1, LOOP, "[]", "", "[1]"),
    "overrides": chat(1, LOOP, "[]", "", '{"messages": [{"role": "x", "content": "y"}], "bos_token": 1, "eos_token": null}'),
    "broken-json": chat(1, LOOP, '[{"role": "user", "content": "\\ud800'),
    "broken-template": chat(1, "{% for m in messages %}{{ m.content", f"[{TURNS}]"),
}

# ---- profile: a byte, then a profile, or gates ----


def profile(layers, **members):
    top = {"format": "orrery-head-profile", "version": 1, "model": "", "note": "", "top_k": 16, "tau_sim": .5, "tau_stable": .5,
           "tau_drift": .5, "layers": layers}
    top.update(members)
    return b"\xff" + json.dumps(top).encode()


LAYER = {"roles": ["pivot", "satellite", "anchor", "volatile"], "pivot_of": [None, 0, None, None], "stability": [.1, .2, .9, .3]}
PAIRS = dict(LAYER, similarity=[.6, .1, .2, .3, .1, 0], mean_similarity=[.5, .1, .2, .3, .1, 0], cluster_of=[0, 0, 1, 1], representatives=[0, 2])
PUBLISHED = {"meta": {"type_map": {"Steady": 1, "Shifting": 2, "Leader": 3, "Follower": 4},
                      "counts": {"Steady": 1, "Shifting": 1, "Leader": 2, "Follower": 2}},
             "classification_matrix": [[3, 4, 2], [1, 4, 3]], "leader_member_relations": [{"0": [1]}, {"2": [1]}],
             "allocation_matrix": [[-1, 0.5, -1], [0.75, 1.0, -1]]}
PROFILE = {
    "roles": profile([LAYER]),
    "pairs": profile([PAIRS, PAIRS], note="\u00e9 note", model="00112233445566778899aabbccddeeff"),
    "allocation": profile([{"roles": ["anchor", "volatile"], "pivot_of": [None, None], "allocation": [1.0, 0]}], top_k=0),
    "gates-profile": profile([{"roles": ["anchor", "volatile"], "pivot_of": [None, None], "gates": [.1, .9]}], top_k=0),
    "orphan": profile([dict(LAYER, pivot_of=[None, 2, None, None])]),
    "no-numbers": profile([dict(LAYER, stability=["x", None, 1e400, -1])]),
    "published": b"\xff" + json.dumps(PUBLISHED).encode(),
    "gates": b"\x64" + b"0.1\t0.9\n0.55\t0.2\n",
    "gates-spaces": b"\x96" + b"1 0 .5 1e-3\r\n\n0 0 0 0\n",
    "gates-all": b"\x00" + b"0.5\n",
    "gates-uneven": b"\x32" + b"0.1\t0.9\n0.55\n",
    "gates-above": b"\x32" + b"0.1\t1.5\n",
    "gates-sparsity": b"\xfa" + b"0.1\t0.9\n",
}

# ---- options: model, KV type, device KV type, overflow, context, chunk, share, bytes; policy, options, profile ----


def options(policy, *pairs, profile="", model=0, kv=0, device=0, context=150, chunk=16, share=.5, budget=0):
    head = struct.pack("<BBBBHHfI", model, kv, device, 0, context, chunk, share, budget)
    return head + "\x1e".join([policy, "\n".join(pairs), profile]).encode()


ONE_HEAD = {"roles": ["volatile"], "pivot_of": [None], "stability": [.5]}
OPTIONS = {
    "default": options(""),
    "budget": options("", budget=40000),
    "full": options("full", share=1),
    "streaming": options("streaming", "sinks=8"),
    "h2o": options("h2o", "recent=.25"),
    "heterocache": options("heterocache", "tau_sim=0.2", "tau_drift=1", "block=2", model=1, share=.6),
    "heterocache-speculative": options("heterocache", "satellites=speculative", "tau=0.95", "heads=adaptive", "window=4", model=1, share=.6),
    "heterocache-profile": options("heterocache", profile=json.dumps({"format": "orrery-head-profile", "version": 1, "model": "", "note": "", "top_k": 16, "tau_sim": .5, "tau_stable": .5, "tau_drift": .5, "layers": [ONE_HEAD, ONE_HEAD]})),
    "synckv": options("synckv", "steps=1", model=1, share=.7),
    "omnikv": options("omnikv", share=.8),
    "duoattention": options("duoattention", "compensation=1", "full_share=0.2", "sinks=10", model=1),
    "razorattention": options("razorattention", model=1),
    "snapkv": options("snapkv", "window=8", "pool=max"),
    "pyramidkv": options("pyramidkv", "first_layers=1"),
    "adakv": options("adakv", "score=each", model=1),
    "adapyramid": options("adapyramid", "safeguard=protect", "alpha=0.8", model=1),
    "cake": options("cake", "tau_1=2", "gamma=100"),
    "auto": options("auto", share=.3),
    "freekv": options("freekv", "page=4", "first_layers=0", "tau=0.99"),
    "quest": options("quest", "page=8", "first_layers=0", "heads=adaptive"),
    "arkvale": options("arkvale", "page=8", "asked=0.8", "first_layers=0"),
    "raas": options("raas", "page=8", "stamp=top", "prompt=keep", "first_layers=0"),
    "infinigen": options("infinigen", "alpha=1.5", "most=0.1"),
    "loki": options("loki", "rank=8", "reduce=max"),
    "keycodes": options("keycodes", "bits=1", "reduce=mean"),
    "shadowkv": options("shadowkv", "chunk=4", "rank=8", share=.8),
    "shadowkv-plus": options("shadowkv+", "outliers=2", "local=8", share=.8),
    "windowed": options("snapkv", model=2),
    "coarse": options("streaming", kv=0, device=3),
    "coarser": options("h2o", kv=2, device=4),
    "no-policy": options("nothing"),
    "no-option": options("snapkv", "colour=red"),
    "twice": options("snapkv", "window=8", "window=9"),
    "small": options("snapkv", share=.001),
    "nan": options("snapkv", "window=8", share=float("nan")),
}

# ---- framed inputs: bytes in front, then operation, length, arguments ----


def framed(head, *frames):
    return bytes(head) + b"".join(bytes([op, len(args)]) + args for op, args in frames)


def text(s):
    return bytes([len(s)]) + s.encode()


EDITS = ("set_number retype_key set_text rename_key drop_key double_key set_element resize_array set_dim add_dim retype_tensor fill_data "
         "rename_tensor drop_tensor double_tensor swap_tensors scale_everywhere set_family add_known_key set_token add_merge poke cut "
         "claim set_alignment leave_out misplace").split()


def edit(name, *args):
    return EDITS.index(name), b"".join(a if isinstance(a, bytes) else bytes([a]) for a in args)


N_MODELS, N_TYPES = 27, 14
MODEL = {f"model-{i:02d}": framed([i, 0, 0, i]) for i in range(N_MODELS)}
MODEL.update({f"stored-{i:02d}": framed([4, i, i % 3, 3 * i]) for i in range(N_TYPES)})
MODEL.update({
    "kv-q8": framed([4, 0, 32, 9]), "read": framed([5, 0, 4 + 8, 9]), "path": framed([5, 0, 128, 9]), "path-read": framed([5, 0, 128 + 4, 9]), "rope": framed([5, 0, 16, 19]),
    "no-numbers": framed([3, 0, 0, 1], edit("fill_data", 1, b"\0\0", 255, 2)),
    "no-norm": framed([3, 0, 0, 1], edit("drop_tensor", 1)),
    "other-width": framed([3, 0, 0, 1], edit("scale_everywhere", 64, b"\x80\0")),
    "other-family": framed([3, 0, 0, 1], edit("set_family", 1)),
    "huge": framed([3, 0, 0, 1], edit("set_number", 2, 20)),
    "yarn": framed([3, 0, 0, 1], edit("add_known_key", 0, 2), edit("add_known_key", 1, 130, 64)),
    "bpe": framed([3, 0, 0, 1], edit("add_known_key", 23, 6), edit("add_merge", text("a b"))),
    "token": framed([3, 0, 0, 1], edit("set_token", b"\x20\0", 3, 2, text("<s>"))),
    "cut": framed([3, 0, 0, 1], edit("cut", b"\0\x20\0\0")),
    "poked": framed([3, 0, 0, 1], edit("poke", b"\x10\0\0\0", 255)),
    "aligned": framed([3, 0, 0, 1], edit("set_alignment", 6)),
    "claims": framed([3, 0, 0, 1], edit("claim", 1, 0, 3)),
})

SPLIT = {
    "one": framed([0, 0, 0]), "two": framed([1, 0, 0]), "four-by-the-third": framed([3, 2, 0]), "header": framed([2, 4 + 1, 0]),
    "read": framed([2, 8 + 1, 0]), "other-name": framed([2, 0, 1]),
    "absent": framed([2, 0, 0], edit("leave_out", 1)), "misplaced": framed([1, 0, 0], edit("misplace", 1, 0, 1)),
    "number": framed([2, 0, 0], edit("set_number", 1, 0, 2)), "count": framed([2, 0, 0], edit("set_number", 1, 1, 5)),
    "tensors": framed([2, 0, 0], edit("set_number", 0, 4, 5)), "twice": framed([1, 0, 0], edit("rename_tensor", 1, 0, text("a0"))),
    "dropped": framed([1, 0, 0], edit("drop_tensor", 1, 0)), "cut": framed([1, 0, 0], edit("cut", 1, b"\x40\0\0\0")),
    "aligned": framed([1, 0, 0], edit("set_alignment", 1, 6)), "version": framed([1, 0, 0], edit("claim", 1, 0, 0, 2)),
}

CALLS_OF = ("create_runtime free_runtime runtime_info open_model free_model model_info vocabulary open_session free_session add_message "
            "add_json messages set_template rewind_messages session_tokens rewind fork save load save_file load_file evaluate "
            "read_results generate generate_tokens next drain run cancel free_generation calibrate plan").split()


def call(name, *args):
    return CALLS_OF.index(name), b"".join(a if isinstance(a, bytes) else bytes([a]) for a in args)


HI = call("add_message", 1, text("hi"), 0)


def tokens(n):
    return bytes([n]) + bytes(range(40, 40 + n))


CALLS = {
    "nothing": framed([0]),
    "every-call-on-null": framed([0], *[(i, b"") for i in range(len(CALLS_OF))]),
    "every-call": framed([1], *[(i, b"") for i in range(5, len(CALLS_OF))]),
    "turn": framed([1], HI, call("generate", 0, 4, 1, 0, 0, 0), call("drain", 0), call("messages", 0, 1), call("free_generation", 0)),
    "busy": framed([1], HI, call("generate", 0, 4, 1, 0, 0, 0), call("next", 0), HI, call("rewind", 0, 0), call("drain", 0), HI),
    "cancelled": framed([1], HI, call("generate", 0, 7, 1, 0, 0, 0), call("next", 0), call("cancel", 0), call("drain", 0), call("drain", 0)),
    "hook": framed([1], HI, call("generate", 0, 7, 64, 0, 2, 0, 0, 1, 1), call("run", 0, 15, 1)),
    "spoilt": framed([1], HI, call("generate", 0, 7, 64, 0, 5, 0, 0, 0), call("drain", 0)),
    "fork": framed([1], call("evaluate", 20, tokens(20)[1:], 0, 0), call("fork", 1, 0), call("evaluate", 3, b"abc", 0, 1), call("read_results", 1)),
    "save": framed([1], call("evaluate", 20, tokens(20)[1:], 0, 0), call("save", 0, 0), call("rewind", 0, 0), call("load", 0, 0, 0, 0, 0, 0)),
    "damage": framed([1], call("save", 0, 0), call("load", 0, 1, 30, 0, 1, 0)),
    "files": framed([1], HI, call("save_file", 1, 0), call("load_file", 1, 0), call("save_file", 0, 0), call("load_file", 0, 0)),
    "owners-gone": framed([1], HI, call("free_runtime", 0), call("free_model", 0), call("generate", 0, 4, 1, 0, 0, 0), call("free_session", 0), call("drain", 0)),
    "two-models": framed([1], call("open_model", 0, 1, 1, 0, 1, 0, 0), call("open_session", 1, 1, 40, 0, 10, 0, 0, 0, 0, 0), call("save", 0, 0), call("load", 0, 0, 0, 0, 0, 1)),
    "stopped-loading": framed([1], call("open_model", 0, 1, 0, 0, 8, 0, 0)),
    "parked": framed([3], *[call("fork", i, i - 1) for i in range(1, 5)], call("evaluate", 5, b"abcde", 0, 4), call("free_session", 0), call("evaluate", 5, b"abcde", 0, 4)),
    "calibrated": framed([1], call("calibrate", 0, 3, 8, 1, 0, 0)),
    "planned": framed([1], call("plan", 0, b"\x60\0\0\0", b"\x10\0\0\0", b"\0\0\0\0")),
    "template": framed([1], call("set_template", 3, 0, 0, 1, 0), HI, call("generate", 0, 4, 1, 0, 0, 0), call("set_template", 1, 0, 0, 1, 0), call("generate", 0, 4, 1, 0, 0, 0), call("drain", 0)),
}
for policy in range(22):
    CALLS[f"policy-{policy:02d}"] = framed(
        [1], call("open_session", 0, 1, 127, policy if policy % 3 else policy + 22, 6, 0, 0, 0, 16, 0),
        call("evaluate", 40, tokens(40)[1:], 0, 1), call("generate_tokens", 0, 6, 1, 0, 0, 30, tokens(30)[1:], 1), call("drain", 0),
        call("fork", 2, 1), call("save", 0, 2), call("load", 0, 0, 0, 0, 0, 1), call("rewind", 11, 1), call("read_results", 1))

for target, seeds in {"chat": CHAT, "profile": PROFILE, "options": OPTIONS, "model": MODEL, "split": SPLIT, "calls": CALLS}.items():
    write(target, seeds)
