"""Lists the packages that are installed in an image, from the metadata in its layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torchkiln.base.contents import parse_status
from torchkiln.errors import BuildFailed
from torchkiln.model.contents import LayerContents, Package

_STATUS = "var/lib/dpkg/status"
_METADATA = re.compile(r"(?P<place>.*)/[^/]+\.(dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_FIELD = re.compile(r"^(Name|Version):[ \t]*(\S+)", re.MULTILINE)


def names_packages(path: str) -> bool:
    """Whether the file *path* of a layer contains metadata of installed packages."""
    return path == _STATUS or _METADATA.fullmatch(path) is not None


def packages_of(layers: Sequence[LayerContents]) -> tuple[Package, ...]:
    """The packages in *layers*, lowest first; invalid metadata is ignored."""
    found = _packages(texts_of(layers))
    return tuple(sorted(found, key=lambda package: (package.system, package.place, package.name)))


def texts_of(layers: Sequence[LayerContents]) -> Mapping[str, str]:
    """The texts by path, in the merged *layers*, lowest first."""
    return {path: value for path, (kind, value) in _merged(layers).items() if kind == "text"}


def links_of(layers: Sequence[LayerContents]) -> Mapping[str, str]:
    """The symbolic links by path, in the merged *layers*, lowest first."""
    return {path: value for path, (kind, value) in _merged(layers).items() if kind == "link"}


def _merged(layers: Sequence[LayerContents]) -> Mapping[str, tuple[str, str]]:
    merged: dict[str, tuple[str, str]] = {}
    for layer in layers:
        for deleted in layer.deleted:
            inside = deleted.rstrip("/") + "/"
            for path in [path for path in merged if path == deleted or path.startswith(inside)]:
                del merged[path]
        merged |= {path: ("text", text) for path, text in layer.texts.items()}
        merged |= {path: ("link", target) for path, target in layer.links.items()}
    return merged


def _packages(texts: Mapping[str, str]) -> Iterator[Package]:
    for path, text in texts.items():
        if found := _METADATA.fullmatch(path):
            header = dict(_FIELD.findall(text.partition("\n\n")[0]))
            if len(header) == 2:
                name = re.sub(r"[-_.]+", "-", header["Name"]).lower()
                yield Package(system="python", place=found["place"], name=name, version=header["Version"])
        elif path == _STATUS:
            try:
                for package in parse_status(text):
                    yield Package(system="os", place="", name=package.name, version=package.version)
            except BuildFailed:
                continue  # reported by the checks of a build, not by a comparison
