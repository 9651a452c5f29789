#!/usr/bin/env python3
"""Builds a wheel with the library inside: build_wheel.py BUILD OUT, where BUILD holds capi/liborrery.a, or capi/orrery.dll.

For Linux the library is linked again from the static one, with the C++ library inside and against the C library of 2018
(old_glibc.py), so that it loads on every system since. The wheel's name says which version it needs: objdump -T shows the
newest GLIBC symbol. For Windows the wheel holds the DLL, which needs the system alone. Either does for every Python 3 of its
system: no extension module is compiled.
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import old_glibc

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")


def version():
    with open(os.path.join(ROOT, "include", "orrery.h"), encoding="utf-8") as file:
        header = file.read()
    return ".".join(re.search(r"ORRERY_VERSION_%s (\d+)" % part, header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def link(build, out):
    """The shared library of a wheel for Linux."""
    library = os.path.join(out, "liborrery.so.0")
    with tempfile.TemporaryDirectory() as folder:
        old_glibc.link(["-Wl,--whole-archive", os.path.join(build, "capi", "liborrery.a"), "-Wl,--no-whole-archive"], library,
                       os.path.join(ROOT, "capi", "orrery.map"), folder)
    return library


def stripped(dll, out):
    """A copy of the DLL without the names of its local functions."""
    copy = os.path.join(out, "orrery.dll")
    shutil.copy(dll, copy)
    subprocess.run([os.environ.get("STRIP", "x86_64-w64-mingw32-strip"), copy], check=True)
    return copy


def tag(library):
    """manylinux_X_Y of the newest GLIBC that the library needs; linux where it needs another C++ library than its own."""
    symbols = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True).stdout
    needs = [tuple(map(int, v)) for v in re.findall(r"\(?GLIBC_(\d+)\.(\d+)[.\d]*\)? ", symbols)]
    machine = platform.machine()
    if not needs or re.search(r"\*UND\*.*GLIBCXX_", symbols):
        return "linux_" + machine
    return "manylinux_%d_%d_%s" % (*max(needs), machine)


def write(build, out):
    os.makedirs(out, exist_ok=True)
    dll = os.path.join(build, "capi", "orrery.dll")
    windows = os.path.exists(dll)
    library = stripped(dll, out) if windows else link(build, out)
    name = "orrery-" + version()
    platform_tag = "win_amd64" if windows else tag(library)
    files = {"orrery/" + os.path.basename(library): library}
    for file in sorted(os.listdir(os.path.join(HERE, "orrery"))):
        if file.endswith((".py", ".typed")):
            files["orrery/" + file] = os.path.join(HERE, "orrery", file)
    licences = os.path.join(build, "licences")   # of all that is compiled in; nlohmann-json is in the tool alone
    for file in sorted(os.listdir(licences)):
        if file != "LICENSE.nlohmann-json":
            files[name + ".dist-info/" + file] = os.path.join(licences, file)
    wheel = os.path.join(out, "%s-py3-none-%s.whl" % (name, platform_tag))
    records = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(path, data):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append("%s,sha256=%s,%d" % (path, digest, len(data)))
            info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))  # the same files make the same wheel
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, data)
        for path, source in files.items():
            with open(source, "rb") as file:
                add(path, file.read())
        carried = "".join("License-File: %s\n" % path.rpartition("/")[2] for path in files if "/LICENSE" in path)
        add(name + ".dist-info/METADATA", ("Metadata-Version: 2.1\nName: orrery\nVersion: %s\nSummary: Language models with long "
            "contexts inside your program\nAuthor: The Orrery authors\nLicense: MIT\n%sRequires-Python: >=3.9\n" % (version(), carried)).encode())
        add(name + ".dist-info/WHEEL", ("Wheel-Version: 1.0\nGenerator: orrery\nRoot-Is-Purelib: false\nTag: py3-none-%s\n"
            % platform_tag).encode())
        record = name + ".dist-info/RECORD"
        archive.writestr(record, "\n".join(records + [record + ",,"]) + "\n")
    os.remove(library)
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: build_wheel.py BUILD OUT")
    print(write(sys.argv[1], sys.argv[2]))
