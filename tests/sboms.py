"""A small image that says what is installed in it, and the lock that it was built from."""

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
#: What METADATA says of its licence; of all other wheels: nothing.
SAID = {
    "jupyterlab": "License: BSD\n",
    "nvidia-cuda-runtime-cu12": "License: NVIDIA Proprietary Software\n",
    "nvidia-cudnn-cu12": "License: NVIDIA Proprietary Software\n",
    "nvidia-nccl-cu12": "License-Expression: bsd-3-clause\n",
    "numpy": "License-Expression: BSD-3-Clause AND (0bsd or LicenseRef-Own)\n",
    "pillow": "License: MIT-CMU\n",
    "pip": "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
    "tqdm": "License: Copyright (c) 2013\n\tMIT, in many\n        words\n",
}
#: name → version, architecture, source, copyright.
DEBS: Mapping[str, tuple[str, str, str, str]] = {
    "gcc-12-base": ("12.2.0-14+deb12u1", "amd64", "gcc-12", "This is the Debian packaging of gcc.\n"),
    "libstdc++6": ("12.2.0-14+deb12u1", "amd64", "gcc-12", "-> gcc-12-base"),
    "tini": (
        "0.19.0-1+b3",
        "amd64",
        "tini (0.19.0-1)",
        f"{FORMAT}\nFiles: *\nLicense: Expat\n\nFiles: x\nLicense: GPL-2+ or Artistic\n\n"
        "License: Artistic\n The text of it.\n .\n Its end.\n\nLicense: Unused\n Nobody names it.\n",
    ),
    "tzdata": ("2025b-0+deb12u2", "all", "tzdata", f"{FORMAT}License: public-domain\n Nobody's.\n"),
}


def metadata(name: str, version: str, more: str = "") -> str:
    """A METADATA with a description behind it."""
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\nLicense: not this one\n"


def status(debs: Mapping[str, tuple[str, str, str, str]] = DEBS) -> str:
    """dpkg's, with one package that was removed."""
    gone = "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n"
    return "\n".join(
        [
            gone,
            *(
                f"Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\n"
                f"Source: {source}\nVersion: {version}\nDescription: what it is\n Name: forged\n"
                for name, (version, architecture, source, _) in debs.items()
            ),
        ]
    )


def locked() -> LockedCell:
    """The lock of the tests, on a base of DEBS."""
    cell = planned.locked()
    packages = tuple(OsPackage(name=name, version=told[0]) for name, told in DEBS.items())
    return replace(cell, base=replace(cell.base, packages=packages))


def texts(cell: LockedCell) -> dict[str, str]:
    """What the files of an image of *cell* say."""
    said = {
        f"{SITE}/{one.name.replace('-', '_')}-{one.version}.dist-info/METADATA": metadata(
            one.name, one.version, SAID.get(one.name, "")
        )
        for one in cell.wheels
    }
    said[f"{SITE}/pip/_vendor/idna-3.1.dist-info/METADATA"] = metadata("idna", "3.1", "License: BSD\n")
    said[STATUS] = status()
    for name, (_, _, _, words) in DEBS.items():
        if not words.startswith("->"):
            said[f"usr/share/doc/{name}/copyright"] = words
    wheels = [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in cell.wheels]
    said["etc/torchkiln/image.json"] = json.dumps({"wheels": wheels})
    return said


LINKS = {"usr/share/doc/libstdc++6": "gcc-12-base"}


def evidence(**changed: str) -> Evidence:
    """Of that image, as if nobody had to read it."""
    return evidence_of(texts(locked()) | changed, LINKS)


def files(cell: LockedCell, without: Iterable[str] = ()) -> BaseFiles:
    """What an archive would say of its base, but for the packages *without*."""
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
    """Of that image."""
    cell = cell or locked()
    return bill_of(cell, IMAGE, found or evidence(), files=files(cell), name="pytorch-cuda", tool="0.1.0")


def image(folder: Path, ref: str = "it") -> ImageOnDisk:
    """That image in a layout: a base, its wheels, and a layer of torchkiln's own."""
    said = texts(locked())
    base = [entry(path, text.encode()) for path, text in said.items() if path.startswith(("usr", "var"))]
    base += [entry(path, kind=SYMTYPE, to=target) for path, target in LINKS.items()]
    wheels = [entry(path, text.encode()) for path, text in said.items() if path.startswith("opt")]
    own = [entry(path, text.encode()) for path, text in said.items() if path.startswith("etc")]
    folder.mkdir(exist_ok=True)
    layers = [layer(folder, *entries) for entries in (base, wheels, own)]
    return open_layout(minimal_layout(folder / "dist", layers, {}, ref)).image(ref)


def read(found: ImageOnDisk, folder: Path) -> Evidence:
    """What *found* says, by way of the cache in *folder*."""
    return read_evidence(found, Store(folder))
