"""Tokens per second that `orrery plan --card` predicts: mixtures and large dense models on cards of 8 to 24 GiB, at three contexts.

plan_cards.py ORRERY  writes the tables of results/experts.md.
"""

import json
import subprocess
import sys

MODELS = ["qwen3.6-35b-a3b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-4-26b-a4b", "glm-4.7-flash", "qwen3.8-27b", "llama-3.3-70b"]
CARDS = ["rtx-4060-8g", "rtx-2080-8g", "rtx-3060-12g", "rtx-4060ti-16g", "rtx-5060ti-16g", "rtx-3090-24g", "rtx-4090-24g"]
CONTEXTS = [8192, 32768, 131072]


def predict(tool, model, card, context):
    run = subprocess.run([tool, "plan", "--shape", model, "--context", str(context), "--card", card, "--json"], capture_output=True, text=True)
    if run.returncode not in (0, 4):
        raise SystemExit(run.stderr)
    return json.loads(run.stdout)


def cell(plan):
    if not plan["fits"]:
        return "-"
    if plan["n_experts"] == 0:
        chosen = [d for d in plan["divisions"] if d["fits"]][-1]
        speed, by_host = (f"{chosen[key]:.{0 if chosen[key] > 9.95 else 1}f}" for key in ("tokens_per_second", "tokens_per_second_by_host"))
        return speed if chosen["division"] == "all" else f"{speed}, {by_host} ({chosen['layers_on_device'] * 100 // plan['n_layers']}% of layers)"
    chosen = [d for d in plan["divisions"] if d["fits"]][-1]
    if chosen["division"] == "all":
        return f"{chosen['tokens_per_second']:.0f}"
    speeds = ", ".join(f"{chosen[key]:.0f}" for key in ("tokens_per_second", "tokens_per_second_reused", "tokens_per_second_by_host"))
    return f"{speeds} ({chosen['experts_on_device'] * 100 // plan['n_experts']}%)"


def main(tool):
    for context in CONTEXTS:
        print(f"\n{context:,} tokens, half of them read\n")
        print("| model | " + " | ".join(CARDS) + " |")
        print("| --- |" + " --- |" * len(CARDS))
        for model in MODELS:
            print(f"| {model} | " + " | ".join(cell(predict(tool, model, card, context)) for card in CARDS) + " |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
