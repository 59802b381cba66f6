"""cuda_redist.yaml -> Redist: NVIDIA's redistributable archives by release of the toolkit, each by its hash.

The file ships with torchkiln. A test of the whole way brings one of its own, whose archives were made of
something else: that says `untrusted: true`, and so does every image that is made by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedArchive
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.located_yaml import parse as parse_yaml
from torchkiln.util.schema import shipped, violations
from torchkiln.util.strict_json import read_file, text_of

VARIABLE = "TORCHKILN_CUDA_REDIST"  # the environment's: a file in place of the shipped one
_LIMIT = 100_000  # bytes; the file has six thousand


@dataclass(frozen=True, kw_only=True, slots=True)
class Redist:
    """All of the file."""

    releases: Mapping[str, tuple[LockedArchive, ...]] = field(hash=False)  # by component's name
    untrusted: bool  # whether the archives are not NVIDIA's own


@cache
def load() -> Redist:
    """The file that ships with torchkiln."""
    return parse(files("torchkiln").joinpath("data/cuda_redist.yaml").read_bytes(), name="cuda_redist.yaml")


def read(path: Path) -> Redist:
    """The file of untrusted archives at *path*.

    :raises ConfigError: it cannot be read, is none, or does not say what it stands for.
    """
    try:
        found = parse(read_file(path, _LIMIT), name=str(path))
    except OSError as error:
        raise ConfigError(
            f"{VARIABLE}: {path}: {error.strerror}", hint="name a file as cuda_redist.yaml"
        ) from None
    if not found.untrusted:
        raise ConfigError(
            f"{path}: untrusted: missing",
            hint=f"write `untrusted: true`, or unset {VARIABLE}: NVIDIA's own archives are known here",
        )
    return found


def parse(data: bytes, *, name: str) -> Redist:
    """*data*, the bytes of such a file; *name* stands before messages.

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
            LockedArchive(component=component, path=_path(component, told["version"]), **told)
            for component, told in sorted(components.items())
        )
        for release, components in located.data["releases"].items()
    }
    return Redist(releases=MappingProxyType(releases), untrusted=located.data.get("untrusted", False))


def digest_of(archives: Iterable[LockedArchive]) -> Digest:
    """What stands for all of *archives* in a resolution."""
    rows = sorted((asdict(one) for one in archives), key=lambda row: str(row["component"]))
    canonical = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    return Digest("sha256:" + hashlib.sha256(canonical).hexdigest())


def _path(component: str, version: str) -> str:
    platform = f"linux-{LINUX_AMD64.cuda}"
    return f"{component}/{platform}/{component}-{platform}-{version}-archive.tar.xz"
