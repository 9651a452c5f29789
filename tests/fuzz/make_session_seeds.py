"""Writes the seeds of fuzz_session to corpus/session: inputs as the head of fuzz_session.cpp describes them."""
import pathlib
import struct

PAGE_BYTES = 64 * 2 * 32 * 2  # tokens, key and value, head dimension, f16: one layer with one KV head


def seed(flags, tokens, phases, conversation, pages=None, n_dropped=0, kv_type=0, page_tokens=64):
    n_pages = (len(tokens) + 63) // 64 if pages is None else pages
    text = conversation.encode()
    header = struct.pack("<IIIIQQQQ", kv_type, len(tokens), n_pages, page_tokens, PAGE_BYTES, len(text), n_dropped, 0)
    return bytes([flags]) + header + struct.pack(f"<{len(tokens)}i", *tokens) + bytes(phases) + text


SEEDS = {
    "empty": seed(3, [], [], "[]"),
    "one-turn": seed(3, [70, 71, 72], [0, 0, 1], '[{"role": "user", "content": "hi"}]'),
    "two-pages": seed(3, list(range(5, 75)), [0] * 60 + [1] * 10, '[{"role": "user", "content": "a"}, '
                      '{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]'),
    "noise-kv": seed(7, [70, 71, 72], [0, 0, 1], '[{"role": "user", "content": "hi"}]'),
    "dropped": seed(3, [70], [0], '[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]', n_dropped=9),
    "no-role": seed(3, [70], [0], '[{"content": 1}, {}]'),
    "not-a-list": seed(3, [70], [0], '{"role": "user"}'),
    "deep": seed(3, [], [], "[" + '{"a":' * 50 + "1" + "}" * 50 + "]"),
    "bad-token": seed(3, [-1, 100000], [0, 0], "[]"),
    "odd-phases": seed(3, [70, 71], [255, 7], "[]"),
    "wrong-pages": seed(3, [70], [0], "[]", pages=2),
    "wrong-type": seed(3, [70], [0], "[]", kv_type=2),
    "length-lies": seed(2, [70], [0], "[]")[:-1],
    "unicode": seed(3, [], [], '[{"role": "user", "content": "\\u00e9\\ud83d\\ude00 漢 \\ud800"}]'),
}

folder = pathlib.Path(__file__).parent / "corpus" / "session"
folder.mkdir(parents=True, exist_ok=True)
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
