#!/usr/bin/env python3
"""What KV policies keep on published models: real_models.py [options] MODEL.gguf ...

Runs `orrery eval` over the evaluation set of make_texts.py, file by file, and prints a Markdown table for each model, length and budget:
the share of full attention's right answers that a policy keeps, with Wilson's interval; how many it loses, and how many of these at a near
tie, where full attention's likeliest token is less than 1.65 times as likely as the second; KL(full || policy) in nats, mean and 99th
percentile over tokens, all tasks together and task by task; top-1; and bytes that a generated token moves. Finished results stay in
--out; the same command goes on where an interruption left it. DuoAttention and RazorAttention get a head profile, made of two texts of
the tuning half.

Standard library alone.
"""
import argparse
import json
import os
import subprocess
import sys

PROFILED = ("duoattention", "razorattention")


def head_profile(options, model, out):
    path = f"{out}.profile.json"
    if not os.path.exists(path):
        with open(os.path.join(options.texts, "tune", "summaries-2048.jsonl")) as file:
            texts = [json.loads(next(file))["context"] for _ in range(2)]
        subprocess.run([options.orrery, "profile", model, "-", "--steps", "8", "--top-k", "512", "--threads", str(options.threads),
                        "--out", path], input="\n\n".join(texts), text=True, check=True, stdout=subprocess.DEVNULL)
    return path


def evaluate(options, model, length, out):
    """Evaluates each file by itself, and then all of them out of their records: their rows together."""
    profile = head_profile(options, model, out) if set(options.policies) & set(PROFILED) else None
    policies = ",".join(f"{policy}:head-profile={profile}" if policy in PROFILED else policy for policy in options.policies)
    files = [os.path.join(options.texts, options.half, f"{task}-{length}.jsonl") for task in options.tasks]
    common = [options.orrery, "eval", model, "--samples", str(options.samples), "--max-tokens", str(options.max_tokens), "--turns",
              "single", "--threads", str(options.threads), "--policies", policies, "--budgets", ",".join(options.budgets)]
    together = f"{out}-{length}.records.jsonl"
    records = []
    for task, file in zip(options.tasks, files):
        records.append(f"{out}-{length}-{task}.records.jsonl")
        subprocess.run(common + ["--tasks", file, "--records", records[-1], "--json", "/dev/null"], check=True,
                       stdout=subprocess.DEVNULL)
        print(f"{os.path.basename(model)} {length} {task}", file=sys.stderr)
    with open(together, "w") as file:
        for path in records:
            with open(path) as one:
                file.write(one.read())
    path = f"{out}-{length}.json"
    subprocess.run(common + ["--tasks", ",".join(files), "--records", together, "--json", path], check=True, stdout=subprocess.DEVNULL)
    os.remove(together)
    with open(path) as file:
        return json.load(file)


def number(x, digits=4):
    if x is None:
        return "–"
    text = f"{x:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def size(n):
    return f"{n / 2**20:.2f} MiB" if n >= 2**20 else f"{n / 2**10:.0f} KiB"


def table(options, rows, budget):
    """Rows of one budget, the smallest KL first; and the policies that refuse it."""
    of = {}
    refused = []
    for row in rows:
        if row.get("error") or row.get("kl") is None:
            if row.get("budget") == budget and row["policy"] not in refused:
                refused.append(row["policy"])
        elif row.get("budget") in (budget, None):
            of.setdefault(row["policy"], {})[row["task"]] = row
    tasks = [task for task in options.tasks if any(task in by_task for by_task in of.values())]
    lines = ["| policy | kept (95%) | lost, at near ties | KL, mean | KL, 99% | top-1 | " + " | ".join(f"KL, {task}" for task in tasks) +
             " | on the device | moved per token |", "| --- " * (8 + len(tasks)) + "|"]
    for policy, by_task in sorted(of.items(), key=lambda item: item[1][None]["kl"] if item[0] != "full" else -1):
        row = by_task[None]
        least, most = row.get("kept_95") or (None, None)
        kept = f"{number(row['kept'], 2)} ({number(least, 2)}-{number(most, 2)})" if row.get("kept_95") else "–"
        lost = "–"
        if row.get("kept_95"):
            lost = f"{row['kept_of'] * (1 - row['kept']):.1f}, {row['lost_at_ties']:.1f}"
        moved = row["host_to_device_bytes"] / max(row["generated_tokens"], 1)
        lines.append(f"| {policy.split(':head-profile')[0]} | {kept} | {lost} | {number(row['kl'])} | {number(row['kl_p99'], 2)} | "
                     f"{number(row['top1'], 3)} | " +
                     " | ".join(number(by_task[task]["kl"] if task in by_task else None) for task in tasks) +
                     f" | {size(row['device_kv_bytes'])} {row['device_kv_type'].upper()} | {size(moved)} |")
    if refused:
        lines.append("\nRefused: " + ", ".join(p.split(":head-profile")[0] for p in refused) + ".")
    return "\n".join(lines)


def main():
    listed = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--orrery", default="build/orrery")
    parser.add_argument("--texts", default="build/texts", help="make_texts.py's folder")
    parser.add_argument("--half", choices=["tune", "report"], default="report")
    parser.add_argument("--out", default="build/real-models", help="folder of results")
    parser.add_argument("--policies", type=listed, default=listed(
        "auto,heterocache,synckv,shadowkv,adakv,freekv,snapkv,cake,quest,duoattention,razorattention"))
    parser.add_argument("--budgets", type=listed, default=listed("50%,20%,10%"))
    parser.add_argument("--lengths", type=listed, default=["1024"])
    parser.add_argument("--tasks", type=listed, default=listed("needles,functions,lookup,lists,summaries"))
    parser.add_argument("--samples", type=int, default=4, help="texts a task")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    for model in options.models:
        name = os.path.splitext(os.path.basename(model))[0]
        for length in options.lengths:
            results = evaluate(options, model, length, os.path.normpath(os.path.join(options.out, name)))
            settings = results["settings"]
            full = next(row for row in results["rows"] if row["policy"] == "full" and row["task"] is None)
            print(f"## {name} behind {int(length):,} tokens\n")
            print(f"{options.samples} texts a task, {full['answers']} answers; full attention has {full['kept_of']:g} right. "
                  f"Path {settings['path']}; {options.half} half.\n")
            for budget in options.budgets:
                print(f"**{budget} of the KV**\n\n{table(options, results['rows'], budget)}\n", flush=True)


if __name__ == "__main__":
    main()
