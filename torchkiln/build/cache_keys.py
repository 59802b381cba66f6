"""What decides a layer's bytes → its key in the cache.

Of a wheel layer: wheels, Python and recipe, as a hash; of a toolkit's: archives and the rule. Of another form
of a layer: that one's digest and the encoder, to be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from torchkiln.cuda.tree import RULE
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import MadeLayer, ProgramLayer, ToolkitLayer, WheelLayer
from torchkiln.model.recipe import PREFIX, RECIPE
from torchkiln.oci.compression import TARGETS
from torchkiln.oci.encode import ENCODER


def key_of(layer: MadeLayer) -> str:
    """The key of *layer* in the cache."""
    match layer:
        case WheelLayer():
            return layer_key(layer.wheels, layer.python)
        case ToolkitLayer():
            return _key(
                archives=[archive.sha256 for archive in layer.archives],
                components=[archive.component for archive in layer.archives],
                home=layer.home,
                rule=RULE,
            )
        case ProgramLayer():
            return _key(
                program=[layer.program.sha256],
                files=[(one.path, one.mode, hashlib.sha256(one.data).hexdigest()) for one in layer.files],
                links=[(link.path, link.target) for link in layer.links],
                folders=layer.folders,
            )


def layer_key(wheels: Iterable[LockedWheel], python: str) -> str:
    """What decides a wheel layer's bytes, or with one wheel its byte-code's; *python* is a full version."""
    return _key(wheels=[wheel.sha256 for wheel in wheels], python=python, prefix=PREFIX)


def _key(**decides: Any) -> str:
    """The hash of what decides a layer's bytes, with what decides those of all."""
    whole = {**decides, "recipe": RECIPE, "encoder": ENCODER}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


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
