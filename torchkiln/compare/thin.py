"""Names the differences that are expected between a thin image and the image for all GPUs."""

from __future__ import annotations

import re

from torchkiln.compare.allowed import AllowedDifference
from torchkiln.model.contents import WholeImage
from torchkiln.model.device_code import NVIDIA_LIBRARY, OPEN

_GPUS, _OWN_USE = "Labels torchkiln.gpus", "Labels torchkiln.own_use"
_SITE = r"opt/venv/lib/python3[.]\d+/site-packages"


def expected(a: WholeImage, b: WholeImage) -> tuple[AllowedDifference, ...]:
    """The expected differences between *a* and *b*; none if both keep the device code of the same GPUs.

    Only the content of the libraries that are cut may differ, and the RECORD files that have their hashes.
    """
    kept = [image.settings.get(_GPUS, "") for image in (a, b)]
    own_use = [image.settings.get(_OWN_USE, "") for image in (a, b)]
    if kept[0] == kept[1] and own_use[0] == own_use[1]:
        return ()
    wheels, library = "|".join(sorted(OPEN)), "[^/]+[.]so(?:[.][^/]*)?"
    folders = f"(?:{wheels})(?:[.]libs)?"
    if any(own_use):
        wheels, folders = f"{wheels}|nvidia_[a-z0-9_]+", f"{folders}|nvidia"
    else:
        library = f"(?!{NVIDIA_LIBRARY.pattern}$){library}"
    sides = " and ".join(
        f"{side} keeps it for {gpus or 'all GPUs'}" for side, gpus in zip("AB", kept, strict=True)
    )
    return tuple(
        AllowedDifference(at=re.compile(f"{_SITE}/{path}"), what="content", line=None, reason=reason)
        for path, reason in (
            (f"(?:{folders})/(?:.*/)?{library}", f"device code: {sides}"),
            (f"(?:{wheels})-[^/]+[.]dist-info/RECORD", "it has the hashes of these libraries"),
        )
    )
