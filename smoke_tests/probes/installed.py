"""List the distributions of this environment, and compare every file, including .pyc files, with its
RECORD."""

import _imp
import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
UNCHECKED = b"\1\0\0\0"  # flag in a .pyc's header: has the hash of its source, which Python does not check
# The specification allows rows without a hash for these.
UNHASHED = re.compile(r"\.pyc$|\.dist-info/RECORD(\.jws|\.p7s)?$")


HASHES = {"sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s"}


def digest(path, algorithm):
    """A file's hash in the form of RECORD; SHA-256 if RECORD's algorithm is weaker or unknown."""
    algorithm = algorithm if algorithm in HASHES else "sha256"
    result = hashlib.new(algorithm)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            result.update(chunk)
    return f"{algorithm}=" + base64.urlsafe_b64encode(result.digest()).rstrip(b"=").decode()


def judge(row):
    """The fault of a RECORD row, as (kind of fault, path); None if there is none."""
    name, expected, size = row
    path = SITE / name
    if not path.is_file():
        return "absent", name
    if not expected:
        if not UNHASHED.search(name):
            return "unhashed", name
        return ("stale", name) if stale(path) else None
    if size and path.stat().st_size != int(size):
        return "changed", name
    return ("changed", name) if digest(path, expected.partition("=")[0]) != expected.rstrip("=") else None


def other_python():
    """The tag of the Python in whose folder the packages are, such as `cpython-311`; None: this Python.

    If the image's Python is not the base's, lib/python3.12 is a link to lib/python3.11, and layers that
    both images have contain byte-code for the base's Python.
    """
    folder = SITE.parent
    target = folder.resolve()
    version = re.fullmatch(r"python(\d+)\.(\d+)", target.name)
    linked = folder.is_symlink() and target.parent == folder.parent.resolve()
    return f"cpython-{version[1]}{version[2]}" if linked and version else None


OTHER_PYTHON = other_python()


def stale(path):
    """Whether a .pyc is for another Python, or is hash-based and was made from another source.

    Python does not check unchecked .pyc files. Those for `OTHER_PYTHON` must be unchecked, as torchkiln's
    are.
    """
    if path.suffix != ".pyc":
        return False
    head = path.open("rb").read(16)
    if head[:4] == importlib.util.MAGIC_NUMBER:
        hash_based = bool(head[4] & 1)
    elif OTHER_PYTHON and path.stem.endswith(f".{OTHER_PYTHON}") and head[4:8] == UNCHECKED:
        hash_based = True
    else:
        return True
    return hash_based and made_from(source_of(path), head[:4]) != head[8:]


def made_from(source, magic):
    """The hash of *source* as in a .pyc of the Python with this magic number; None: there is no source."""
    if not source.is_file():
        return None
    return _imp.source_hash(int.from_bytes(magic, "little"), source.read_bytes())


def source_of(path):
    """The path of a .pyc's source; importlib's function would reject builder.bak.cpython-311.pyc."""
    if path.parent.name != "__pycache__":
        return path.with_suffix(".py")
    stem = re.sub(r"\.opt-[^.]+$", "", path.stem)
    return path.parent.parent / f"{stem.rpartition('.')[0] or stem}.py"


installed, rows, broken = {}, {}, []
for found in importlib.metadata.distributions(path=[str(SITE)]):
    name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
    if name in installed:
        broken.append(f"{name}: installed twice")
    installed[name] = found.version
    record = found.read_text("RECORD")
    if record is None:
        broken.append(f"{name}: no RECORD")
        continue
    for row in csv.reader(record.splitlines()):
        known = rows.setdefault(row[0], tuple(row))
        if known[1] and row[1] and known[1] != row[1]:
            broken.append(f"{row[0]}: two distributions disagree about it")

recorded = {os.path.normpath(SITE / name) for name in rows}
unowned = [
    os.path.relpath(os.path.join(folder, name), SITE)
    for folder, _, names in os.walk(SITE)
    for name in names
    if os.path.join(folder, name) not in recorded
]
faults = {"absent": [], "changed": [], "unhashed": [], "stale": []}
longest_first = sorted(rows.values(), key=lambda row: -int(row[2] or 0))
with ThreadPoolExecutor(os.cpu_count()) as pool:
    for fault in filter(None, pool.map(judge, longest_first)):
        faults[fault[0]].append(fault[1])
print(
    json.dumps(
        {
            "installed": installed,
            "files": len(rows),
            "bytes": sum(int(row[2] or 0) for row in rows.values()),
            "broken": sorted(broken),
            "unowned": sorted(unowned),
            **{kind: sorted(names) for kind, names in faults.items()},
        }
    )
)
