"""Refuses to distribute an image with changed NVIDIA libraries, unless the user confirms the right to it."""

from __future__ import annotations

from typing import Any

from torchkiln.compare.images import contents_of
from torchkiln.errors import GateRefused, VerificationFailed
from torchkiln.matrix.tags import parse_name
from torchkiln.model.layer import split_format
from torchkiln.oci.labels import labels, tag_in
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.plan.plan import IMAGE_JSON
from torchkiln.util.schema import shown
from torchkiln.util.strict_json import json_of

LABEL = "torchkiln.own_use"
_SMALL = 16 << 20  # bytes; the layer with image.json has about 0.1 MB


def demand_licence(image: ImageOnDisk, *, confirmed: bool) -> None:
    """Check that *image* may be distributed.

    :param confirmed: the user has the right to distribute modified NVIDIA libraries.
    :raises GateRefused: it contains modified NVIDIA libraries, and the right is not confirmed.
    :raises VerificationFailed: its label or its image.json is invalid.
    """
    if is_for_own_use(image) and not confirmed:
        raise GateRefused(
            f"{image.ref} contains modified NVIDIA libraries (--own-use), and NVIDIA's licence may not"
            " permit their redistribution",
            hint="build the image without --own-use; or, if you have the right to distribute it, add"
            " --licence-confirmed",
        )


def is_for_own_use(image: ImageOnDisk) -> bool:
    """Whether *image* contains modified NVIDIA libraries, according to its label, its tag or its image.json.

    One of them is enough, because an image that is derived from such an image can lack the others.

    :raises VerificationFailed: the label or image.json is invalid.
    """
    label = labels(image).get(LABEL)
    if label not in (None, "true"):
        raise VerificationFailed(
            f"{image.ref}: the label {LABEL} is {shown(label)}; the only valid value is true"
        )
    tags = (parse_name(split_format(name)[0]) for name in (image.ref, tag_in(image)))
    return label is not None or any(tag and tag.own_use for tag in tags) or _in_image_json(image)


def _in_image_json(image: ImageOnDisk) -> bool:
    """`own_use` in the topmost image.json; large layers, which have wheels or archives, are not read."""
    for layer in reversed(image.layers):
        if layer.size > _SMALL:
            continue
        text = contents_of(layer, IMAGE_JSON.__eq__).texts.get(IMAGE_JSON)
        if text is not None:
            return _own_use(text, image.ref)
    return False


def _own_use(text: str, ref: str) -> bool:
    try:
        document: Any = json_of(text.encode())
        found = document.get("own_use", False)
    except (ValueError, AttributeError) as error:
        raise VerificationFailed(f"{ref}: /{IMAGE_JSON} is invalid: {str(error)[:120]}") from None
    if not isinstance(found, bool):
        raise VerificationFailed(f"{ref}: /{IMAGE_JSON}: own_use must be true or false, not {shown(found)}")
    return found
