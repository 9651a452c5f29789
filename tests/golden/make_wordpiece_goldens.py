"""Makes tokenizer/bert.json: a small WordPiece vocabulary, as GGUF files have it, and the ids of texts by PyPI's `tokenizers`.

    python3 make_wordpiece_goldens.py

Needs tokenizers 0.23. Texts leave out characters that are newer than the tables of `tokenizers`.
"""

import json
import os
import random

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ("the a an of and to in wolf fox owl salem mill garden key sun day sunday wind over noticed nobody bruno lives is it was he her him un able ing "
         "ed er est ly ness re pre token ize embed ding search note book in put out straße naive cafe resume angstrom").split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789" + "αβγδεζηθικλμνξοπρσςτυφχψω" + "абвгдежзийклмнопрстуфхцчшщъыьэюя" + "ßøłđħıæœþð" + "ᄀᄂᄃᄅ마ᅥᅩᅮᆨᆫᆯ" + "あいうかきアイウ"
ALONE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" + "。、「」！？—–“”‘’…«»¿¡" + "中文字学日本語人大" + "€£¥©®™°±×÷"
CASED = "ABCDEFÄÖÜÉ"

TEXTS = [
    "", " ", "The wolf.", "  The   wolf\tand\nthe fox\r\n", "Nobody noticed the owl on Sunday!", "Unable, unableness; re-embedding... token_ize?",
    "Café Résumé naïve Ångström", "CAFÉ RE\u0301SUME\u0301", "straße STRASSE", "İstanbul ISTANBUL ı", "中文字学 and日本語wolf", "한국어 각 간 갈", "あいうアイウ が ガ",
    "[CLS] [SEP] [UNK] [MASK]", "a\u0000b\ufffdc\u200bd\u00ade", "a\u000bb\u000cc\u001cd\u0085e\u007ff", "x\u00a0y\u2003z\u3000w\u2028v", "ΑΒΓ ΣΑΣ σς", "Привет мир Ёж",
    "wolf" * 25, "wolf" * 26, "a" * 100, "a" * 101, "é" * 100, "\u0301\u0301\u0301", "o\u0301" * 100, "qqqq zzzz ▁the ##the", "1234567890 3.14 50%", "don't it's", "a😀b 🦊",
    "\u202ereversed\u202c", "ﬁ ﬂ Ⅳ ² ½", "e\u0323\u0302 \u1ec7 \u1e69", "क्षि नमस्ते", "ไทย ที่", "עִבְרִית", "اَلْعَرَبِيَّةُ", "x\u20ddy", "\u302ea", "𐐀𐐨 𝐀", "㐀𠀀豈丽", "a—b–c“d”", "£5 €6 ¥7",
]


def vocabulary():
    tokens = SPECIAL + list(dict.fromkeys(WORDS)) + list(LETTERS) + list(ALONE) + list(CASED)
    tokens += ["##" + t for t in dict.fromkeys([w for w in WORDS if len(w) <= 5] + list(LETTERS))]
    return list(dict.fromkeys(tokens))


def in_gguf(token):
    return token if token in SPECIAL else token[2:] if token.startswith("##") else "\u2581" + token


def random_texts(seed):
    draw = random.Random(seed)
    pool = LETTERS + ALONE + CASED + " " * 20 + "\n\t" + "éèñçÅÉÑÇœŒ\u0301\u0300\u0327"
    for _ in range(300):
        words = [draw.choice(WORDS) if draw.random() < 0.5 else "".join(draw.choice(pool) for _ in range(draw.randint(1, 8)))
                 for _ in range(draw.randint(1, 12))]
        yield draw.choice(["", " "]).join(w.upper() if draw.random() < 0.1 else w for w in words)


def main():
    tokens = vocabulary()
    out = {"tokens": [in_gguf(t) for t in tokens], "special": SPECIAL, "sets": []}
    for lowercase, strip in ((True, True), (False, False), (True, False), (False, True)):
        t = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]", max_input_chars_per_word=100))
        t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=strip, lowercase=lowercase)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        texts = TEXTS + list(random_texts(lowercase + 2 * strip))
        out["sets"].append({"lowercase": lowercase, "strip_accents": strip, "texts": [[text, t.encode(text).ids] for text in texts]})
    with open(os.path.join(HERE, "tokenizer", "bert.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")
    print(len(tokens), "tokens,", sum(len(s["texts"]) for s in out["sets"]), "texts")


if __name__ == "__main__":
    main()
