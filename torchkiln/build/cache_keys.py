"""What decides a layer's bytes → its key in the cache.

Of a wheel layer: wheels, Python and recipe, as a hash; of a toolkit's: archives and the rule. Of another form
of a layer: that one's digest and the encoder, to be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from torchkiln.cuda.tree import RULE
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedArchive, LockedCell, LockedWheel
from torchkiln.model.plan import LayerSpec
from torchkiln.oci.compression import TARGETS
from torchkiln.oci.encode import ENCODER
from torchkiln.plan.cuda_toolkit import home
from torchkiln.recipe import PREFIX, RECIPE


def layer_key(wheels: Iterable[LockedWheel], python: str) -> str:
    """What decides a wheel layer's bytes, or with one wheel its byte-code's; *python* is a full version."""
    decides = {
        "wheels": [wheel.sha256 for wheel in wheels],
        "python": python,
        "prefix": PREFIX,
        "recipe": RECIPE,
        "encoder": ENCODER,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def toolkit_key(archives: Iterable[LockedArchive], home: str) -> str:
    """What decides the bytes of a layer of *archives* below the folder *home*."""
    decides = {
        "archives": [archive.sha256 for archive in archives],
        "components": [archive.component for archive in archives],
        "home": home,
        "rule": RULE,
        "recipe": RECIPE,
        "encoder": ENCODER,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


MADE = ("wheels", "toolkit", "program")
"""The kinds of layers that `key_of` tells apart: made of files that a lock names."""


def program_key(spec: LayerSpec) -> str:
    """What decides the bytes of a program's layer."""
    decides = {
        "program": [file.sha256 for file in spec.wheels],
        "files": [(file.path, file.mode, hashlib.sha256(file.data).hexdigest()) for file in spec.files],
        "links": [(link.path, link.target) for link in spec.links],
        "folders": spec.folders,
        "recipe": RECIPE,
        "encoder": ENCODER,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def key_of(spec: LayerSpec, locked: LockedCell) -> str:
    """The key of *spec*, a layer that is made of *locked*'s wheels, archives or programs."""
    toolkit = locked.resolution.toolkit
    if spec.kind == "toolkit" and toolkit:
        return toolkit_key(spec.archives, home(toolkit))
    if spec.kind == "program":
        return program_key(spec)
    return layer_key(spec.wheels, locked.base.python)


FORMAT_RECORDS = tuple(TARGETS)
"""The kinds of records that name another form of a layer."""

FORMER_RECORDS = "joined"
"""Records of layers of one gzip member, which earlier versions made; nothing reads them."""


def format_key(layer: Digest, encoder: str) -> str:
    """Of *layer* as *encoder* writes it."""
    return f"{layer.removeprefix('sha256:')}-{encoder}"


def source_of(key: str) -> str:
    """The hex of the layer that a `format_key` was made of."""
    return key.partition("-")[0]
