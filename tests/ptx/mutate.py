#!/usr/bin/env python3
"""Removes each barrier, warp barrier and wait for asynchronous copies from the kernels, one by one, and looks whether a test notices.

mutate.py BUILD [FAMILY[:KERNEL]...]: for each family of the table below (or of one of its kernels), runs its tests on PTX without one of these instructions. It prints, for each,
`caught`, `harmless` with the reason that mutations.txt gives, or `SURVIVES`. With --write it rewrites mutations.txt; reasons stay. It fails
if a mutant survives that has no reason, or if one is caught that has a reason.

Instances of one template have the same barriers: one is removed from all instances (with this number of barriers) that the tests run. Files of kernels
without a barrier are not in the table.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "mutations.txt")
# family: the file of kernels, and the smallest tests that run all of them
FAMILIES = {
    "attend_prefill": "GpuAttendPrefill.EveryTypeAndHeadSize:GpuAttendPrefill.RowsOfSeveralSequences",
    "rows": "GpuRows.*:GpuFusions.AttentionAndTheGateQuantizeTheirRows:GpuTogether.StepsOfManyForms*",
    "kv": "GpuFusions.HeadsOnTheirWayToTheCache",
    "low_rank": "GpuLowRank.AsThePlainPath",
    "top_keys": "GpuTopKeys.SeveralJobs:GpuTopKeys.EveryScoring:GpuTopKeys.TiesGoToTheLowerKeys:GpuTopKeys.CountsWhatIsCommon:GpuTopKeys.MomentsOverAWindow:GpuTopKeys.WeightsAndTheirMeans:GpuFetch.ExcludedPages:GpuFetch.OneSetForAllHeads:GpuFetch.KeysNearTheBest",
    "fetch": "GpuFetch.PagesAndTokens:GpuFetch.MorePlacesThanThreads:GpuFetch.LowestScoresAreReplaced:GpuFetchChanged.*:GpuFetch.KeysNearTheBest:GpuFetch.KeysNearTheBestWithTiesAndNoNumbers",
    "shortlist": "GpuShortlist.*",
    "attend_decode": "GpuAttendDecode.EveryTypeAndHeadSize:GpuAttendDecode.LongerSplits:GpuFusions.AttentionAndTheGateQuantizeTheirRows",
    "matmul_prefill": "*GpuMatmul.MatchesTheDoubleProduct*:GpuMatmulFloats.*:GpuMatmulFusions.GateAndUp*",
    "matmul_cublas": "*GpuCublas.*",
}
# Kernels that fewer tests run.
FEWER = {
    "select_by_order_kernel": "GpuFetch.OneSetForAllHeads:GpuFetchFollowers.TiesAndNoNumbers",
    "near_best_kernel": "GpuFetch.KeysNearTheBest",
    "select_near_best_kernel": "GpuFetch.KeysNearTheBest",
}
REMOVED = re.compile(r"^\s*(@!?%p\d+\s+)?(bar\.sync|bar\.warp\.sync|cp\.async\.wait_group|membar|fence)\b.*;\s*$")
LETTERS = {"bar.sync": "barrier", "bar.warp.sync": "warp barrier", "cp.async.wait_group": "wait"}


def entries(text):
    """(name, first line, last line) of each kernel in the text's lines."""
    starts = [i for i, line in enumerate(text) if re.match(r"\s*(?:\.visible )?\.(entry|func)\b", line)]
    found = []
    for begin, end in zip(starts, starts[1:] + [len(text)]):
        match = re.match(r"\s*(?:\.visible )?\.entry (\S+?)\(", text[begin])
        if match:
            found.append((match.group(1), begin, end))
    return found


def short(symbol):
    """The template's name and the instance: attend_decode_kernel<0, 16>."""
    text = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip()
    text = re.sub(r"orrery::cuda::|orrery::|[a-z_]+_cu::|^void ", "", text)
    return re.sub(r"\(((?:[A-Z]\w*))\)", "", text.split(">(")[0] + ">" if ">(" in text else text.split("(")[0])


def run(program, folder, tests, counters=None, timeout=600):
    environment = dict(os.environ, ORRERY_PTX=folder)
    if counters:
        environment["ORRERY_PTX_COUNTERS"] = counters
    try:
        return subprocess.run([program, "--gtest_filter=" + tests, "--gtest_brief=1", "--gtest_fail_fast"], env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("build")
    options.add_argument("families", nargs="*")
    options.add_argument("--write", action="store_true")
    options.add_argument("--program", help="in place of BUILD/tests/ptx/ptx_cuda")
    options.add_argument("--ptx", help="in place of BUILD/ptx")
    options = options.parse_args()
    program = options.program or os.path.join(options.build, "tests/ptx/ptx_cuda")
    ptx = options.ptx or os.path.join(options.build, "ptx")
    known = {}
    if os.path.exists(LIST):
        for line in open(LIST):
            if "\t" in line and not line.startswith("#"):
                key, _, verdict = line.rstrip("\n").partition("\t")
                known[key] = verdict
    bad = 0
    for family in options.families or FAMILIES:
        family, _, only = family.partition(":")
        tests = FEWER.get(only, FAMILIES[family])
        folder = tempfile.mkdtemp()
        try:
            for name in os.listdir(ptx):
                if name.endswith(".ptx"):
                    shutil.copy(os.path.join(ptx, name), folder)
            path = os.path.join(folder, family + ".ptx")
            text = open(path).read().split("\n")
            counters = os.path.join(folder, "counters")
            if not run(program, folder, tests, counters):
                sys.exit(f"{family}: {tests} fails as it is")
            launches = {line.split()[0].replace("_", " ") for line in open(counters).read().split("\n")[1:] if line}
            templates = collections.defaultdict(list)
            for symbol, begin, end in entries(text):
                full = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip().replace("_", " ")
                barriers = [i for i in range(begin, end) if REMOVED.match(text[i])]
                if full in launches and barriers and only in ("", short(symbol).split("<")[0]):
                    templates[short(symbol).split("<")[0], len(barriers)].append(barriers)
            for (template, n_barriers), instances in sorted(templates.items()):
                tests_of = FEWER.get(template, tests)
                ordinal = collections.Counter()
                for k in range(n_barriers):
                    kind = REMOVED.match(text[instances[0][k]]).group(2)
                    kind = LETTERS.get(kind, kind)
                    ordinal[kind] += 1
                    key = f"{family} {template} of {n_barriers}: {kind} {ordinal[kind]}"
                    mutant = list(text)
                    for barriers in instances:
                        mutant[barriers[k]] = ""
                    with open(path, "w") as out:
                        out.write("\n".join(mutant))
                    caught = not run(program, folder, tests_of)
                    before = known.get(key, "")
                    if caught:
                        verdict = "caught"
                        bad += before.startswith("harmless")
                    else:
                        verdict = before if before.startswith("harmless") else "SURVIVES"
                        bad += verdict == "SURVIVES"
                    print(f"{key}\t{verdict}", flush=True)
                    known[key] = verdict
        finally:
            shutil.rmtree(folder)
        if options.write:
            with open(LIST, "w") as out:
                out.write("# Made by mutate.py: what a test says when this instruction is removed. A reason stands behind \"harmless\".\n")
                for key in sorted(known):
                    out.write(f"{key}\t{known[key]}\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
