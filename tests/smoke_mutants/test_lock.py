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
    """As builder.bak.py of datasets: importlib raises for the path of such a source."""
    install(site, "gamma", {"gamma/builder.bak.py": b"NAME = 'gamma'\n"})
    found = seen(site)
    assert not any(found[kind] for kind in ("broken", "absent", "changed", "unhashed", "stale", "unowned"))

    cached = site / "gamma" / "__pycache__" / f"builder.bak.{sys.implementation.cache_tag}.pyc"
    (site / "gamma" / "builder.bak.py").write_bytes(b"NAME = 'delta'\n")
    assert seen(site)["stale"] == [str(cached.relative_to(site))]


@pytest.mark.parametrize("algorithm", ["sha512", "sha384", "blake2b"])
def test_a_record_may_use_a_stronger_hash(site: Path, algorithm: str) -> None:
    """As the wheel specification allows; the hash is computed."""
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
