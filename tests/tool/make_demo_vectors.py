"""Write demo_vectors.json: texts and their token ids by the demo model's own tokenizer, samples/models/training/bpe.py.

    python3 make_demo_vectors.py

Needs nothing but Python. Texts stay within ASCII letters, digits and marks, where bpe.py splits as the Qwen2
pre-tokenizer does, plus bytes that stand alone in its alphabet.
"""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINING = os.path.join(HERE, "../../samples/models/training")
sys.path.insert(0, TRAINING)
import bpe  # noqa: E402
import corpus  # noqa: E402


def main():
    tok = bpe.Tokenizer(json.load(open(os.path.join(TRAINING, "tokenizer.json"))))
    rng = random.Random(5)
    texts = ["", " ", "\n", "a", "Hello!", "Who are you?", "  two  spaces  ", "tab\tand\nnewline\r\n\r\nend\n", "12345 6.78",
             "It's what they'd said; we'll see, I'm sure.", "x=(y+z)*[w]{v};//!?", "UPPER lower MiXeD", "trailing newline\n",
             "--file", "\n\n\n   \n"]
    texts += [text for _ in range(12) for _, text in corpus.dialogue(rng, 120, lambda s: len(tok.encode(s)))]
    plain = []
    for text in texts:
        ids = []
        for word in bpe.SPLIT.findall(text):
            ids += tok.word(word)
        plain.append({"text": text, "ids": ids})
    special = [{"text": t, "ids": tok.encode(t)} for t in
               ("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", "a<|endoftext|>b", "<|im_end|><|im_end|>")]
    # The same spellings as text: split as any other marks and letters.
    as_text = [{"text": case["text"], "ids": [i for w in bpe.SPLIT.findall(case["text"]) for i in tok.word(w)]} for case in special]
    with open(os.path.join(HERE, "demo_vectors.json"), "w") as out:
        json.dump({"plain": plain + as_text, "special": special}, out, separators=(",", ":"))
        out.write("\n")
    print(len(plain) + len(as_text), "plain,", len(special), "special")


if __name__ == "__main__":
    main()
