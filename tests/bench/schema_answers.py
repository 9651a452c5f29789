"""Whole answers of published models under published schemas, each checked by jsonschema, an implementation of its own.

schema_answers.py SCHEMAS MODEL.gguf...  asks each model for an instance of each of N schemas: greedy and at temperature 1, without guesses and
with them. SCHEMAS: a folder of MaskBench's files (jsonschemabench/maskbench/data), from which it takes the files whose names hash odd, so that constants
chosen on the other half are not tested on themselves. Counts complete answers, complete answers that jsonschema accepts, and answers that guesses
change: the last two numbers must be all and none.

Python's jsonschema (PyPI) and the library's Python package (PYTHONPATH=bindings/python, ORRERY_LIBRARY=.../liborrery.so) must be there.
"""

import argparse
import hashlib
import json
import os
import time

import jsonschema
import orrery


def chosen(folder, most_bytes, n):
    """Small schemas of the reporting half, evenly over the folder's files in the order of their hashes."""
    found = []
    for name in sorted(os.listdir(folder), key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 0:
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            schema = json.load(file)["schema"]
        if not isinstance(schema, dict) or len(json.dumps(schema)) > most_bytes:
            continue
        found.append((name, schema))
        if len(found) == n:
            break
    return found


def answer(model, schema, temperature, guesses, max_tokens):
    """The answer's text, and whether it is whole."""
    with model.session(n_context=4096, speculate=orrery.Speculate.NGRAM if guesses else orrery.Speculate.OFF) as session:
        session.add_message("user", "Write one JSON value that follows this schema, and nothing else:\n" + json.dumps(schema))
        text, complete = "", False
        for event in session.generate(schema=schema, temperature=temperature, seed=7, max_tokens=max_tokens):
            if isinstance(event, orrery.Text):
                text += event.text
            elif isinstance(event, orrery.Done):
                complete = event.complete
    return text, complete


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("schemas")
    options.add_argument("models", nargs="+")
    options.add_argument("--n", type=int, default=50)
    options.add_argument("--max-tokens", type=int, default=192)
    options.add_argument("--most-bytes", type=int, default=2000)
    options.add_argument("--threads", type=int, default=0)
    given = options.parse_args()
    schemas = chosen(given.schemas, given.most_bytes, given.n)
    wrong = 0
    with orrery.Runtime(n_threads=given.threads) as runtime:
        for path in given.models:
            with runtime.open(path) as model:
                asked = refused = complete = valid = changed = 0
                began = time.time()
                for name, schema in schemas:
                    for temperature in (0.0, 1.0):
                        texts = []
                        for guesses in (False, True):
                            try:
                                text, whole = answer(model, schema, temperature, guesses, given.max_tokens)
                            except orrery.Error as error:
                                refused += 1
                                print(f"{name}: {error}")
                                break
                            asked += 1
                            texts.append(text)
                            complete += whole
                            if whole:
                                try:
                                    jsonschema.validate(json.loads(text), schema)
                                    valid += 1
                                except (jsonschema.ValidationError, json.JSONDecodeError) as error:
                                    print(f"{name}, temperature {temperature:g}: {text!r}: {str(error).splitlines()[0]}")
                        changed += len(texts) == 2 and texts[0] != texts[1]
                print(f"{os.path.basename(path)}: {asked} answers, {refused} refused; {complete} complete, {valid} of them valid; "
                      f"guesses changed {changed}; {time.time() - began:.0f} s", flush=True)
                wrong += complete - valid + changed
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
