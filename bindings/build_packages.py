#!/usr/bin/env python3
"""Builds a package with the library inside: build_packages.py npm|nuget BUILD OUT, where BUILD holds capi/liborrery.so. Prints its path.

npm: orrery-VERSION.tgz by `npm pack`: the JavaScript, its types, the addon and the library, which the addon finds beside itself.
nuget: Orrery.VERSION.nupkg: the assembly for netstandard2.0, and the library in runtimes/RID/native, where .NET looks for it.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NODE_FILES = ["index.js", "index.d.ts", "abi.js", "abi.d.ts", "chat.js", "README.md"]
CSHARP_SOURCES = ["Native.cs", "Interop.cs", "Orrery.cs", "Session.cs", "Tools.cs"]
PROCESSORS = {"x86_64": "x64", "aarch64": "arm64"}  # as Node and .NET call them


def version():
    with open(os.path.join(ROOT, "include", "orrery.h"), encoding="utf-8") as file:
        header = file.read()
    return ".".join(re.search(r"ORRERY_VERSION_%s (\d+)" % part, header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def processor():
    return PROCESSORS.get(platform.machine(), platform.machine())


def licences(build):
    """Of all that is compiled into the library; nlohmann-json is in the tool alone."""
    folder = os.path.join(build, "licences")
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name != "LICENSE.nlohmann-json"]


def node_include():
    """The folder of node_api.h that belongs to the node in $PATH; None where there is none."""
    node = shutil.which("node")
    own = [os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(node))), "include", "node")] if node else []
    return next((i for i in own + ["/usr/include/node", "/usr/include/nodejs/src"] if os.path.exists(os.path.join(i, "node_api.h"))), None)


def build_addon(capi, addon, *options):
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror",
                    "-Wno-unused-function", "-I", node_include(), "-I", os.path.join(ROOT, "include"),
                    os.path.join(HERE, "node", "addon.c"), "-L", capi, "-lorrery", "-lpthread", *options, "-o", addon], check=True)


def npm(build, out):
    stage = os.path.join(out, "stage")
    shutil.rmtree(stage, ignore_errors=True)
    os.makedirs(os.path.join(stage, "build"))
    for name in NODE_FILES:
        shutil.copy(os.path.join(HERE, "node", name), stage)
    for path in licences(build):
        shutil.copy(path, stage)
    with open(os.path.join(HERE, "node", "package.json"), encoding="utf-8") as file:
        package = json.load(file)
    package.update(version=version(), os=[sys.platform], cpu=[processor()], files=NODE_FILES + ["build", "LICENSE*"])
    with open(os.path.join(stage, "package.json"), "w", encoding="utf-8") as file:
        json.dump(package, file, indent=2)
    capi = os.path.join(build, "capi")
    build_addon(capi, os.path.join(stage, "build", "orrery.node"), "-s", "-Wl,-rpath,$ORIGIN")
    shutil.copy(os.path.join(capi, "liborrery.so.0"), os.path.join(stage, "build"))
    done = subprocess.run(["npm", "pack", "--offline", "--silent", "--pack-destination", os.path.abspath(out)], cwd=stage, check=True,
                          stdout=subprocess.PIPE, text=True)
    return os.path.join(out, done.stdout.split()[-1])


def build_assembly(assembly, *options):
    subprocess.run(["mcs", "-unsafe", "-langversion:7", "-warnaserror", "-nowarn:0649", "-target:library", "-out:" + assembly, *options,
                    *[os.path.join(HERE, "csharp", name) for name in CSHARP_SOURCES]], check=True)


NUSPEC = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata>
    <id>Orrery</id>
    <version>%s</version>
    <authors>The Orrery authors</authors>
    <description>Language models with long contexts inside your program</description>
    <license type="expression">MIT</license>
    <readme>README.md</readme>
    <dependencies><group targetFramework=".NETStandard2.0" /></dependencies>
  </metadata>
</package>
"""
RELATIONS = """<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Orrery.nuspec" Id="R1" />
</Relationships>
"""
TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
%s</Types>
"""


def nuget(build, out):
    os.makedirs(out, exist_ok=True)
    assembly = os.path.join(out, "Orrery.dll")
    # Members whose names say all have no comment.
    build_assembly(assembly, "-doc:" + os.path.join(out, "Orrery.xml"), "-nowarn:1591,1573")
    native = "runtimes/linux-%s/native/liborrery.so" % processor()
    files = {"lib/netstandard2.0/Orrery.dll": assembly, "lib/netstandard2.0/Orrery.xml": os.path.join(out, "Orrery.xml"),
             native: os.path.join(build, "capi", "liborrery.so"), "README.md": os.path.join(HERE, "csharp", "README.md")}
    files.update({"licences/" + os.path.basename(path) + ".txt": path for path in licences(build)})
    texts = {"Orrery.nuspec": NUSPEC % version(), "_rels/.rels": RELATIONS}
    endings = sorted({name.rpartition(".")[2] for name in [*files, *texts]})
    texts["[Content_Types].xml"] = TYPES % "".join('  <Default Extension="%s" ContentType="application/%s" />\n' % (
        e, "vnd.openxmlformats-package.relationships+xml" if e == "rels" else "octet") for e in endings)
    package = os.path.join(out, "Orrery.%s.nupkg" % version())
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files make the same package
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, data)
        for name, text in texts.items():
            add(name, text.encode())
        for name, path in files.items():
            with open(path, "rb") as file:
                add(name, file.read())
    return package


if __name__ == "__main__":
    KINDS = {"npm": npm, "nuget": nuget}
    if len(sys.argv) != 4 or sys.argv[1] not in KINDS:
        sys.exit("usage: build_packages.py npm|nuget BUILD OUT")
    print(KINDS[sys.argv[1]](os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])))
