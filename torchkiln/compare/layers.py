"""Compares two images by layers: packages, settings, shared layers, sizes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchkiln.model.contents import Layer, LayeredImage, Package

#: Parts of an image's config that are mappings: each entry is compared as a setting of its own, like Env.
_SETS = ("Labels", "ExposedPorts", "Volumes")
_PYTHON = re.compile(r"python3\.\d+")
_PackageKey = tuple[str, str, str]  # system, place, name


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageChange:
    """A package whose version differs. `a` and `b` are the versions, empty if it is not installed."""

    system: str
    name: str
    place: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingChange:
    """A setting that differs. `a` and `b` are the values, empty if it is not set."""

    name: str  # "Env PATH"
    a: str
    b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSet:
    """Layers, and their totals. `size` is the compressed size; None if that of a layer is unknown."""

    layers: tuple[Layer, ...]

    @property
    def files(self) -> int:
        return sum(layer.contents.files for layer in self.layers)

    @property
    def bytes(self) -> int:
        return sum(layer.contents.bytes for layer in self.layers)

    @property
    def size(self) -> int | None:
        sizes = [layer.size for layer in self.layers]
        return None if None in sizes else sum(size or 0 for size in sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """How two images differ. The compression of layers is not compared."""

    a: LayerSet
    b: LayerSet
    shared: LayerSet
    only_a: LayerSet
    only_b: LayerSet
    packages: tuple[PackageChange, ...]
    settings: tuple[SettingChange, ...]
    reordered: bool  # the same layers in another order

    @property
    def same(self) -> bool:
        unshared = self.only_a.layers or self.only_b.layers
        return not (unshared or self.packages or self.settings or self.reordered)


def contrast(a: LayeredImage, b: LayeredImage) -> Contrast:
    only_a, only_b = _not_in(a.layers, b.layers), _not_in(b.layers, a.layers)
    unshared = {layer.diff_id for layer in only_a}
    ids = [[layer.diff_id for layer in image.layers] for image in (a, b)]
    return Contrast(
        a=LayerSet(layers=a.layers),
        b=LayerSet(layers=b.layers),
        shared=LayerSet(layers=tuple(layer for layer in a.layers if layer.diff_id not in unshared)),
        only_a=LayerSet(layers=only_a),
        only_b=LayerSet(layers=only_b),
        packages=package_changes(a.packages, b.packages),
        settings=setting_changes(a.settings, b.settings),
        reordered=ids[0] != ids[1] and sorted(ids[0]) == sorted(ids[1]),
    )


def setting_changes(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(name=name, a=a.get(name, ""), b=b.get(name, ""))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    )


def settings_of(config: Mapping[str, Any], platform: str) -> dict[str, str]:
    """The settings in an image's config, in the format of OCI or of Docker, which have the same names.

    Empty values are left out, because engines write values that are not set.
    """
    found = {"Platform": platform}
    for name, value in config.items():
        if not value:
            continue
        if name == "Env":
            found |= {f"Env {key}": text for key, _, text in (pair.partition("=") for pair in value)}
        elif name in _SETS:
            found |= {f"{name} {key}": _text(text) or "yes" for key, text in value.items()}
        else:
            found[name] = _text(value)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True) if value else ""


def _not_in(layers: Sequence[Layer], others: Sequence[Layer]) -> tuple[Layer, ...]:
    known = {layer.diff_id for layer in others}
    return tuple(layer for layer in layers if layer.diff_id not in known)


def package_changes(a: Sequence[Package], b: Sequence[Package]) -> tuple[PackageChange, ...]:
    """The packages that differ between *a* and *b*, Python packages first."""
    left, right = _by_key(a), _by_key(b)
    return tuple(
        PackageChange(system=key[0], place=key[1], name=key[2], a=left.get(key, ""), b=right.get(key, ""))
        for key in sorted(left.keys() | right.keys(), key=lambda key: (key[0] != "python", key))
        if left.get(key) != right.get(key)
    )


def _by_key(packages: Sequence[Package]) -> dict[_PackageKey, str]:
    """Versions by system, place and name; "python3.10" and "python3.12" in a place are the same."""
    found: dict[_PackageKey, list[str]] = {}
    for package in packages:
        key = (package.system, _PYTHON.sub("python3", package.place), package.name)
        found.setdefault(key, []).append(package.version)
    return {key: ", ".join(sorted(Counter(versions))) for key, versions in found.items()}
