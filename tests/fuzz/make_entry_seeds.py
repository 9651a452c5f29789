"""Writes the seeds of fuzz_entry to corpus/entry: inputs as the head of fuzz_entry.cpp describes them."""
import pathlib
import struct


def seed(flags, *, session=b"s" * 40, pages_at=8, page_bytes=8, n_tokens=None, pages=0, states=(), state_bytes=0, reserved=0, lies={}):
    tokens = [i % 90 for i in range(64 * pages)]
    index = struct.pack(f"<{len(tokens)}i", *tokens) + bytes(16 * pages) + b"".join(struct.pack("<II16x", n, 0) for n in states)
    numbers = dict(session=len(session), pages_at=pages_at, page=page_bytes if pages else 0, state=state_bytes,
                   tokens=64 * pages + 5 if n_tokens is None else n_tokens, pages=pages, states=len(states), reserved=reserved)
    numbers.update(lies)
    footer = bytes(80) + struct.pack("<QQQQIIII", *numbers.values()) + bytes(24)
    return bytes([flags]) + session + bytes(state_bytes * len(states)) + index + footer


SEEDS = {
    "empty": seed(2, session=b""),
    "no-pages": seed(2),
    "two-pages": seed(2, pages=2),
    "other-tokens": seed(4, pages=1),
    "states": seed(2, pages=3, states=(64, 192), state_bytes=12),
    "states-descend": seed(0, pages=3, states=(128, 64), state_bytes=12),
    "state-within-a-page": seed(0, pages=2, states=(65,), state_bytes=4),
    "state-behind-the-pages": seed(0, pages=1, states=(128,), state_bytes=4),
    "pages-behind-the-session": seed(0, pages=2, page_bytes=17),
    "pages-begin-behind-it": seed(0, pages=1, pages_at=41),
    "more-pages-than-tokens": seed(0, pages=1, n_tokens=63),
    "page-bytes-overflow": seed(0, pages=2, lies={"page": 2**63}),
    "states-overflow": seed(0, pages=1, states=(64,), state_bytes=4, lies={"states": 2**32 - 1}),
    "session-overflow": seed(0, pages=1, lies={"session": 2**64 - 1}),
    "reserved": seed(0, reserved=1),
    "wrong-hashes": seed(1, pages=1),
    "short": bytes(100),
}

folder = pathlib.Path(__file__).parent / "corpus" / "entry"
folder.mkdir(parents=True, exist_ok=True)
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
