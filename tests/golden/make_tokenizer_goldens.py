#!/usr/bin/env python3
"""Goldens of the tokenizers: tests/golden/tokenizer/*.

What the reference libraries make of ten thousand random strings per pre-tokenizer, and of as many per SentencePiece
variant.  The strings are not stored: this script and the tests draw them from the same generator (Strings here,
random_strings.h there) over the same pools of characters (pools.txt).  Nor are all ids: ids of the first strings,
then one hash for every hundred strings.

Needs tokenizers 0.23.3, sentencepiece 0.2.3, protobuf, and unicodedata2 18.0.0 (to leave out of the pools
what has another category in Python's own, older, Unicode data: the regex engines' data are older than ours too).

    python3 tests/golden/make_tokenizer_goldens.py            writes everything
    python3 tests/golden/make_tokenizer_goldens.py --show SET GROUP    strings and ids of one group, to find out why
"""
import io
import os
import pathlib
import sys
import tempfile
import unicodedata

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

import sentencepiece
import tokenizers
import unicodedata2
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).parent / "tokenizer"
GROUP, SHOWN, COUNT = 100, 40, 10000
TEN = 10  # strings of a hash; a group has a hash of these hashes
M64 = (1 << 64) - 1

WORDS = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down should because each just those
people how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take three
int return for while if else std::vector const auto template struct None self def import class public static void
I'm don't we'll they've it's you're he'd I'LL DON'T O'Neill rock'n'roll""".split()
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|im", "<a>", "<a><b>", "<b>", "<think>", "</think>", "<|tool|>"]

# weight, ranges of code points (hexadecimal) or strings
POOLS = [
    (8, "61-7a"), (3, "41-5a"), (3, "30-39"), (3, "21-2f 3a-40 5b-60 7b-7e"), (8, "20"), (2, "a d"),
    (2, "9-d 20 85 a0 1680 2000-200a 2028-2029 202f 205f 3000"),
    (3, ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'\u017f", "'", "\u2019s",
         "'r", "'l", "'v"]),
    (2, "c0-d6 d8-f6 f8-17f b5 aa ba"), (2, "391-3a1 3a3-3c9 410-44f 1f00-1f15 1fbe"),
    (1, "1c5 1c8 1cb 1f2 1f88-1f8f 2b0-2b8 2c6-2d1 1d43-1d50"), (2, "300-33f 903 20dd-20e0 fe00-fe0f 483-489"),
    (1, "5d0-5ea 627-64a 64b-652 660-669 6f0-6f9"), (1, "905-939 93e-94d 966-96f e01-e3a e50-e59"),
    (2, "4e00-4fff 9fa0-9fbb 3400-34ff ac00-aeff 3041-3096 3099-309f 30a1-30ff ff01-ff9d"),
    (1, "b2-b3 b9 bc-be 2160-2188 2070 2074-2079 3007 1d7ce-1d7ff"),
    (2, "1f300-1f5ff 1f600-1f64f 2190-21ff 2200-22ff 20a0-20b9 a2-a9"),
    (1, "0-8 e-1f 7f-84 86-9f ad 200b-200f 2060 feff e000-e0ff"), (2, "2010-2027 2030-205e 3001-3003 3008-3011 ff01-ff0f a1 ab bb bf"),
    (1, "10400-1044f 1d400-1d454 20000-200ff 10330-1034a 1e900-1e94a"),
    (1, "1bb 1c0-1c3 294 10a0-10c5 10d0-10fa 13a0-13f5 2c00-2c2e 2126 212a 212b 2102 a640-a66d fb00-fb06 fb13-fb17 1c90-1cba 10c80-10cb2 118a0-118df 7fe-801"),
    (1, "fdd0-fdef 1fffe-1ffff e1000-e10ff"),
    (8, [" " + w for w in WORDS] + WORDS[:40] + [w.upper() for w in WORDS[:20]]),
    (1, ["\u2581", "  ", "    ", "\n\n", "\t\t", "\r\n", "...", "://", "/*", "\n/", "\u00e9", "e\u0301"]),
]
SPECIAL_POOL = (12, SPECIALS + ["<|im_", "<", "<a", "><", "<b><a>"])


def stable(c):
    return unicodedata2.category(chr(c)) == unicodedata.category(chr(c))


def parse_pool(pool):
    if isinstance(pool, list):
        return pool
    out = []
    for item in pool.split():
        first, last = (item.split("-") * 2)[:2]
        out += [chr(c) for c in range(int(first, 16), int(last, 16) + 1) if stable(c)]
    return out


def ranges_of(chars):
    """The code points of a pool as ranges again, without the unstable ones."""
    out = []
    for c in map(ord, chars):
        if out and out[-1][1] + 1 == c:
            out[-1][1] = c
        else:
            out.append([c, c])
    return " ".join(f"{a:x}-{b:x}" for a, b in out)


class Strings:
    """splitmix64, and strings made of runs from the pools."""

    def __init__(self, seed, pools):
        self.state = seed
        self.table = [p for weight, p in pools for _ in range(weight)]

    def next(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & M64
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        return (z ^ (z >> 31)) % n

    def string(self):
        out = []
        for _ in range(1 + self.next(8)):
            pool = self.table[self.next(len(self.table))]
            length = 1 + self.next(40 if self.next(16) == 0 else 4)
            same = self.next(8) == 0  # a run of one and the same character
            first = self.next(len(pool))
            for i in range(length):
                out.append(pool[first if same or i == 0 else self.next(len(pool))])
        return "".join(out)


def hash_ids(h, ids):
    for x in ids:
        h = ((h ^ (x + 1)) * 0x100000001B3) & M64
    return ((h ^ 0) * 0x100000001B3) & M64


# The published expressions, as in tests/unit/text/pre_tokenizer_specs.cpp; the two that publishers write as pre-tokenizers of their own
# are written so here.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASED1 = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CASED2 = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(*expressions):
    return [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]


def pre(kind):
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence({
        "classic": lambda: split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]") + [BYTES],
        "gpt2": lambda: [gpt2],
        "digits_gpt2": lambda: [digits, gpt2],
        "falcon": lambda: [pre_tokenizers.Punctuation("contiguous")] + split(GPT2, "[0-9][0-9][0-9]") + [BYTES],
        "llama3": lambda: split(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACE) + [BYTES],
        "qwen2": lambda: split(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACE) + [BYTES],
        "qwen35": lambda: split(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACE) + [BYTES],
        "tekken": lambda: split(CASED1 + "|" + CASED2 + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACE) + [BYTES],
        "gpt4o": lambda: split(CASED1 + CONTRACTION + "?|" + CASED2 + CONTRACTION + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACE) + [BYTES],
        "deepseek_llm": lambda: split("[\r\n]", rf"\s?[{LETTERS}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                                      r"\s+$", CJK) + [digits, BYTES],
        "deepseek_coder": lambda: split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK) + [digits, BYTES],
        "deepseek_v3": lambda: split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                                     r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + SPACE) + [BYTES],
    }[kind]())


KINDS = ["classic", "gpt2", "digits_gpt2", "falcon", "llama3", "qwen2", "qwen35", "tekken", "gpt4o", "deepseek_llm", "deepseek_coder",
         "deepseek_v3"]


def escape(text):
    return "".join(c if "!" <= c <= "~" and c != "%" else "".join(f"%{b:02x}" for b in c.encode()) for c in text)


def train_bpe(pools):
    """One vocabulary for all: trained without a pre-tokenizer, so that its merges cross every kind of boundary and a
    wrong cut cannot go unnoticed; then tokens that no merge makes, which only ignore_merges finds."""
    corpus = Strings(1, pools)
    texts = [corpus.string() for _ in range(30000)]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = BYTES
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=256 + 3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=24))
    import json
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    vocab = {t: i for i, t in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    whole = [BYTES.pre_tokenize_str(w)[0][0] for w in
             [" through", "never", " because", "   ", "\n\n\n", "123", " \u00e9", "...\n", "'ll", " Don't", "\u4e00\u4e01"] + [" " + w for w in WORDS]]
    extra = [w for w in whole if w not in vocab]
    for w in extra:
        vocab.setdefault(w, len(vocab))
    return merges, extra, vocab


def write_set(out, name, strings, encode):
    out.write(f"set {name}\n")
    for group in range(COUNT // GROUP):
        of_group = 0xCBF29CE484222325
        for first in range(group * GROUP, (group + 1) * GROUP, TEN):
            h = 0xCBF29CE484222325
            for i in range(first, first + TEN):
                ids = encode(strings[i])
                if i < SHOWN:
                    out.write("ids " + " ".join(map(str, ids)) + "\n")
                h = hash_ids(h, ids)
            of_group = ((of_group ^ h) * 0x100000001B3) & M64
        out.write(f"{of_group:016x}\n")


def spm_models(pools):
    # Not from all pools: the characters of the others go to bytes, as most do in a real vocabulary.
    corpus = Strings(2, pools[:6] + pools[7:10] + pools[-2:])
    texts = [corpus.string() for _ in range(20000)]

    def train(**options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=1200, character_coverage=0.98,
            normalization_rule_name="identity", num_threads=1, minloglevel=2, **options)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(model.getvalue())
        return proto

    plain = train(byte_fallback=True, remove_extra_whitespaces=False)
    yield "spm_plain", plain
    no_prefix = sentencepiece_model_pb2.ModelProto()
    no_prefix.CopyFrom(plain)
    no_prefix.normalizer_spec.add_dummy_prefix = False
    yield "spm_no_prefix", no_prefix
    trimmed = sentencepiece_model_pb2.ModelProto()
    trimmed.CopyFrom(plain)
    trimmed.normalizer_spec.remove_extra_whitespaces = True
    yield "spm_trimmed", trimmed
    yield "spm_unknown", train(byte_fallback=False, remove_extra_whitespaces=False)
    yield "spm_across", train(byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, split_by_whitespace=False,
                              user_defined_symbols=["<think>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "'s", "...", "the\u2581man"])


def write_spm_vocab(path, proto):
    with open(path, "w") as out:
        spec = proto.normalizer_spec
        out.write(f"prefix {int(spec.add_dummy_prefix)} trim {int(spec.remove_extra_whitespaces)}\n")
        for piece in proto.pieces:
            # GGUF files write the space of user-defined pieces as a space.
            text = piece.piece.replace("\u2581", " ") if piece.type == 4 else piece.piece
            out.write(f"{piece.score:g} {piece.type} {escape(text)}\n")


def main():
    pools = [(w, parse_pool(p)) for w, p in POOLS]
    with_specials = pools + [SPECIAL_POOL]
    strings = Strings(3, pools)
    plain = [strings.string() for _ in range(COUNT)]
    strings = Strings(4, with_specials)
    special = [strings.string() for _ in range(COUNT)]
    merges, extra, vocab = train_bpe(pools)

    sets = {}
    for kind in KINDS:
        if kind == "tekken":  # all its files ignore merges
            continue
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre(kind)
        sets[kind] = (plain, lambda s, t=tokenizer: t.encode(s).ids)
    for kind in ("llama3", "tekken"):
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
        tokenizer.pre_tokenizer = pre(kind)
        sets[kind + "_ignore_merges"] = (plain, lambda s, t=tokenizer: t.encode(s).ids)
    # The first four specials and the last are control tokens, the others user-defined.
    for parse in (True, False):
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre("qwen2")
        for i, text in enumerate(SPECIALS):
            control = i < 4 or i == len(SPECIALS) - 1
            if not control:
                tokenizer.add_tokens([AddedToken(text, normalized=False, special=False)])
            else:
                tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        tokenizer.encode_special_tokens = not parse
        sets["special_parsed" if parse else "special_as_text"] = (special, lambda s, t=tokenizer: t.encode(s).ids)
    protos = dict(spm_models(pools))
    for name, proto in protos.items():
        model = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        # User-defined tokens are looked for in the text as it is, where a block is no space: left out.
        texts = [s.replace("\u2581", "_") for s in plain] if name == "spm_across" else plain
        sets[name] = (texts, lambda s, m=model: m.encode(s))

    if len(sys.argv) == 4 and sys.argv[1] == "--show":
        texts, encode = sets[sys.argv[2]]
        for i in range(int(sys.argv[3]) * GROUP, int(sys.argv[3]) * GROUP + GROUP):
            print(i, escape(texts[i]), encode(texts[i]))
        return

    OUT.mkdir(exist_ok=True)
    with open(OUT / "pools.txt", "w") as out:
        for weight, pool in POOLS + [SPECIAL_POOL]:
            if isinstance(pool, list):
                out.write(f"{weight} strings " + " ".join(map(escape, pool)) + "\n")
            else:
                out.write(f"{weight} ranges " + ranges_of(parse_pool(pool)) + "\n")
    with open(OUT / "bpe_vocab.txt", "w") as out:
        for a, b in merges:
            out.write(f"merge {a} {b}\n")
        for w in extra:
            out.write(f"token {w}\n")
        for i, text in enumerate(SPECIALS):
            out.write(f"{'control' if i < 4 or i == len(SPECIALS) - 1 else 'user'} {text}\n")
    for name, proto in protos.items():
        if name not in ("spm_no_prefix", "spm_trimmed"):
            write_spm_vocab(OUT / f"{name}_vocab.txt", proto)
    for name, (texts, encode) in sets.items():
        with open(OUT / f"{name}_ids.txt", "w") as out:
            write_set(out, name, texts, encode)


main()
