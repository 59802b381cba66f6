"""A small image with package metadata, and its lock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tarfile import SYMTYPE

from tests import planned
from tests.roots import entry, layer, minimal_layout
from torchkiln.model.lock import BaseFiles, DebFile, LockedCell, OsPackage
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.evidence import Evidence, evidence_of
from torchkiln.sbom.read_image import read_evidence
from torchkiln.store.store import Store

SITE = "opt/venv/lib/python3.11/site-packages"
STATUS = "var/lib/dpkg/status"
FORMAT = "Format: https://www.example.org/doc/packaging-manuals/copyright-format/1.0/\n"
#: The licence fields in METADATA, by wheel; all other wheels have no licence field.
LICENCES = {
    "jupyterlab": "License: BSD\n",
    "nvidia-cuda-runtime-cu12": "License: NVIDIA Proprietary Software\n",
    "nvidia-cudnn-cu12": "License: NVIDIA Proprietary Software\n",
    "nvidia-nccl-cu12": "License-Expression: bsd-3-clause\n",
    "numpy": "License-Expression: BSD-3-Clause AND (0bsd or LicenseRef-Own)\n",
    "pillow": "License: MIT-CMU\n",
    "pip": "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
    "tqdm": "License: Copyright (c) 2013\n\tMIT, in many\n        words\n",
}
#: name → version, architecture, source, copyright file ("->" marks a link).
DEBS: Mapping[str, tuple[str, str, str, str]] = {
    "gcc-12-base": ("12.2.0-14+deb12u1", "amd64", "gcc-12", "This is the Debian packaging of gcc.\n"),
    "libstdc++6": ("12.2.0-14+deb12u1", "amd64", "gcc-12", "-> gcc-12-base"),
    "tini": (
        "0.19.0-1+b3",
        "amd64",
        "tini (0.19.0-1)",
        f"{FORMAT}\nFiles: *\nLicense: Expat\n\nFiles: x\nLicense: GPL-2+ or Artistic\n\n"
        "License: Artistic\n The text of it.\n .\n Its end.\n\nLicense: Unused\n No file has it.\n",
    ),
    "tzdata": ("2025b-0+deb12u2", "all", "tzdata", f"{FORMAT}License: public-domain\n Nobody's.\n"),
}


def metadata(name: str, version: str, more: str = "") -> str:
    """A METADATA with the header fields *more*, and a description that contains a false licence field."""
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\nLicense: not this one\n"


def status(debs: Mapping[str, tuple[str, str, str, str]] = DEBS) -> str:
    """dpkg's status file with *debs* installed, and with one removed package."""
    removed_package = "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n"
    return "\n".join(
        [
            removed_package,
            *(
                f"Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\n"
                f"Source: {source}\nVersion: {version}\nDescription: what it is\n Name: forged\n"
                for name, (version, architecture, source, _) in debs.items()
            ),
        ]
    )


def locked() -> LockedCell:
    """The lock of the image, on a base with the packages DEBS."""
    cell = planned.locked()
    packages = tuple(OsPackage(name=name, version=deb[0]) for name, deb in DEBS.items())
    return replace(cell, base=replace(cell.base, packages=packages))


def texts(cell: LockedCell) -> dict[str, str]:
    """The text files of an image of *cell*, by path."""
    files_by_path = {
        f"{SITE}/{package.name.replace('-', '_')}-{package.version}.dist-info/METADATA": metadata(
            package.name, package.version, LICENCES.get(package.name, "")
        )
        for package in cell.wheels
    }
    files_by_path[f"{SITE}/pip/_vendor/idna-3.1.dist-info/METADATA"] = metadata(
        "idna", "3.1", "License: BSD\n"
    )
    files_by_path[STATUS] = status()
    for name, (_, _, _, words) in DEBS.items():
        if not words.startswith("->"):
            files_by_path[f"usr/share/doc/{name}/copyright"] = words
    wheels = [
        {"name": package.name, "version": package.version, "sha256": package.sha256}
        for package in cell.wheels
    ]
    files_by_path["etc/torchkiln/image.json"] = json.dumps({"wheels": wheels})
    return files_by_path


LINKS = {"usr/share/doc/libstdc++6": "gcc-12-base"}


def evidence(**changed: str) -> Evidence:
    """The evidence of the image, without reading an image."""
    return evidence_of(texts(locked()) | changed, LINKS)


def files(cell: LockedCell, without: Iterable[str] = ()) -> BaseFiles:
    """The archive's files for the base of *cell*, except for the packages *without*."""
    debs = tuple(
        DebFile(
            name=name,
            version=version,
            architecture=architecture,
            source=source,
            size=1000,
            sha256=f"{number:064x}",
        )
        for number, (name, (version, architecture, source, _)) in enumerate(DEBS.items(), 1)
        if name not in without
    )
    return BaseFiles(base=cell.base.digest, debs=debs)


IMAGE = planned.LOCK_DIGEST  # any digest


def bill(found: Evidence | None = None, cell: LockedCell | None = None) -> Bill:
    """The bill (SBOM) of the image."""
    cell = cell or locked()
    return bill_of(cell, IMAGE, found or evidence(), files=files(cell), name="pytorch-cuda", tool="0.1.0")


def image(folder: Path, ref: str = "it") -> ImageOnDisk:
    """The image in a layout: a base, its wheels, and a layer of torchkiln."""
    files_by_path = texts(locked())
    base = [
        entry(path, text.encode()) for path, text in files_by_path.items() if path.startswith(("usr", "var"))
    ]
    base += [entry(path, kind=SYMTYPE, to=target) for path, target in LINKS.items()]
    wheels = [entry(path, text.encode()) for path, text in files_by_path.items() if path.startswith("opt")]
    own = [entry(path, text.encode()) for path, text in files_by_path.items() if path.startswith("etc")]
    folder.mkdir(exist_ok=True)
    layers = [layer(folder, *entries) for entries in (base, wheels, own)]
    return open_layout(minimal_layout(folder / "dist", layers, {}, ref)).image(ref)


def read(found: ImageOnDisk, folder: Path) -> Evidence:
    """The evidence of the image *found*, with the cache in *folder*."""
    return read_evidence(found, Store(folder))
