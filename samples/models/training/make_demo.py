"""Write what `orrery demo` reads: demo-document.txt and demo-questions.json, one folder up.

    python3 make_demo.py --seed 23 --tokens 5000

Needs nothing but Python. The document is a run of sentences of the demo model's language with facts buried in it; each
question asks for one fact of another kind, at another depth, and the last one for something that is not there.
"""
import argparse
import json
import os
import random

import bpe
import corpus

# One question of each kind, by how it begins.
KINDS = ("What is the special magic number", "What is the access code", "Where does {} live?", "Where does {} keep",
         "What is {}'s job?", "What animal does {} own?", "Tell me the")
HERE = os.path.dirname(os.path.abspath(__file__))


def kind_of(question, key):
    for kind in KINDS:
        if question.startswith(kind.format(key)):
            return kind
    return None


def make(rng, tok, length):
    facts = corpus.Facts(rng)
    for _ in range(36):
        (facts.add_number if rng.random() < 0.45 else facts.add_person)()
    text, _ = corpus.context(rng, facts, length, lambda s: len(tok.encode(s)))
    questions, asked = [], set()
    for how, key, question, answer in rng.sample(facts.qa, len(facts.qa)):
        kind = kind_of(question, key)
        if how == "one" and kind and kind not in asked:
            asked.add(kind)
            questions.append({"question": question, "answer": answer})
    stranger = rng.choice([n for n in corpus.NAMES if n not in facts.used])
    questions.append({"question": f"Where does {stranger} live?", "answer": corpus.UNKNOWN})
    return text, {"system": corpus.SYSTEM[0], "questions": questions}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=23)
    ap.add_argument("--tokens", type=int, default=5000)
    ap.add_argument("--out", default=os.path.join(HERE, ".."))
    a = ap.parse_args()
    tok = bpe.Tokenizer(json.load(open(os.path.join(HERE, "tokenizer.json"))))
    text, questions = make(random.Random(a.seed), tok, a.tokens)
    open(os.path.join(a.out, "demo-document.txt"), "w").write(text + "\n")
    with open(os.path.join(a.out, "demo-questions.json"), "w") as out:
        json.dump(questions, out, indent=1)
        out.write("\n")
    print(len(tok.encode(text)), "tokens,", len(questions["questions"]), "questions")
