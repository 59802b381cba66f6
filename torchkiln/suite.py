"""Folder of checks -> Suite: its digest, its checks, and which of them do not apply to a cell."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.nouns import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteCheck:
    """A check that a suite holds."""

    id: str
    tier: int
    of_image: bool = False  # it compares an image with its lock, so it is left out where there is no image


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """The checks in *folder*, bound to its files by *digest*."""

    folder: Path
    digest: Digest
    checks: tuple[SuiteCheck, ...]
    not_applicable: Callable[[str, Mapping[str, Any], tuple[int, int] | None], str | None]


def load_suite(folder: Path) -> Suite:
    """The suite in *folder*. Its two torch-free modules are run here, so that no image has a say in them.

    :raises ConfigError: there is no suite, or a check without a tier.
    """
    try:
        checks = _module(folder, "catalogue").catalogue(folder)
        rule = _module(folder, "applicable").not_applicable
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{folder}: no suite of checks: {error}", hint="see --suite") from error
    return Suite(
        folder=folder,
        digest=suite_digest(folder),
        checks=tuple(SuiteCheck(id=one.id, tier=one.tier, of_image=one.of_image) for one in checks),
        not_applicable=rule,
    )


def suite_digest(folder: Path) -> Digest:
    """Over the path and content of every file that a run can read; what Python caches beside them is none."""
    seen = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(files):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        seen.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return Digest(f"sha256:{seen.hexdigest()}")


def _module(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_torchkiln_suite_{name}", folder / f"{name}.py")
    if spec is None or spec.loader is None:
        raise OSError(f"{name}.py cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
