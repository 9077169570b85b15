#!/usr/bin/env python3
"""Checks of the source tree that no compiler makes. Prints every violation; exit code 1 if there is one.

  scripts/check_layers.py [--root DIR]

1. A folder of src/ includes only the folders that LAYERS allows it, and only the llama.cpp headers it may know.
2. Words of hardware vendors stand in src/device only.
3. No committed text names an absolute path of somebody's machine or a host that ALLOWED_HOSTS lacks.
4. No source file is longer than MAX_LINES unless scripts/long_files.txt says why.
5. Every folder of src/ is in LAYERS and in the order of src/CMakeLists.txt.
"""

import argparse
import pathlib
import re
import subprocess
import sys

MAX_LINES = 500
LONG_FILES = "scripts/long_files.txt"
SCRIPT = "scripts/check_layers.py"


class Layer:
    """What one folder of src/ may include: other folders, ggml's headers, llama.h and llama-ext.h."""

    def __init__(self, *folders, ggml=False, llama=False):
        self.folders = set(folders)
        self.ggml = ggml
        self.llama = llama


# The module map of docs/architecture.md, from the bottom up. A folder may only name folders above its own line here.
LAYERS = {
    "base": Layer(),
    "device": Layer("base", ggml=True),
    "gguf": Layer("base", ggml=True),
    "quant": Layer("base", "device", "gguf", ggml=True),
    "arch": Layer("base", "device", "gguf", "quant"),
    "graph": Layer("base", "device", "gguf", "quant", "arch", ggml=True),
    "model": Layer("base", "device", "gguf", "quant", "arch", "graph", ggml=True, llama=True),
    "autodiff": Layer("base", "device", "gguf", "quant", "arch", "graph", ggml=True),
    "engine": Layer("base", "device", "gguf", "quant", "arch", "graph", "model", "autodiff", ggml=True),
    "search": Layer("base"),
    "eval": Layer("base", "device", "gguf", "quant", "arch", "graph", "model", "autodiff", "engine"),
    "report": Layer("base", "search", "eval"),
    "pipeline": Layer("base", "device", "gguf", "quant", "arch", "graph", "model", "autodiff", "engine", "search",
                      "eval", "report"),
    "cli": Layer("base", "device", "gguf", "quant", "arch", "graph", "model", "autodiff", "engine", "search", "eval",
                 "report", "pipeline"),
}

VENDOR_FOLDER = "device"
VENDOR_WORDS = re.compile(r"(?<![a-z])(cuda|cublas|nvidia|hip|rocm|metal|vulkan|sycl|musa|opencl)(?![a-z])", re.I)

# Paths that only exist on one machine. A path below a variable or a relative one is fine.
LOCAL_PATH = re.compile(r"(?<![\w.$})/~-])/(?:home|root|work|Users)/[\w.]")
# A host in a URL, or one that stands by itself.
HOST = re.compile(r"(?:://(?:[^/\s@\"']*@)?([\w.-]+\.[a-z]{2,})"
                  r"|(?<![\w@./-])((?:[\w-]+\.)+(?:com|io|org))(?![\w(.-]))", re.I)
ALLOWED_HOSTS = {
    "github.com",
    "arxiv.org",
    "keepachangelog.com",
    "semver.org",
    "opensource.org",
    "www.w3.org",
    "example.com",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CODE_SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c"}


def code_files(root):
    source = root / "src"
    return sorted(p for p in source.rglob("*") if p.suffix in CODE_SUFFIXES and p.is_file())


def committed_files(root):
    """What git has or would take; without git, all files outside build trees."""
    result = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=False)
    if result.returncode == 0 and (root / ".git").exists():
        names = [n for n in result.stdout.decode().split("\0") if n]
        return sorted(root / n for n in set(names) if (root / n).is_file())
    skip = {"build", "third_party", ".git"}
    return sorted(p for p in root.rglob("*")
                  if p.is_file() and not skip & set(p.relative_to(root).parts))


def text_of(path):
    """The text of a file, or None where it is binary."""
    data = path.read_bytes()
    if b"\0" in data[:65536]:
        return None
    return data.decode("utf-8", errors="replace")


def include_violation(folder, layer, header):
    """Why `folder` may not include `header`, or None."""
    parts = pathlib.PurePosixPath(header).parts
    name, ours = parts[-1], parts[0] in LAYERS and len(parts) > 1
    if not ours and (name == "llama.h" or name.startswith(("llama-", "llama_"))):
        return None if layer.llama else "only src/model may include llama.cpp's own headers"
    if re.match(r"(ggml|gguf)[\w-]*\.h$", header):
        return None if layer.ggml else f"src/{folder} may not include ggml"
    if ours and parts[0] != folder and parts[0] not in layer.folders:
        return f"src/{folder} may not include src/{parts[0]} (see LAYERS in {SCRIPT})"
    if ".." in parts:
        return "includes are written from src/ on, without '..'"
    return None


def check_includes(root):
    for path in code_files(root):
        relative = path.relative_to(root)
        folder = relative.parts[1]
        if len(relative.parts) < 3:
            yield f"{relative}: a source file belongs into a folder of src/"
            continue
        if folder not in LAYERS:
            continue  # reported once by check_folders
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            include = INCLUDE.match(line)
            why = include and include_violation(folder, LAYERS[folder], include.group(2))
            if why:
                yield f"{relative}:{number}: includes {include.group(2)}: {why}"
            word = VENDOR_WORDS.search(line) if folder != VENDOR_FOLDER else None
            if word:
                yield f"{relative}:{number}: '{word.group(1)}' is a vendor's word, which only src/device may know"


def check_folders(root):
    order = list(LAYERS)
    for index, (folder, layer) in enumerate(LAYERS.items()):
        for target in sorted(layer.folders - set(order[:index])):
            yield f"{SCRIPT}: {folder} is allowed {target}, which is not below it"
    cmake = root / "src" / "CMakeLists.txt"
    listed = set(re.findall(r"\w+", cmake.read_text())) if cmake.exists() else set()
    for path in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        if not any(path.iterdir()):
            continue
        if path.name not in LAYERS:
            yield f"src/{path.name}: is not in LAYERS of {SCRIPT}"
        if cmake.exists() and path.name not in listed:
            yield f"src/{path.name}: is not in src/CMakeLists.txt"


def check_texts(root):
    for path in committed_files(root):
        text = text_of(path)
        if text is None:
            continue
        relative = path.relative_to(root)
        for number, line in enumerate(text.splitlines(), 1):
            local = LOCAL_PATH.search(line)
            if local:
                yield f"{relative}:{number}: an absolute path of one machine: {line[local.start():][:40]}"
            for match in HOST.finditer(line):
                host = (match.group(1) or match.group(2)).lower()
                if host not in ALLOWED_HOSTS:
                    yield f"{relative}:{number}: names the host {host}, which ALLOWED_HOSTS of {SCRIPT} lacks"


def long_file_reasons(root):
    """{path: reason} of scripts/long_files.txt; a line is `path | reason`, # starts a comment."""
    reasons = {}
    listing = root / LONG_FILES
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.partition("|")
                reasons[name.strip()] = reason.strip()
    return reasons


def check_lengths(root):
    reasons = long_file_reasons(root)
    long_now = set()
    for path in code_files(root):
        relative = path.relative_to(root).as_posix()
        n_lines = len(path.read_text(errors="replace").splitlines())
        if n_lines > MAX_LINES:
            long_now.add(relative)
            if not reasons.get(relative):
                yield f"{relative}: {n_lines} lines, more than {MAX_LINES}, and no reason in {LONG_FILES}"
    for name in sorted(set(reasons) - long_now):
        yield f"{LONG_FILES}: {name} is not longer than {MAX_LINES} lines any more, or not there"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    if not (root / "src").is_dir():
        parser.error(f"{root} has no src folder")
    violations = []
    for check in (check_folders, check_includes, check_texts, check_lengths):
        violations += check(root)
    for violation in violations:
        print(violation)
    print(f"layers: {len(code_files(root))} source files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
