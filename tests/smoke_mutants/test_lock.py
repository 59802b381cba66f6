"""Mutants of lock: an environment of two small wheels, and its differences from its lock."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import py_compile
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.smoke_suites import SUITE


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """site-packages of a fresh environment with the distributions alpha and beta."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    folder = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for name in ("alpha", "beta"):
        install(folder, name, {f"{name}/__init__.py": f"NAME = {name!r}\n".encode()})
    return folder


def install(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Install as pip does: the files, byte code, METADATA and RECORD."""
    info = f"{name}-1.0.dist-info"
    rows = []
    for path, data in {**files, f"{info}/METADATA": f"Name: {name}\nVersion: 1.0\n".encode()}.items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
        if path.endswith(".py"):
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            compiled = py_compile.compile(str(site / path), invalidation_mode=mode, doraise=True)
            rows.append(f"{os.path.relpath(str(compiled), site)},,")
    rows.append(f"{info}/RECORD,,")
    (site / info / "RECORD").write_text("\n".join(rows) + "\n")


def seen(site: Path) -> dict[str, Any]:
    """The output of the probe in the environment."""
    python = site.parents[2] / "bin" / "python"
    done = subprocess.run(
        [str(python), "-I", "-B", str(SUITE / "probes" / "installed.py")], capture_output=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_an_unchanged_environment_has_no_fault(site: Path) -> None:
    found = seen(site)
    assert found["installed"] == {"alpha": "1.0", "beta": "1.0"}
    assert not any(found[kind] for kind in ("broken", "absent", "changed", "unhashed", "stale", "unowned"))


def test_a_file_with_a_dot_in_its_stem_has_byte_code_too(site: Path) -> None:
    """An example is builder.bak.py of datasets. importlib.util.source_from_cache rejects its .pyc."""
    install(site, "gamma", {"gamma/builder.bak.py": b"NAME = 'gamma'\n"})
    found = seen(site)
    assert not any(found[kind] for kind in ("broken", "absent", "changed", "unhashed", "stale", "unowned"))

    cached = site / "gamma" / "__pycache__" / f"builder.bak.{sys.implementation.cache_tag}.pyc"
    (site / "gamma" / "builder.bak.py").write_bytes(b"NAME = 'delta'\n")
    assert seen(site)["stale"] == [str(cached.relative_to(site))]


@pytest.mark.parametrize("algorithm", ["sha512", "sha384", "blake2b"])
def test_a_record_may_use_a_stronger_hash(site: Path, algorithm: str) -> None:
    """The wheel specification allows this; the check computes the hash."""
    record = site / "beta-1.0.dist-info" / "RECORD"
    data = (site / "beta" / "__init__.py").read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    hashed = rf"\1,{algorithm}={digest},{len(data)}"
    record.write_text(re.sub(r"(?m)^(beta/__init__\.py),.*$", hashed, record.read_text()))
    assert seen(site)["changed"] == []

    (site / "beta" / "__init__.py").write_bytes(b"NAME = 'bete'\n")
    assert seen(site)["changed"] == ["beta/__init__.py"]


def _tamper(site: Path) -> None:
    (site / "alpha" / "__init__.py").write_bytes(b"NAME = 'alphb'\n")


def _lengthen(site: Path) -> None:
    (site / "alpha" / "__init__.py").write_bytes(b"NAME = 'alpha' # more\n")


def _delete(site: Path) -> None:
    (site / "beta" / "__init__.py").unlink()


def _plant(site: Path) -> None:
    (site / "sitecustomize.py").write_text("")


def _unhash(site: Path) -> None:
    record = site / "beta-1.0.dist-info" / "RECORD"
    record.write_text(re.sub(r"(?m)^(beta/__init__\.py),.*$", r"\1,,", record.read_text()))


def _stale(site: Path) -> None:
    other = site.parent / "other.py"
    other.write_text("NAME = 'another'\n")
    cached = next((site / "alpha" / "__pycache__").glob("*.pyc"))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cfile=str(cached), invalidation_mode=mode, doraise=True)


def _no_record(site: Path) -> None:
    (site / "beta-1.0.dist-info" / "RECORD").unlink()


@pytest.mark.parametrize(
    ("mutate", "kind", "named"),
    [
        (_tamper, "changed", "alpha/__init__.py"),
        (_lengthen, "changed", "alpha/__init__.py"),
        (_delete, "absent", "beta/__init__.py"),
        (_plant, "unowned", "sitecustomize.py"),
        (_unhash, "unhashed", "beta/__init__.py"),
        (_stale, "stale", f"alpha/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"),
        (_no_record, "broken", "beta: no RECORD"),
    ],
)
def test_each_fault_is_named(site: Path, mutate: Callable[[Path], None], kind: str, named: str) -> None:
    mutate(site)
    assert named in seen(site)[kind]


def test_an_extra_distribution_is_reported(site: Path) -> None:
    install(site, "gamma", {"gamma.py": b""})
    assert seen(site)["installed"]["gamma"] == "1.0"


# --- if the image's Python is not the base's, lib/python3.12 is a link to lib/python3.11 ----------

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
ALPHA = b"NAME = 'alpha'\n"
# Headers of byte-code for alpha/__init__.py that these Pythons made, with UNCHECKED_HASH.
HEADERS = {
    "3.11": bytes.fromhex("a70d0d0a0100000073d64148fbcd2efe"),
    "3.12": bytes.fromhex("cb0d0d0a0100000007f0d6c16de046da"),
}
BASE = "3.11" if OWN != "3.11" else "3.12"  # the base's Python, whose folder has the packages
TAG = f"cpython-{BASE.replace('.', '')}"
FOREIGN = f"alpha/__pycache__/__init__.{TAG}.pyc"
FAULTS = ("broken", "absent", "changed", "unhashed", "stale", "unowned")


@pytest.fixture
def linked(site: Path) -> Path:
    """site-packages of such an image, with byte-code of alpha for the base's Python only."""
    lib = site.parents[1]
    (lib / f"python{OWN}").rename(lib / f"python{BASE}")
    (lib / f"python{OWN}").symlink_to(f"python{BASE}")
    own = f"alpha/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
    (site / own).unlink()
    (site / FOREIGN).write_bytes(HEADERS[BASE] + b"code")
    _rename_in_record(site, own, FOREIGN)
    return site


def _rename_in_record(site: Path, old: str, new: str) -> None:
    record = site / "alpha-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace(f"{old},,", f"{new},,"))


def _move(site: Path, to: str) -> None:
    """Give the byte-code for the base's Python another path."""
    (site / FOREIGN).rename(site / to)
    _rename_in_record(site, FOREIGN, to)


def test_byte_code_for_the_bases_python_is_accepted_below_the_link(linked: Path) -> None:
    found = seen(linked)
    assert found["installed"] == {"alpha": "1.0", "beta": "1.0"}
    assert {kind: found[kind] for kind in FAULTS if found[kind]} == {}


def test_byte_code_for_another_python_is_stale_in_an_ordinary_image(linked: Path) -> None:
    """The image has no link. A folder of the other Python next to the packages changes nothing."""
    lib = linked.parents[1]
    (lib / f"python{OWN}").unlink()
    (lib / f"python{BASE}").rename(lib / f"python{OWN}")
    assert seen(linked)["stale"] == [FOREIGN]
    (lib / f"python{BASE}").mkdir()
    assert seen(linked)["stale"] == [FOREIGN]
    named = _under_this_pythons_name(linked)
    assert seen(linked)["stale"] == [named]


@pytest.mark.parametrize("target", ["python3", "python", f"../python{BASE}", "python2.7"])
def test_another_link_accepts_no_byte_code_for_the_bases_python(linked: Path, target: str) -> None:
    """For example, a link to a folder without a Python version, out of lib, or of a third Python."""
    lib = linked.parents[1]
    (lib / f"python{OWN}").unlink()
    (lib / f"python{BASE}").rename(lib / target)
    (lib / f"python{OWN}").symlink_to(target)
    assert seen(linked)["stale"] == [FOREIGN]


def _another_source(site: Path) -> str:
    """Byte-code of another source, with a RECORD that agrees."""
    source = b"NAME = 'another'\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
    record = site / "alpha-1.0.dist-info" / "RECORD"
    row = f"alpha/__init__.py,sha256={digest},{len(source)}"
    record.write_text(re.sub(r"(?m)^alpha/__init__\.py,.*$", row, record.read_text()))
    (site / "alpha" / "__init__.py").write_bytes(source)
    return FOREIGN


def _no_source(site: Path) -> str:
    record = site / "alpha-1.0.dist-info" / "RECORD"
    record.write_text(re.sub(r"(?m)^alpha/__init__\.py,.*\n", "", record.read_text()))
    (site / "alpha" / "__init__.py").unlink()
    return FOREIGN


def _by_time(site: Path) -> str:
    """Byte-code that Python checks by the source's time and size, so it may come from a different source."""
    stat = (site / "alpha" / "__init__.py").stat()
    times = b"".join(number.to_bytes(4, "little") for number in (0, int(stat.st_mtime), stat.st_size))
    (site / FOREIGN).write_bytes(HEADERS[BASE][:4] + times + b"code")
    return FOREIGN


def _checked_hash(site: Path) -> str:
    """Byte-code with a checked hash, which torchkiln does not make."""
    head = HEADERS[BASE]
    (site / FOREIGN).write_bytes(head[:4] + b"\3\0\0\0" + head[8:] + b"code")
    return FOREIGN


def _short(site: Path) -> str:
    (site / FOREIGN).write_bytes(HEADERS[BASE][:15])
    return FOREIGN


def _third_python(site: Path) -> str:
    to = FOREIGN.replace(TAG, "cpython-39")
    _move(site, to)
    return to


def _longer_tag(site: Path) -> str:
    """Byte-code with the tag of a Python of the same version that is not CPython."""
    to = FOREIGN.replace(TAG, f"not{TAG}")
    _move(site, to)
    return to


def _optimized(site: Path) -> str:
    to = FOREIGN.replace(TAG, f"{TAG}.opt-1")
    _move(site, to)
    return to


def _beside_its_source(site: Path) -> str:
    """Byte-code beside its source, which Python could load without the source."""
    to = "alpha/__init__.pyc"
    _move(site, to)
    return to


def _under_this_pythons_name(site: Path) -> str:
    """Byte-code under this Python's name, which this Python would replace by compiling the source."""
    to = FOREIGN.replace(TAG, str(sys.implementation.cache_tag))
    _move(site, to)
    return to


@pytest.mark.parametrize(
    "mutate",
    [
        _another_source,
        _no_source,
        _by_time,
        _checked_hash,
        _short,
        _third_python,
        _longer_tag,
        _optimized,
        _beside_its_source,
        _under_this_pythons_name,
    ],
)
def test_other_byte_code_is_stale_below_the_link(linked: Path, mutate: Callable[[Path], str]) -> None:
    named = mutate(linked)
    found = seen(linked)
    assert {kind: found[kind] for kind in FAULTS if found[kind]} == {"stale": [named]}


def test_each_byte_of_its_header_counts(linked: Path) -> None:
    for at in range(16):
        head = bytearray(HEADERS[BASE])
        head[at] ^= 1
        (linked / FOREIGN).write_bytes(bytes(head) + b"code")
        assert seen(linked)["stale"] == [FOREIGN], at


def test_byte_code_of_this_python_is_compared_as_everywhere(linked: Path) -> None:
    (linked / "beta" / "__init__.py").write_bytes(b"NAME = 'bete'\n")
    found = seen(linked)
    own = f"beta/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
    assert {kind: found[kind] for kind in FAULTS if found[kind]} == {
        "changed": ["beta/__init__.py"],
        "stale": [own],
    }
