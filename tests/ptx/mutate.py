#!/usr/bin/env python3
"""Removes each barrier, warp barrier and wait for asynchronous copies from the kernels, one by one, and looks whether a test notices.

mutate.py BUILD [FAMILY[:KERNEL]...]: for each family of the table below (or of one of its kernels), runs its tests on PTX without one of these
instructions. It prints, for each, `caught`, `harmless` with the reason that mutations.txt gives, or `SURVIVES`. With --write it rewrites mutations.txt;
reasons stay. It fails
if a mutant survives that has no reason, or if one is caught that has a reason.

mutate.py --bounds BUILD [FAMILY[:FUNCTION]...] halves bounds instead (bounds.py). The tests run in emulation (BUILD has emulated_cuda); a mutant that
survives there runs on PTX, with the tests for barriers if there are any, and is `caught on PTX` or survives. --emulation leaves PTX out. --survivors
takes the mutants that the list has as survivors, or not at all.

mutate.py --host BUILD [KIND|FILE]... changes the backend's host code instead (host.py): `orders`, `queues`, `places` and `grids`, or the first three of
one file of cuda/; `grids:FAMILY:KERNEL` is one kernel's. --every N takes each N-th. The tests run in emulation, under schedules.

Instances of one template have the same barriers: one is removed from all instances (with this number of barriers) that the tests run. Files of kernels
without a barrier are in the table of bounds only.
"""
import argparse
import collections
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

import bounds
import host

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "mutations.txt")
# family: the file of kernels, and the smallest tests that run all of them
FAMILIES = {
    "attend_prefill": "GpuAttendPrefill.EveryTypeAndHeadSize:GpuAttendPrefill.RowsOfSeveralSequences",
    "rows": "GpuRows.*:GpuFusions.AttentionAndTheGateQuantizeTheirRows:GpuTogether.StepsOfManyForms*",
    "kv": "GpuFusions.HeadsOnTheirWayToTheCache",
    "low_rank": "GpuLowRank.AsThePlainPath",
    "top_keys": "GpuTopKeys.SeveralJobs:GpuTopKeys.EveryScoring:GpuTopKeys.TiesGoToTheLowerKeys:GpuTopKeys.CountsWhatIsCommon:GpuTopKeys.MomentsOverAWindow:GpuTopKeys.WeightsAndTheirMeans:GpuFetch.ExcludedPages:GpuFetch.OneSetForAllHeads:GpuFetch.KeysNearTheBest:GpuKeyCodes.ScoresBelowTheLeastAreLeftOut:GpuFetchByManyBlocks.*",
    "key_codes": "GpuKeyCodes.*",
    "fetch": "GpuFetch.PagesAndTokens:GpuFetch.MorePlacesThanThreads:GpuFetch.LowestScoresAreReplaced:GpuFetchChanged.*:GpuFetch.KeysNearTheBest:GpuFetch.KeysNearTheBestWithTiesAndNoNumbers:GpuFetchByManyBlocks.*",
    "shortlist": "GpuShortlist.*",
    "attend_decode": "GpuAttendDecode.EveryTypeAndHeadSize:GpuAttendDecode.LongerSplits:GpuFusions.AttentionAndTheGateQuantizeTheirRows",
    "matmul_prefill": "*GpuMatmul.MatchesTheDoubleProduct*:GpuMatmulFloats.*:GpuMatmulFusions.GateAndUp*",
    "matmul_cublas": "*GpuCublas.*",
}
# Kernels that fewer tests run.
FEWER = {
    "select_by_order_kernel": "GpuFetch.OneSetForAllHeads:GpuFetchFollowers.TiesAndNoNumbers",
    "near_best_kernel": "GpuFetch.KeysNearTheBest",
    **dict.fromkeys(["evicted_logs_kernel", "weigh_held_kernel"], "GpuKeyCodes.*"),
    "select_near_best_kernel": "GpuFetch.KeysNearTheBest",
    **dict.fromkeys("clear_selection_kernel count_digits_kernel count_taken_kernel write_taken_kernel note_held_kernel count_missing_kernel list_misses_kernel "
                    "end_plan_by_many_kernel".split(), "GpuFetchByManyBlocks.*"),
}
# Of bounds: files without a barrier, and more tests, because emulation is cheap. A family is a file of kernels or a header that has loops.
ALL_MATMULS = "*GpuMatmul.MatchesTheDoubleProduct*:*GpuMatmul.RoundsOfUnits*:GpuMatmulFloats.*:GpuMatmulProducts.*:GpuMatmulFusions.*"
BOUNDS = dict(
    FAMILIES,
    rows="GpuRows.*:GpuFusions.*:GpuTogether.StepsOfManyForms*",
    kv="GpuFusions.HeadsOnTheirWayToTheCache:GpuFusions.OtherRows*:GpuKv.*",
    embed="GpuFormats.*",
    digests="GpuTopKeys.DigestsAndTheBestOfThem:GpuKv.Means*",
    low_rank="GpuLowRank.*",
    top_keys="GpuTopKeys.*:GpuFetch.*:GpuFetchByManyBlocks.*:GpuKeyCodes.*",
    fetch="GpuFetch.*:GpuFetchByManyBlocks.*:GpuFetchChanged.*:GpuFetchFollowers.*:Modes/GpuFetchModes.*/4:Modes/GpuFetchModes.*/5:Modes/GpuFetchModes.*/6",   # the last three: shadowkv
    attend_decode="GpuAttendDecode.*:GpuFusions.AttentionAndTheGateQuantizeTheirRows",
    attend_prefill="GpuAttendPrefill.*",
    matmul_decode=ALL_MATMULS,
    matmul_prefill=ALL_MATMULS,
    matmul_cublas="*GpuCublas*",
)
HEADERS = {
    "moves": "GpuKv.*:GpuTopKeys.*:GpuFetch.*",
    "kv.cuh": "GpuKv.*",
    "top_keys.cuh": "GpuTopKeys.*:GpuKeyCodes.*:GpuFetchByManyBlocks.*",
    "blocks": "GpuFormats.*:*GpuMatmul.MatchesTheDoubleProduct*:GpuMatmulFloats.*:*GpuCublas*",
}
# Of host code: quick tests first, since the first failure ends a run. Sessions run under seeds of schedules.
SESSIONS = "All/GpuSchedules.*:GpuPolicySchedules.*"
HOST = {
    "cuda_backend.cpp": "GpuTransfer.*:GpuFormats.*:GpuTogether.*:GpuTopKeys.*:GpuShortlist.*:*GpuCublas*:GpuModel.PromptsThroughCublas*:" + SESSIONS,
    "jobs.cpp": "GpuTopKeys.*:GpuFetch.*:GpuFetchByManyBlocks.*:GpuFetchChanged.*:GpuFetchFollowers.*:GpuKv.Means*:" + SESSIONS,
    "key_codes.cpp": "GpuKeyCodes.*:" + SESSIONS,
    "low_rank.cpp": "GpuLowRank.*:" + SESSIONS,
    "operations.cpp": "GpuRows.*:" + SESSIONS,
    "shortlist.cpp": "GpuShortlist.*:GpuSampling.*",
    "staging.cpp": "GpuAttendPrefill.Segments*:GpuAttendPrefill.Staged*:" + SESSIONS,
    "steps.cpp": "GpuTogether.*:" + SESSIONS,
    "weights.cpp": "GpuFormats.*:GpuTransfer.*",
    "transfers.cpp": "GpuTransfer.*:GpuKv.MovesAheadAreInOrder:" + SESSIONS,
}
HEAD = """# Made by mutate.py: what a test says when this instruction is removed, or this bound is halved. README.md explains the verdicts. A
# reason stands behind "harmless". One family: mutate.py [--bounds] --write BUILD FAMILY
"""
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


def run(program, tests, timeout=600, **environment):
    """Whether the tests pass within these seconds of the processor: on a busy machine a mutant is not caught for being slow. Who sleeps has eight times as long."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout) + 1, int(timeout) + 1))

    try:
        return subprocess.run([program, "--gtest_filter=" + tests, "--gtest_brief=1", "--gtest_fail_fast"], env=dict(os.environ, **environment),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=8 * timeout, preexec_fn=limit).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def copy_ptx(ptx, folder):
    for name in os.listdir(ptx):
        if name.endswith(".ptx"):
            shutil.copy(os.path.join(ptx, name), folder)


def write_list(known):
    with open(LIST, "w") as out:
        out.write(HEAD)
        missing = [family for family in [*BOUNDS, *HEADERS] if not any(re.match(rf"{family} .*: half of bound", key) for key in known)]
        if missing:
            out.write(f"# Bounds of these families have not run: {', '.join(missing)}\n")
        for key in sorted(known):
            out.write(f"{key}\t{known[key]}\n")


def verdict_on(how, before):
    """The verdict of a mutant that is caught in the way `how`, or survives if there is none; and whether that contradicts the list."""
    if how:
        return how, before.startswith("harmless")
    return (before, False) if before.startswith("harmless") else ("SURVIVES", True)


def halve(options, program, ptx, known):
    """Halves the bounds of the families, and returns how many verdicts are bad."""
    root = os.path.dirname(os.path.dirname(HERE))
    build = os.path.abspath(options.build)
    bad = 0
    for family in options.families or [*BOUNDS, *HEADERS]:
        family, _, only = family.partition(":")
        name = family.removesuffix(".cuh") + (".cuh" if family in HEADERS else ".cu")
        tests = HEADERS[family] if family in HEADERS else BOUNDS[family]
        found, skipped = bounds.bounds_of(os.path.join(root, bounds.KERNELS, name))
        keys = bounds.keys_of(family, found)
        for key in [*known]:   # of code that has changed
            if key.startswith(family + " ") and (": half of bound" in key or known[key].startswith("skipped")) and key not in keys:
                del known[key]
        known.update((f"{family} {place}", "skipped: " + reason) for place, reason in skipped.items())
        folder = tempfile.mkdtemp()
        try:
            mutated = bounds.emulated_program(root, build, folder, name, found)
            began = time.time()
            if not mutated or not run(mutated, tests, ORRERY_MUTANT=str(len(found))):   # no bound has this number
                sys.exit(f"{family}: {tests} fails as it is")
            patience = 20 + 5 * (time.time() - began)
            on_ptx = FAMILIES.get(family, tests)
            passes_on_ptx = None   # not known yet
            for k, (bound, key) in enumerate(zip(found, keys)):
                before = known.get(key, "")
                if only not in ("", bound.function) or (options.survivors and before.startswith(("caught", "harmless"))):
                    continue
                how = "" if run(mutated, tests, patience, ORRERY_MUTANT=str(k)) else "caught"
                if not how and not options.emulation:
                    if passes_on_ptx is None:
                        passes_on_ptx = run(program, on_ptx, ORRERY_PTX=ptx)
                    if not passes_on_ptx:
                        sys.exit(f"{family}: {on_ptx} fails on PTX as it is")
                    changed = os.path.join(folder, "ptx")
                    os.makedirs(changed, exist_ok=True)
                    copy_ptx(ptx, changed)
                    if not bounds.ptx_of(root, build, folder, name, bound, changed):
                        sys.exit(f"{key}: does not compile")
                    how = "" if run(program, on_ptx, ORRERY_PTX=changed) else "caught on PTX"
                known[key], is_bad = verdict_on(how, before)
                bad += is_bad
                print(f"{key}\t{known[key]}", flush=True)
        finally:
            shutil.rmtree(folder)
        if options.write:
            write_list(known)
    return bad


def change_host(options, known):
    """Changes places of the host code and grids, and returns how many verdicts are bad."""
    root = os.path.dirname(os.path.dirname(HERE))
    found = host.sites(root)
    keys = [site.key for site, _ in found]
    wanted = options.families or ["orders", "queues", "places", "grids"]
    bad = 0
    folder = tempfile.mkdtemp()
    try:
        mutated = host.program(root, os.path.abspath(options.build), folder, found)
        if not mutated:
            sys.exit("the host code with mutants does not compile")
        began, passed = {}, [-1]

        def patience(tests):
            if tests not in began:
                start = time.time()
                if not run(mutated, tests, 1800):
                    sys.exit(f"{tests} fails as it is")
                began[tests] = time.time() - start
            return 60 + 5 * began[tests]

        def judge(key, tests, mutant):
            nonlocal bad
            before = known.get(key, "")
            if options.survivors and before.startswith(("caught", "harmless")):
                return
            passed[0] += 1
            if passed[0] % options.every:
                return
            known[key], is_bad = verdict_on("" if run(mutated, tests, patience(tests), ORRERY_MUTANT=mutant) else "caught", before)
            bad += is_bad
            print(f"{key}\t{known[key]}", flush=True)
            if options.write:   # a run of hours may be cut off
                write_list(known)

        for key in [*known]:   # of code that has changed
            if key.startswith("host ") and not key.startswith("host grids ") and key not in keys:
                del known[key]
        chosen = [word.split(":")[1:] for word in wanted if word.startswith("grids:")]
        for family, tests in BOUNDS.items():
            if "grids" in wanted or any(family == word[0] for word in chosen):
                kernels = host.kernels_of(root, family)
                if "grids" not in wanted and all(len(word) == 2 for word in chosen):
                    kernels &= {word[1] for word in chosen if word[0] == family}
                    tests = ":".join(dict.fromkeys(FEWER.get(kernel, tests) for kernel in sorted(kernels)))
                grids = os.path.join(folder, "grids")
                if not run(mutated, tests, 1800, ORRERY_GRIDS=grids):
                    sys.exit(f"{tests} fails as it is")
                for line in open(grids):
                    name, *most = line.split()
                    for axis, n in zip("xyz", most):
                        for by in ("+1", "-1"):
                            if name in kernels and (int(n) > 1 or (axis == "x" and by == "-1")):
                                judge(f"host grids {family} {name}: grid.{axis} {by[0]} 1", tests, f"g:{name}:{axis}:{by}")
                if options.write:
                    write_list(known)
        for k, (site, _) in enumerate(found):
            if host.kind(site) in wanted or site.file in wanted:
                judge(site.key, HOST[site.file], str(k))
    finally:
        shutil.rmtree(folder)
    if options.write:
        write_list(known)
    return bad


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("build")
    options.add_argument("families", nargs="*")
    options.add_argument("--write", action="store_true")
    options.add_argument("--bounds", action="store_true")
    options.add_argument("--host", action="store_true")
    options.add_argument("--emulation", action="store_true")
    options.add_argument("--every", type=int, default=1, metavar="N", help="with --host: each N-th of the mutants, the first one first")
    options.add_argument("--survivors", action="store_true")
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
    if options.host:
        sys.exit(1 if change_host(options, known) else 0)
    if options.bounds:
        sys.exit(1 if halve(options, program, ptx, known) else 0)
    bad = 0
    for family in options.families or FAMILIES:
        family, _, only = family.partition(":")
        tests = FEWER.get(only, FAMILIES[family])
        folder = tempfile.mkdtemp()
        try:
            copy_ptx(ptx, folder)
            path = os.path.join(folder, family + ".ptx")
            text = open(path).read().split("\n")
            counters = os.path.join(folder, "counters")
            if not run(program, tests, ORRERY_PTX=folder, ORRERY_PTX_COUNTERS=counters):
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
                    known[key], is_bad = verdict_on("" if run(program, tests_of, ORRERY_PTX=folder) else "caught", known.get(key, ""))
                    bad += is_bad
                    print(f"{key}\t{known[key]}", flush=True)
        finally:
            shutil.rmtree(folder)
        if options.write:
            write_list(known)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
