"""Layers' contents → the packages that the image has installed, read from what these say of themselves."""

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
    """Whether the file *path* of a layer says which packages are installed."""
    return path == _STATUS or _METADATA.fullmatch(path) is not None


def packages_of(layers: Sequence[LayerContents]) -> tuple[Package, ...]:
    """What *layers*, lowest first, install together; a file that names no package is passed over."""
    return tuple(sorted(_packages(texts_of(layers)), key=lambda one: (one.system, one.place, one.name)))


def texts_of(layers: Sequence[LayerContents]) -> Mapping[str, str]:
    """The texts that are there when all *layers*, lowest first, lie one on the other."""
    return {path: thing for path, (kind, thing) in _seen(layers).items() if kind == "text"}


def links_of(layers: Sequence[LayerContents]) -> Mapping[str, str]:
    """Links likewise."""
    return {path: thing for path, (kind, thing) in _seen(layers).items() if kind == "link"}


def _seen(layers: Sequence[LayerContents]) -> Mapping[str, tuple[str, str]]:
    seen: dict[str, tuple[str, str]] = {}
    for layer in layers:
        for gone in layer.deleted:
            inside = gone.rstrip("/") + "/"
            for path in [path for path in seen if path == gone or path.startswith(inside)]:
                del seen[path]
        seen |= {path: ("text", text) for path, text in layer.texts.items()}
        seen |= {path: ("link", target) for path, target in layer.links.items()}
    return seen


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
                continue  # no fault of an image that is only looked at
