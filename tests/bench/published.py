#!/usr/bin/env python3
"""Published models beside llama.cpp: published.py [options] MODEL.gguf ...

  decode    tokens per second behind 0, 4K, 16K and 32K tokens of F16 KV: full attention, and `auto` by window at 20 and 10% of the KV. Ours are
            behind made-up KV (bench_kv), so that they take seconds. llama.cpp must prefill
  prefill   tokens per second of prompts of 512, 2K and 8K tokens, and the milliseconds to the first token; and the most memory that each
            process held, its mapping of the file included
  sessions  tokens per second of 1, 4 and 8 sessions behind 64 tokens of their own: one thread with orrery_next_any(), a thread each
            (bench_together); llama-batched-bench. Rounds are its own
  guesses   quoting and free answers with speculate off and ngram, and the cost of a step of several tokens (bench_guesses, which
            computes both by turns); the peer has nothing of the kind in its benchmarks
  lossless  full attention, `auto` at 10%, and `auto` at 10% that drafts for full attention, behind --lossless-context tokens of a text

Runs go by turns, ours, theirs, ours, theirs ..., one process each. A figure is the median of --rounds; brackets hold least and most.
Standard library alone. peer.sh builds the peer.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

from compare import cell, processor, run, spread

BLOCK = 32   # tokens that a decode figure is measured over


def run_measured(words):
    """What a program prints and the MiB that it held at most; (None, 0), said on stderr, where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode == 0:
            return out.read(), usage.ru_maxrss / 1024
        print(f"{' '.join(words)}: {(errors.read().strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return None, 0


class Bench:
    def __init__(self, options, model):
        self.o, self.path = options, model
        self.peer = os.path.join(options.peer, "llama-bench")
        self.peer = self.peer if os.access(self.peer, os.X_OK) else None

    def program(self, name):
        return os.path.join(self.o.build, "tests/bench", name)

    def decode(self, context, budget):
        """Our tokens per second, and the share of the rate of reading; budget None: full attention."""
        words = [self.program("bench_kv"), self.path, f"contexts={context}", f"steps={BLOCK}", "repeat=1",
                 f"threads={self.o.threads}", f"path={self.o.cpu_path}", "policies=" + ("auto:by=window" if budget else "full")]
        text = run(words + ([f"budget={budget}"] if budget else []))
        for fields in (line.split() for line in (text or "").splitlines()):
            if len(fields) > 7 and fields[0] == str(context):
                return float(fields[3]), float(next(field for field in fields if field.endswith("%")).rstrip("%")) / 100
        return None

    def prefill(self, tokens):
        words = [os.path.join(self.o.build, "orrery"), "bench", self.path, "--prompt-tokens", str(tokens), "--gen-tokens", "2"]
        text, memory = run_measured(words + ["--repeat", "1", "--json", "--threads", str(self.o.threads), "--cpu-path", self.o.cpu_path])
        if not text:
            return None
        result = json.loads(text)["results"][0]
        return result["prefill_tokens_per_second"]["median"], memory, result["first_token_ms"]["median"]

    def sessions(self):
        """By (sessions, way): tokens per second, longest wait in milliseconds."""
        text = run([self.program("bench_together"), self.path, str(self.o.threads), str(self.o.rounds), "64", "64", self.o.cpu_path])
        rows = [[field.strip() for field in line.strip("|\n ").split("|")] for line in (text or "").splitlines()[2:]]
        return {(int(row[0]), row[1]): (float(row[2]), float(row[6])) for row in rows}

    def their_sessions(self, counts):
        """By sessions: tokens per second, the best of the rounds."""
        program = os.path.join(self.o.peer, "llama-batched-bench")
        found = {}
        for _ in range(self.o.rounds if self.peer and os.access(program, os.X_OK) else 0):
            text = run([program, "-m", self.path, "-c", str(128 * max(counts)), "-npp", "64", "-ntg", "64", "-npl",
                        ",".join(map(str, counts)), "-t", str(self.o.threads), "-tb", str(self.o.threads), "--output-format", "jsonl"])
            for line in (text or "").splitlines():
                if line.startswith("{"):
                    test = json.loads(line)
                    found[test["pl"]] = max(found.get(test["pl"], 0), test["speed_tg"])
        return found

    def theirs(self, arguments, wanted):
        if not self.peer:
            return None
        text, memory = run_measured([self.peer, "-m", self.path, "-t", str(self.o.threads), "-o", "json", "-r", "1"] + arguments)
        speed = next((test["avg_ts"] for test in json.loads(text) if wanted(test)), None) if text else None
        return (speed, memory) if speed else None


def medians(pairs):
    """Medians of a list of pairs, None for an empty one."""
    return [statistics.median(values) for values in zip(*pairs)] if pairs else [None, None]


def decode_table(bench):
    print("\n| decode behind | full, tokens/s | of read | llama.cpp, tokens/s | ratio | auto by window 20%, tokens/s | ratio "
          "| by window 10%, tokens/s | ratio |")
    print("| --- " * 9 + "|")
    for context in bench.o.contexts:
        figures = {None: [], 0.2: [], 0.1: []}
        peers = []
        rounds = bench.o.rounds if context <= 4096 else min(bench.o.rounds, bench.o.long_rounds)
        for _ in range(rounds):
            for budget, found in figures.items():
                if budget is None or context > 0:
                    found += [figure] if (figure := bench.decode(context, budget)) else []
            peer = bench.theirs(["-p", "0", "-n", str(BLOCK), "-d", str(context)], lambda test: test["n_gen"] == BLOCK)
            peers += [peer] if peer else []
        theirs = medians(peers)[0]
        row = [f"{context:,}"]
        for budget, found in figures.items():
            speed, share = medians(found)
            row.append(spread([figure[0] for figure in found]))
            if budget is None:
                row += [cell(share, "{:.0%}"), spread([peer[0] for peer in peers])]
            row.append(cell(speed / theirs if speed and theirs else 0, "{:.2f}"))
        print("| " + " | ".join(row) + " |", flush=True)


def prefill_table(bench):
    print("\n| prompt | prefill, tokens/s | llama.cpp, tokens/s | ratio | first token, ms | llama.cpp, ms | memory, MiB | llama.cpp, MiB |")
    print("| --- " * 8 + "|")
    for tokens in bench.o.prompts:
        ours, peers = [], []
        for _ in range(bench.o.rounds if tokens <= 2048 else min(bench.o.rounds, bench.o.long_rounds)):
            figure = bench.prefill(tokens)
            ours += [figure] if figure else []
            # The short prompt before it brings the weights in, as in our own run that does not count.
            peer = bench.theirs(["-p", f"32,{tokens}", "-n", "0", "--no-warmup"], lambda test: test["n_prompt"] == tokens)
            peers += [peer] if peer else []
        speed, memory, first = medians(ours) if ours else [None] * 3
        theirs, their_memory = medians(peers)
        ratio = cell(speed / theirs if speed and theirs else 0, "{:.2f}")
        print(f"| {tokens:,} | {spread([figure[0] for figure in ours])} | {spread([peer[0] for peer in peers])} | {ratio} "
              f"| {cell(first, '{:.0f}')} | {cell(1e3 * tokens / theirs if theirs else 0, '{:.0f}')} "
              f"| {cell(memory, '{:.0f}')} | {cell(their_memory, '{:.0f}')} |", flush=True)


def sessions_table(bench):
    counts = [1, 4, 8]
    ours, peers = bench.sessions(), bench.their_sessions(counts)
    print("\n| sessions | one thread, tokens/s | of one session | a thread each, tokens/s | of one session | llama.cpp, tokens/s | ratio "
          "| longest wait, ms: one thread | a thread each |")
    print("| --- " * 9 + "|")
    for n in counts if ours else []:
        row = [str(n)]
        for way in "any", "threads":
            row += [cell(ours[n, way][0], "{:.1f}"), cell(ours[n, way][0] / ours[1, "in turn"][0], "{:.2f}")]
        theirs = peers.get(n, 0)
        row += [cell(theirs, "{:.1f}"), cell(ours[n, "any"][0] / theirs if theirs else 0, "{:.2f}")]
        print("| " + " | ".join(row + [cell(ours[n, way][1], "{:.0f}") for way in ("any", "threads")]) + " |", flush=True)


def guesses_tables(bench):
    text = run([bench.program("bench_guesses"), bench.path, str(bench.o.threads), str(bench.o.rounds), "128", f"path={bench.o.cpu_path}"])
    print("\n" + (text or "bench_guesses failed").strip(), flush=True)


def lossless_tables(bench):
    context = bench.o.lossless_context
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(pydoc_text(8 * context))
        text.flush()
        words = [bench.program("bench_guesses"), bench.path, str(bench.o.threads), "1", "64", str(context), text.name]
        print("\n" + (run(words + [f"path={bench.o.cpu_path}"]) or "bench_guesses failed").strip(), flush=True)


def pydoc_text(size):
    """Prose and code that every Python has: its own library's sources, in the order of their names."""
    folder, text = os.path.dirname(os.__file__), ""
    for name in sorted(os.listdir(folder)):
        if len(text) >= size:
            break
        if name.endswith(".py"):
            text += open(os.path.join(folder, name), encoding="utf-8").read()
    return text[:size]


TABLES = {"decode": decode_table, "prefill": prefill_table, "sessions": sessions_table, "guesses": guesses_tables,
          "lossless": lossless_tables}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--build", default="build", help="the build folder, for programs")
    parser.add_argument("--peer", default=None, help="what peer.sh has filled; default BUILD/peer")
    parser.add_argument("--parts", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long-rounds", type=int, default=3, help="behind more than 4K tokens, and for prompts of more than 2K")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--contexts", type=int, nargs="+", default=[0, 4096, 16384, 32768])
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--cpu-path", default="auto", help="our instruction set; peer.sh FOLDER avx2 builds a peer without AVX-512")
    parser.add_argument("--lossless-context", type=int, default=8192)
    options = parser.parse_args()
    options.peer = options.peer or os.path.join(options.build, "peer")

    commit = run(["git", "describe", "--always", "--dirty"])
    built = os.path.join(options.peer, "BUILT")
    print(f"{datetime.date.today()}, {processor()}, {options.threads} threads, path {options.cpu_path}; commit {(commit or 'unknown').strip()}; "
          f"medians of {options.rounds}, {options.long_rounds} of long ones (least - most), in turns")
    print(open(built).read().strip() if os.path.exists(built) else "no llama.cpp here: tests/bench/peer.sh builds it")
    for model in options.models:
        bench = Bench(options, model)
        print(f"\n## {os.path.basename(model)}")
        for part in options.parts:
            TABLES[part](bench)


if __name__ == "__main__":
    main()
