"""Folder of checks -> Suite: its digest, its checks, and which of them do not apply to a cell.

The folder is read once. Digest, catalogue and every run are made from these bytes, so that a file that is
changed, linked or planted beside them later has no effect. Comments and docstrings are neither digested nor
run: rewording one leaves a suite what it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.smoke.snapshot import copied, read_tree
from torchkiln.smoke.suite_source import canonical, stripped
from torchkiln.util.places import ROOT

REQUIREMENTS = "requirements.txt"  # pytest and what it needs, with hashes


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteCheck:
    """A check that a suite holds."""

    id: str
    tier: int
    of_image: bool = False  # it compares an image with its lock, so it is left out where there is no image


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """The checks that were read from *folder*, bound to its *files* by *digest*."""

    folder: Path  # for messages: nothing is read from there again
    files: Mapping[str, bytes] = field(hash=False, repr=False)  # as they were read
    digest: Digest
    checks: tuple[SuiteCheck, ...]
    not_applicable: Callable[[str, Mapping[str, Any], tuple[int, int] | None], str | None]

    def runnable(self) -> dict[str, bytes]:
        """The files to run: Python without comments and docstrings, which the digest leaves out."""
        return {path: _code(path, data) for path, data in self.files.items()}

    @property
    def requirements(self) -> bytes:
        """What pytest is installed from.

        :raises ConfigError: the suite has none.
        """
        try:
            return self.files[REQUIREMENTS]
        except KeyError:
            raise ConfigError(f"{self.folder}: no {REQUIREMENTS}", hint="see --suite") from None


def load_suite(folder: Path | None = None) -> Suite:
    """The suite in *folder*, else ours.

    Its two torch-free modules are run here, so that no image has a say in them. They are compiled from the
    bytes that were digested: no byte-code beside them is loaded.

    :raises ConfigError: there is no suite, or a check without a tier, or a file that is not source or data.
    """
    folder = folder or ROOT / "smoke_tests"
    try:
        files = read_tree(folder)
        with copied(files, "smoke_tests") as copy:
            told = _module(files, "catalogue").catalogue(copy)
            checks = tuple(SuiteCheck(id=one.id, tier=one.tier, of_image=one.of_image) for one in told)
        rule = _module(files, "applicable").not_applicable
    except Exception as error:  # whatever the suite's own code raises
        raise _not_a_suite(folder, error) from error
    return Suite(folder=folder, files=files, digest=_digest(files), checks=checks, not_applicable=rule)


def suite_digest(folder: Path) -> Digest:
    """Over every file that a run can read: of Python its syntax tree without docstrings, of others the bytes.

    :raises ConfigError: a file in it is not covered by a digest: a link, a device, compiled code.
    """
    try:
        return _digest(read_tree(folder))
    except (OSError, ValueError) as error:
        raise _not_a_suite(folder, error) from error


def _not_a_suite(folder: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    hint = "name a folder with catalogue.py and the tests: --suite FOLDER"
    return ConfigError(f"{folder}: not a folder of smoke tests: {reason}", hint=hint)


def _digest(files: Mapping[str, bytes]) -> Digest:
    seen = hashlib.sha256()
    for path, data in files.items():
        try:
            content = canonical(data).encode() if path.endswith(".py") else data
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        seen.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return Digest(f"sha256:{seen.hexdigest()}")


def _code(path: str, data: bytes) -> bytes:
    return stripped(data) if path.endswith(".py") else data


def _module(files: Mapping[str, bytes], name: str) -> ModuleType:
    """The suite's module *name*, from its source.

    :raises OSError: the suite has none.
    """
    if (source := files.get(f"{name}.py")) is None:
        raise OSError(f"{name}.py is missing")
    module = ModuleType(f"_torchkiln_suite_{name}")
    exec(compile(stripped(source), f"smoke_tests/{name}.py", "exec", dont_inherit=True), module.__dict__)
    return module
