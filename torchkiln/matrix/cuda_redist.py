"""Reads cuda_redist.yaml: NVIDIA's redistributable archives by toolkit release, each with its hash.

The file is part of torchkiln. An end-to-end test replaces it with a file about the test's archives, which has
`untrusted: true`. Every image that is made with such a file is marked as untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.lock import LockedArchive
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.located_yaml import parse as parse_yaml
from torchkiln.util.schema import shipped, violations
from torchkiln.util.strict_json import read_file, text_of

VARIABLE = "TORCHKILN_CUDA_REDIST"  # the path of a file that replaces cuda_redist.yaml
_LIMIT = 100_000  # bytes; the file has 6,000


@dataclass(frozen=True, kw_only=True, slots=True)
class Redist:
    releases: Mapping[str, tuple[LockedArchive, ...]] = field(hash=False)  # by toolkit release
    untrusted: bool  # whether the archives are not NVIDIA's own


@cache
def load() -> Redist:
    """The contents of the file that is part of torchkiln."""
    return parse(files("torchkiln").joinpath("data/cuda_redist.yaml").read_bytes(), name="cuda_redist.yaml")


def read(path: Path) -> Redist:
    """The contents of the file at *path*, which describes untrusted archives.

    :raises ConfigError: the file cannot be read, is invalid, or lacks `untrusted: true`.
    """
    try:
        found = parse(read_file(path, _LIMIT), name=str(path))
    except OSError as error:
        raise ConfigError(
            f"{VARIABLE}: {path}: {error.strerror}",
            hint=f"set {VARIABLE} to a file in the format of cuda_redist.yaml, or unset it",
        ) from None
    if not found.untrusted:
        raise ConfigError(
            f"{path}: the key 'untrusted' is missing",
            hint=f"add `untrusted: true`, or unset {VARIABLE} to use NVIDIA's own archives",
        )
    return found


def parse(data: bytes, *, name: str) -> Redist:
    """Parse *data*, the bytes of a cuda_redist.yaml; messages begin with *name*.

    :raises ConfigError: every fault, with its line.
    """
    try:
        located = parse_yaml(text_of(data), name=name)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if faults := violations(located.data, shipped("cuda_redist")):
        raise ConfigError.of(located.fault(path, text) for path, text in faults)
    releases = {
        release: tuple(
            LockedArchive(component=component, path=_path(component, archive["version"]), **archive)
            for component, archive in sorted(components.items())
        )
        for release, components in located.data["releases"].items()
    }
    return Redist(releases=MappingProxyType(releases), untrusted=located.data.get("untrusted", False))


def digest_of(archives: Iterable[LockedArchive]) -> Digest:
    return digest_of_json(sorted(map(asdict, archives), key=lambda row: str(row["component"])))


def _path(component: str, version: str) -> str:
    platform = f"linux-{LINUX_AMD64.cuda}"
    return f"{component}/{platform}/{component}-{platform}-{version}-archive.tar.xz"
