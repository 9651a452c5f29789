#!/usr/bin/env python3
"""Tokens per second of the 1.1B model beside the machine's limits and beside llama.cpp: compare.py [options].

For each type of weights, on one file that both read (make_model writes it where it is missing):
  decode    32 tokens behind a short prompt; limit: weights and KV over the rate at which memory can be read
  prefill   512 tokens; limit: its products over the peak of registers, bf16 where there is such (avx512bf16, amx), else F32, for F16 weights; int8 for quantized ones, bf16 on amx
  long      decoding behind 4K and more tokens of F16 KV: ours behind made-up KV (bench_kv), so that it takes seconds; the
            peer must prefill, and does so for --peer-context only
Decode and prefill run in turns, ours, theirs, ours, theirs ..., one process each; a figure is the median of --rounds.
`orrery bench` measures the limits in each of its processes; the peer's share is of the median of these. Standard library
alone. What peer.sh has built is the peer; without it, or where it fails, that is said and its columns stay empty.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

GENERATED, PROMPT, SHORT = 32, 512, 16


def run(words):
    """What a program prints; None, said on stderr, where it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return done.stdout
    print(f"{' '.join(words)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
    return None


def processor():
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


class Bench:
    def __init__(self, options):
        self.o = options
        self.peer = os.path.join(options.peer, "llama-bench")
        self.peer = self.peer if os.access(self.peer, os.X_OK) else None

    def model(self, kind):
        path = os.path.join(self.o.build, f"bench-{kind.replace(':', '-')}.gguf")
        if not os.path.exists(path):
            kind, _, shape = kind.partition(":")
            subprocess.run([os.path.join(self.o.build, "tests/bench/make_model"), kind, path + ".part"] + ([shape] if shape else []), check=True)
            os.rename(path + ".part", path)
        # As after a start of the machine: what has just been written lies in the page cache in small pages, which are read
        # more slowly; Orrery's mapping, the first here, reads the file into huge ones, for both.
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    def ours(self, model, prompt, generated):
        words = [os.path.join(self.o.build, "orrery"), "bench", model, "--prompt-tokens", str(prompt), "--gen-tokens",
                 str(generated), "--repeat", "1", "--json", "--threads", str(self.o.threads)]
        text = run(words)
        return json.loads(text) if text else None

    def theirs(self, model, arguments, wanted):
        """Tokens per second of the test for which wanted(test) holds."""
        if not self.peer:
            return None
        text = run([self.peer, "-m", model, "-t", str(self.o.threads), "-o", "json"] + arguments)
        return next((test["avg_ts"] for test in json.loads(text) if wanted(test)), None) if text else None

    def turns(self, model, prompt, generated, rate, share, peer_arguments, peer_wanted):
        """One table row's numbers: medians of ours and theirs, their spreads, our share of the limit, and the limits."""
        speeds, shares, peers, limits = [], [], [], []
        for _ in range(self.o.rounds):
            measured = self.ours(model, prompt, generated)
            if measured:
                row = measured["results"][0]
                speeds.append(row[rate]["median"])
                shares.append(row[share] or 0.0)
                limits.append(measured["limits"])
            peer = self.theirs(model, peer_arguments, peer_wanted)
            if peer:
                peers.append(peer)
        return speeds, shares, peers, limits

    def decode(self, model):
        return self.turns(model, SHORT, GENERATED, "decode_tokens_per_second", "decode_share_of_read",
                          ["-p", "0", "-n", str(GENERATED), "-r", "1"], lambda test: test["n_gen"] == GENERATED)

    def prefill(self, model):
        # The short prompt before it brings the weights in, as in our own run that does not count.
        return self.turns(model, self.o.prompt, 2, "prefill_tokens_per_second", "prefill_share_of_peak",
                          ["-p", f"32,{self.o.prompt}", "-n", "0", "-r", "1", "--no-warmup"], lambda test: test["n_prompt"] == self.o.prompt)

    def long(self, model):
        """Rows of (context, tokens/s, share of read, peer's tokens/s)."""
        contexts = self.o.contexts
        text = run([os.path.join(self.o.build, "tests/bench/bench_kv"), model, f"contexts={','.join(map(str, contexts))}",
                    "policies=full", "steps=8", f"repeat={self.o.rounds}", f"threads={self.o.threads}"])
        rows = []
        for fields in (line.split() for line in (text or "").splitlines()):
            if len(fields) > 7 and fields[0].isdigit() and fields[1] == "full":
                context = int(fields[0])
                peer = None
                if context == self.o.peer_context:
                    peer = self.theirs(model, ["-p", "0", "-n", "16", "-d", str(context), "-r", str(self.o.rounds)],
                                       lambda test: test["n_gen"] == 16)
                share = next(field for field in fields if field.endswith("%"))
                rows.append((context, float(fields[3]), float(share.rstrip("%")) / 100, peer))
        return rows


def cell(value, pattern):
    return pattern.format(value) if value else "-"


def spread(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} - {max(values):.1f})"


def print_turns(name, limit, rows):
    print(f"\n| {name} | orrery, tokens/s | {limit} | llama.cpp, tokens/s | {limit} | ratio | reads, GB/s | F32, GFLOP/s | quantized, GOP/s |")
    print("| --- " * 9 + "|")
    for kind, measure in rows:
        speeds, shares, peers, limits = measure()
        if not speeds:
            print(f"| {kind} | failed |")
            continue
        ours, share = statistics.median(speeds), statistics.median(shares)
        theirs = statistics.median(peers) if peers else 0
        at_limit = statistics.median([speed / part for speed, part in zip(speeds, shares) if part > 0] or [0])
        of = [statistics.median(limit[key] for limit in limits)
              for key in ("read_gb_per_second", "float_gflop_per_second", "quantized_gop_per_second")]
        print(f"| {kind} | {spread(speeds)} | {cell(share, '{:.0%}')} | {spread(peers)} | {cell(theirs / at_limit if at_limit else 0, '{:.0%}')} "
              f"| {cell(ours / theirs if theirs else 0, '{:.2f}')} | {of[0]:.1f} | {of[1]:.0f} | {of[2]:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="the build folder, for programs and models")
    parser.add_argument("--peer", default=None, help="what peer.sh has filled; default BUILD/peer")
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0", "Q4_K", "Q6_K", "F16"],
                        help="of weights; with a shape of make_model's that is not the 1.1B model's: Q4_K_M:qwen3.5-0.8b, Q4_K_M:mixture")
    parser.add_argument("--parts", nargs="+", default=["decode", "prefill", "long"], choices=["decode", "prefill", "long"])
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of the part prefill")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 16384], help="of the part long")
    parser.add_argument("--peer-context", type=int, default=4096, help="the one of them that the peer prefills too")
    options = parser.parse_args()
    options.peer = options.peer or os.path.join(options.build, "peer")
    bench = Bench(options)

    commit = run(["git", "describe", "--always", "--dirty"])
    built = os.path.join(options.peer, "BUILT")
    print(f"{datetime.date.today()}, {processor()}, {options.threads} threads; commit {(commit or 'unknown').strip()}; "
          f"medians of {options.rounds} (least - most), in turns")
    print(open(built).read().strip() if bench.peer and os.path.exists(built) else "no llama.cpp here: tests/bench/peer.sh builds it")
    kinds = [(kind, bench.model(kind)) for kind in options.types]
    if "decode" in options.parts:
        print_turns("decode", "of read", [(kind, lambda path=path: bench.decode(path)) for kind, path in kinds])
    if "prefill" in options.parts:
        print_turns(f"prefill {options.prompt}", "of peak", [(kind, lambda path=path: bench.prefill(path)) for kind, path in kinds])
    if "long" in options.parts:
        print("\n| decode behind F16 KV | context | orrery, tokens/s | of read | llama.cpp, tokens/s | ratio |")
        print("| --- " * 6 + "|")
        for kind, path in kinds:
            for context, speed, share, peer in bench.long(path):
                print(f"| {kind} | {context:,} | {speed:.2f} | {share:.0%} | {cell(peer, '{:.2f}')} "
                      f"| {cell(speed / peer if peer else 0, '{:.2f}')} |", flush=True)


if __name__ == "__main__":
    main()
