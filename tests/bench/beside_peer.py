#!/usr/bin/env python3
"""Answers beside llama.cpp's: beside_peer.py BUILD PEER MODEL.gguf... [--tokens N].

Twenty questions of ours through each model's chat template; Orrery answers greedily, N tokens at most, then llama.cpp (PEER: a folder of
peer.sh) gives its logits of the very same tokens. Printed for each model: answers of which every token is llama.cpp's own first choice,
tokens that are, by how much its logits prefer its own where they differ (a near tie says nothing), and the divergence KL(peer || Orrery) of each
token's distribution. The instruction set is the best one; --cpu-path names another.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "bindings", "python"))
sys.dont_write_bytecode = True

QUESTIONS = [
    "Why is the sky blue?", "Name three rivers of Europe.", "Write a haiku about winter.", "What is 17 times 23?",
    "Explain recursion to a child.", "Translate to French: The cat sleeps on the chair.", "Give me a recipe for pancakes.",
    "Who wrote Don Quixote?", "Write a Python function that reverses a string.", "What is the capital of Australia?",
    "List five uses of a paper clip.", "How do vaccines work?", "Write a short letter that declines an invitation.",
    "What is the difference between a virus and a bacterium?", "Continue: Once upon a time, in a small village,",
    "Give JSON with the keys name and age for a person of your choice.", "Wie heißt die Hauptstadt von Österreich?", "用一句话介绍长城。",
    "Sort these words: pear, apple, fig, banana.", "What happens when ice is heated?",
]


def log_softmax(row):
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def compare(orrery, model_path, peer, n_tokens, cpu_path):
    whole = tokens = same = 0
    margins, divergences = [], []
    with orrery.Runtime(backend="cpu", cpu_path=cpu_path) as runtime, runtime.open(model_path) as model:
        vocab = model.vocab()
        for question in QUESTIONS:
            if vocab.info().has_template:
                text = vocab.render_chat(json.dumps([{"role": "user", "content": question}]))
                prompt = vocab.tokenize(text, orrery.TokenizeFlags.SPECIAL)
            else:
                prompt = vocab.tokenize(question, orrery.TokenizeFlags.BOS)
            with model.session(n_context=512) as session:
                answer = [e.token for e in session.generate_tokens(prompt, max_tokens=n_tokens) if isinstance(e, orrery.Token)]
            if not answer:
                continue
            with model.session(n_context=512) as session:
                session.evaluate(prompt)
                ours = [np.array(session.logits(), dtype=np.float32)]
                for token in answer[:-1]:
                    session.evaluate([token])
                    ours.append(np.array(session.logits(), dtype=np.float32))
            out = subprocess.run([os.path.join(peer, "peer_logits"), model_path, str(len(prompt) - 1)], check=True, capture_output=True,
                                 input=" ".join(map(str, prompt + answer[:-1])).encode()).stdout
            theirs = np.frombuffer(out, dtype=np.float32).reshape(len(answer), -1)
            wrong = 0
            for token, p, q in zip(answer, theirs, ours):
                choice = int(p.argmax())
                if choice != token:
                    wrong += 1
                    margins.append(float(p[choice] - p[token]))
                lp, lq = log_softmax(p), log_softmax(q)
                divergences.append(float((np.exp(lp) * (lp - lq)).sum()))
            tokens += len(answer)
            same += len(answer) - wrong
            whole += wrong == 0
    print("| %s | %d of %d | %d of %d | %s | %.5f, %.5f, %.4f |" % (
        os.path.basename(model_path), whole, len(QUESTIONS), same, tokens,
        ", ".join("%.3f" % m for m in sorted(margins, reverse=True)[:3]) or "-",
        float(np.mean(divergences)), float(np.median(divergences)), max(divergences)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("peer")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--cpu-path", default="auto")
    given = parser.parse_args()
    os.environ.setdefault("ORRERY_LIBRARY", os.path.join(os.path.abspath(given.build), "capi", "liborrery.so"))
    import orrery
    print("| model | answers alike | tokens alike | the others, most behind | KL: mean, median, most |")
    print("| --- | --- | --- | --- | --- |")
    for path in given.models:
        compare(orrery, path, given.peer, given.tokens, given.cpu_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
