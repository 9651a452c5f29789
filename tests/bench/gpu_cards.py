"""What gpu_model.py knows of cards: of each constant its value, and where that comes from.

A source is `sheet` (NVIDIA's data sheets and white papers, boost clocks; CUDA programming guide: compute capabilities), a publication, `assumed`, or
`measured`. Measured values take the place of others: lines CARD<TAB>CONSTANT<TAB>VALUE<TAB>NOTE of a file (results/gpu-measured.tsv).

  architecture, sms, clock (Hz), cache (bytes, second level), memory (bytes/s), holds (bytes)
  threads, blocks, shared   of an SM; bytes of shared memory
  whole, half   products of mma.sync a cycle of an SM, int8 and halves with float sums: TOPS of the sheet over SMs and clock. Hopper's sheet speaks of
                wgmma, which these kernels have not
  alu           cycles of a scheduler for a warp's instruction on whole numbers
  link          bytes/s of copies over PCIe x16: 0.82 of the raw rate
  read_share    the share of the memory's rate that reading reaches
  node          seconds of a graph's node that does nothing
  early         the same of one that may begin before those ahead of it end (from sm_90 on)
  near, far     cycles until a load returns from the second-level cache, and from memory
  served        bytes a cycle that the second-level cache gives an SM
  far_link      seconds until a load from host memory returns
  graph         seconds from a graph's launch on the host until its first node begins
  wait          seconds from the last node's end until the host goes on
  blocking      seconds that a copy takes that the host waits for, beside its bytes
  copy          seconds of an asynchronous copy on its stream, beside its bytes
  pieces        pieces of host memory a second that kernels read or write at most, whatever their size
  gathering     the share of `link` that they reach where pieces are large
"""
import os

LUO = "Luo and others, Dissecting the NVIDIA Hopper Architecture, arXiv 2501.12084"
H100 = "an H100 (gpu-h100.md)"
FIELDS = ("architecture sms clock memory cache link threads blocks shared holds whole half alu read_share node early near far served far_link graph wait "
          "blocking copy pieces gathering").split()


def known(source, **values):
    return {name: (value, source) for name, value in values.items()}


# What an H100 showed stands for every card where the driver and the link take the time, not the card.
EVERY = dict(known("assumed", read_share=.92, far_link=1.5e-6, copy=2.5e-6),
             **known(H100, node=.96e-6, early=.38e-6, graph=3.2e-6, wait=3.2e-6, blocking=9.2e-6, pieces=61e6, gathering=.9))
GEFORCE = dict(EVERY, **known("sheet", threads=1536, shared=100 << 10, whole=1024, half=256, alu=2), **known("assumed", served=16))
HOPPER = dict(EVERY, **known("sheet", architecture=90, sms=132, clock=1.98e9, cache=50 << 20, threads=2048, blocks=32, shared=228 << 10, alu=2,
                             link=52e9),
              **known(f"{H100}: by gpu_loops.py, of what our products took", whole=512, half=1024),
              **known(f"{LUO}, tables 3 and 4 (H800): 258 near and 414 far", near=336, far=656),
              **known("XLA, GpuDotFusionCostModel: 6.65 TB/s within one half of the cache", served=25))


class Card:
    def __init__(self, name, *groups):
        self.name, self.known = name, {}
        for group in groups:
            self.known.update(group)
        assert set(self.known) == set(FIELDS), set(self.known) ^ set(FIELDS)

    def __getattr__(self, field):
        if field in ("known", "name"):
            raise AttributeError(field)
        return self.known[field][0]

    def key(self):
        """What counts depend on."""
        return f"{self.architecture}:{self.sms}:{self.cache}:{self.near}:{round(self.far_link * self.clock)}"

    def gather(self, piece):
        """Bytes/s at which kernels read pieces of so many bytes of host memory."""
        return min(self.link * self.gathering, self.pieces * piece)

    def assumptions(self):
        """[(constant, value, source)] of what no data sheet says."""
        return [(field, *self.known[field]) for field in FIELDS if self.known[field][1] != "sheet"]


# An H200 has an H100's SMs, so counts are the same. Its second-level cache is 60 MB; no kernel asks.
CARDS = [
    Card("RTX 3060", GEFORCE, known("sheet", architecture=86, sms=28, clock=1.777e9, memory=360e9, cache=3 << 20, link=26e9, blocks=16, holds=12e9),
         known("assumed", near=240, far=500)),
    Card("RTX 4090", GEFORCE, known("sheet", architecture=89, sms=128, clock=2.52e9, memory=1008e9, cache=72 << 20, link=26e9, blocks=24, holds=24e9),
         known("assumed", near=273, far=541)),
    Card("RTX 5090", GEFORCE, known("sheet", architecture=120, sms=170, clock=2.407e9, memory=1792e9, cache=96 << 20, link=52e9, blocks=24, holds=32e9,
                                    alu=1), known("assumed", near=300, far=700)),
    Card("H100", HOPPER, known("sheet", memory=3350e9, holds=80e9)),
    Card("H200", HOPPER, known("sheet", memory=4800e9, holds=141e9)),
]


def take_measured(path):
    """Replaces constants of CARDS by those of the file, if there is one."""
    if not os.path.exists(path):
        return
    cards = {card.name: card for card in CARDS}
    for n, line in enumerate(open(path), 1):
        if line.startswith("#") or not line.strip():
            continue
        name, field, value, note = line.rstrip("\n").split("\t")
        if name not in cards or field not in FIELDS:
            raise SystemExit(f"{path}, line {n}: no such card or constant")
        cards[name].known[field] = (float(value), f"measured: {note}")
