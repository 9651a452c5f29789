"""Mutants of the backend's host code, for mutate.py --host: order, queues, places and grids.

One program has them all; ORRERY_MUTANT says which one it is. It is made of changed copies of the files of cuda/ (not of its kernels):

- "no WHAT": a mark of an event, an order of two queues, a wait, the wait within PinnedHalves::next() and take(), or a call that waits or sends, left out.
- "QUEUE for QUEUE": one use of a queue names another one.
- "PLACE + 16", "PLACE - 16": one use of an offset in the scratch memory is 16 bytes off. Of a stride in elements: 1 off.
- "grid.AXIS + 1", "grid.AXIS - 1" of a kernel: every launch of it has a block more, or less, on this axis. Of axes on which the tests' launches
  have more than one block.
"""
import collections
import os
import re
import shlex
import subprocess

import bounds

Site = collections.namedtuple("Site", "file line begin end text key")
FILES = ["cuda_backend.cpp", "jobs.cpp", "key_codes.cpp", "low_rank.cpp", "operations.cpp", "shortlist.cpp", "staging.cpp", "steps.cpp", "transfers.cpp",
         "weights.cpp"]
ORDERS = re.compile(r"(?:[A-Za-z_]\w*)(?:\[[^\]]*\]|\.now\(\))*(?:->|\.)(mark|order|wait|next|take)\(")
QUEUES = {"queue_": "ahead_queue_", "ahead_queue_": "queue_", "io_queue_": "queue_", "copies_": "queue", "queue": "copies_"}
BYTES = ("tiles entries out pairs moments moments_scores moments_totals top_keys moves moves_ahead sequences sequence_bytes entry_bytes frequencies heads "
         "pages shortlist rows rope quantized attend cublas staging m_and_l").split()
ELEMENTS = "stride tile_stride".split()
PLACES = re.compile(r"\bplan_?\.(" + "|".join(BYTES + ELEMENTS) + r")\b(?!\s*=[^=])")
HEADER = r"""
#include <cstdlib>
#include <string>
#include <utility>
inline const std::string orrery_mutant = std::getenv("ORRERY_MUTANT") ? std::getenv("ORRERY_MUTANT") : "";
inline const int orrery_number = !orrery_mutant.empty() && orrery_mutant[0] != 'g' ? std::atoi(orrery_mutant.c_str()) : -1;
inline thread_local bool orrery_dropped = false;
template <class F>
decltype(auto) orrery_without(int k, const F& f) {
  struct Flag {
    explicit Flag(bool on) { orrery_dropped = on; }
    ~Flag() { orrery_dropped = false; }
  } flag(k == orrery_number);
  return f();
}
template <class T>
T& orrery_one_of(int k, T& usual, T& other) {
  return k == orrery_number ? other : usual;
}
template <class T>
constexpr T orrery_off(int k, T place, int by) {
  return k == orrery_number ? static_cast<T>(place + static_cast<T>(by)) : place;
}
"""
GRIDS = r"""
namespace orrery::cuda {
namespace {
// g:KERNEL:AXIS:BY. ORRERY_GRIDS: a file that gets the largest grid of each kernel.
struct Seen {
  std::mutex mutex;
  std::map<std::string, std::array<unsigned, 3>> most;
  ~Seen() {
    if (const char* path = std::getenv("ORRERY_GRIDS")) {
      std::ofstream out(path);
      for (const auto& [name, g] : most) out << name << ' ' << g[0] << ' ' << g[1] << ' ' << g[2] << '\n';
    }
  }
};
void change_grid(const char* symbol, Dim3* grid) {
  static Seen seen;
  static const bool lists = std::getenv("ORRERY_GRIDS") != nullptr;
  if (!lists && (orrery_mutant.empty() || orrery_mutant[0] != 'g')) return;
  std::string name = readable_name(symbol);
  name = name.substr(0, name.find('<'));
  name = name.substr(name.rfind(':') + 1);
  if (lists) {
    const std::lock_guard<std::mutex> lock(seen.mutex);
    auto& g = seen.most[name];
    g = {std::max(g[0], grid->x), std::max(g[1], grid->y), std::max(g[2], grid->z)};
  }
  static const auto wanted = [] {
    std::vector<std::string> words(1);
    for (const char c : orrery_mutant)
      if (c == ':') words.emplace_back();
      else words.back().push_back(c);
    words.resize(4);
    return words;
  }();
  if (wanted[1] != name) return;
  unsigned& n = wanted[2] == "x" ? grid->x : wanted[2] == "y" ? grid->y : grid->z;
  n += static_cast<unsigned>(std::atoi(wanted[3].c_str()));
}
}  // namespace
}  // namespace orrery::cuda
"""


def kind(site):
    what = site.key.split(": ", 1)[1]
    return "orders" if what.startswith("no ") else "queues" if " for " in what else "places"


def kernels_of(root, family):
    """The names of the kernels in this file of kernels."""
    return set(re.findall(r"\b(\w+_kernel)\(", open(os.path.join(root, bounds.KERNELS, family + ".cu")).read()))


def function_of(lines, number):
    """The name of the function that this line stands in."""
    for line in reversed(lines[:number + 1]):
        named = re.match(r"[A-Za-z].*?(~?\w+)\([^;]*$", line)
        if named and not line.startswith(("template", "namespace", "//", "struct", "class")):
            return named.group(1)
    return ""


def sites(root):
    """[(site, replacement)] of all files."""
    found = []
    ordinal = collections.Counter()
    number_of = lambda: len(found)

    def add(name, lines, number, begin, end, what, text):
        function = function_of(lines, number)
        stem = f"{name} {function}: {what}"
        ordinal[stem] += 1
        key = "host " + stem + (f" ({ordinal[stem]})" if ordinal[stem] > 1 else "")
        found.append((Site(name, number, begin, end, lines[number][begin:end], key), text))

    for name in FILES:
        lines = open(os.path.join(root, "cuda", name)).read().split("\n")
        for number, line in enumerate(lines):
            code = line.split("//")[0]
            if not code.startswith("  ") or "static_assert" in code:
                continue
            for match in ORDERS.finditer(code):
                end = bounds.closing(code, match.end())
                if end < 0 or code[:match.start()].rstrip().endswith("void"):
                    continue
                text = code[match.start():end + 1]
                add(name, lines, number, match.start(), end + 1, f"no {text}", f"orrery_without({number_of()}, [&]() -> decltype(auto) {{ return {text}; }})")
            for match in re.finditer(r"(?<![\w.>:])(send|fill_ahead|finish_collecting|join_moves)\([^()]*\)(?=;)", code):
                if re.search(r"(void|return) $", code[:match.start()]):
                    continue
                text = match.group(0)
                add(name, lines, number, match.start(), match.end(), f"no {text}", f"(orrery_number == {number_of()} ? void() : {text})")
            for match in re.finditer(r"(?<![\w.>&])(queue_|ahead_queue_|io_queue_|copies_|queue)\b(?!\w)", code):
                usual = match.group(1)
                if usual in ("copies_", "queue") and (name != "staging.cpp" or function_of(lines, number) not in ("begin", "attend")):
                    continue
                if re.match(r"\.(failed|driver|stream|check)|_?\{", code[match.end():]) or "OnDevice" in code or "leaving_" in code or re.search(r"\bQueue&? $", code[:match.start()]):
                    continue
                if code[:match.start()].strip() == "" and re.match(r" = |\(", code[match.end():]):
                    continue
                other = QUEUES[usual]
                add(name, lines, number, match.start(), match.end(), f"{other} for {usual} in {code.strip()[:70]}", f"orrery_one_of({number_of()}, {usual}, {other})")
            for match in PLACES.finditer(code):
                by = 1 if match.group(1) in ELEMENTS else 16
                for sign in (by, -by):
                    add(name, lines, number, match.start(), match.end(), f"{match.group(0)} {'+' if sign > 0 else '-'} {by} in {code.strip()[:70]}",
                        f"orrery_off({number_of()}, {match.group(0)}, {sign})")
    return found


def write_changed(root, folder, found):
    """Changed copies of the files, each place with all of its mutants."""
    by_file = collections.defaultdict(list)
    for k, (site, text) in enumerate(found):
        by_file[site.file].append((site, text))
    to = os.path.join(folder, "cuda")
    os.makedirs(os.path.join(to, "device"), exist_ok=True)
    for name in FILES:
        lines = open(os.path.join(root, "cuda", name)).read().split("\n")
        for number in range(len(lines)):
            here = [(s, t) for s, t in by_file[name] if s.line == number]
            if here:
                lines[number] = nested(lines[number], here)
        with open(os.path.join(to, name), "w") as out:
            out.write("\n".join(lines))
    text = open(os.path.join(root, "cuda/device/owners.h")).read()
    for head in ("void mark(Queue& queue) {\n", "void wait(Queue& queue) const {", "void order(Queue& later) const {\n"):
        assert head in text, head
        text = text.replace(head, head.rstrip("\n") + " if (orrery_dropped) return;\n", 1)
    open(os.path.join(to, "device/owners.h"), "w").write(text)
    text = open(os.path.join(root, "cuda/device/queue.h")).read()
    head = "void wait(const char* what) {\n"
    assert head in text
    open(os.path.join(to, "device/queue.h"), "w").write(text.replace(head, head + "    if (orrery_dropped) return;\n", 1))
    text = open(os.path.join(root, "cuda/device/launch.cpp")).read()
    head = "void launch_named(Queue& queue, const Geometry& g, const char* name, void** parameters) {\n"
    assert head in text
    text = text.replace(head, head.replace("Geometry& g,", "Geometry& given,") + "  Geometry g = given;\n  change_grid(name, &g.grid);\n", 1)
    text = text.replace('#include "cuda/device/launch.h"\n',
                        '#include "cuda/device/launch.h"\n#include <array>\n#include <fstream>\n#include <map>\n#include <mutex>\n#include <vector>\n#include <algorithm>\n' + GRIDS, 1)
    open(os.path.join(to, "device/launch.cpp"), "w").write(text)


def nested(line, here):
    """The line with these replacements, of which one may lie in another one."""
    here = sorted(here, key=lambda h: (h[0].begin, -h[0].end))
    out, at, i = "", 0, 0
    while i < len(here):
        site = here[i][0]
        inner, same = [], []
        j = i
        while j < len(here) and here[j][0].begin < site.end:
            (same if (here[j][0].begin, here[j][0].end) == (site.begin, site.end) else inner).append(here[j])
            j += 1
        text = line[site.begin:site.end]
        shifted = [(s._replace(begin=s.begin - site.begin, end=s.end - site.begin), t) for s, t in inner]
        inside = nested(text, shifted) if shifted else text
        for s, t in same:
            inside = t.replace(text, inside, 1)
        out += line[at:site.begin] + inside
        at, i = site.end, j
    return out + line[at:]


def program(root, build, folder, found):
    """BUILD/tests/emulation/emulated_cuda with all mutants."""
    write_changed(root, folder, found)
    header = os.path.join(folder, "mutants.h")
    with open(header, "w") as out:
        out.write(HEADER)
    lines = bounds.commands(build, "emulated_cuda")
    link = shlex.split(next(line for line in reversed(lines) if " -o tests/emulation/emulated_cuda " in line).split(" && ")[1])
    for line in lines:
        if "cuda_emulated.dir" not in line or " -c " not in line:
            continue
        words = [word for word in shlex.split(line) if word != "ccache"]
        source = words[-1]
        sources = re.findall(r'#include "([^"]+)"', open(source).read()) if "/Unity/" in source else [source]
        if source.endswith(".cu") or not any(path.startswith(os.path.join(root, "cuda/")) for path in sources):
            continue   # kernels call nothing that has changed
        at = words.index("-o") + 1
        made = os.path.join(folder, os.path.basename(words[at]))
        link[link.index(words[at])] = made
        one = os.path.join(folder, os.path.basename(made) + ".cpp")
        with open(one, "w") as out:
            for path in sources:
                changed = os.path.join(folder, os.path.relpath(path, root))
                out.write(f'#include "{changed if os.path.exists(changed) else path}"\n')
        words[at], words[-1] = made, one
        for flag in ("-MF", "-MT"):
            del words[words.index(flag):words.index(flag) + 2]
        words = [word for word in words if word not in ("-MD", "-Werror", "all-warnings", "-Werror=all-warnings")]
        done = subprocess.run(words[:1] + ["-I" + folder, "-w", "-include", header] + words[1:], cwd=build, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr[:4000])
            return None
    made = os.path.join(folder, "emulated_cuda")
    link[link.index("-o") + 1] = made
    subprocess.run(link, cwd=build, check=True)
    return made
