"""Formats an image that was pushed, for `publish` and `push`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchkiln.cli.shared import console
from torchkiln.registry.push import Pushed


def to_json(ref: str, pushed: Pushed, tags: Sequence[str]) -> dict[str, Any]:
    """The object that --json prints for the image *ref*."""
    return {
        "image": ref,
        "reference": pushed.reference,
        "digest": pushed.digest,
        "repository": str(pushed.repository),
        "tags": list(tags),
        "bytes_sent": pushed.bytes_sent,
        "sent": pushed.count("sent"),
        "mounted": pushed.count("mounted"),
        "there": pushed.count("there"),
        "blobs": [
            {
                "digest": blob.digest,
                "size": blob.size,
                "how": blob.how,
                "sent": blob.sent,
                "from": blob.source,
            }
            for blob in pushed.blobs
        ],
    }


def summary(ref: str, pushed: Pushed, tags: Sequence[str]) -> str:
    """One line: the blobs, the bytes, the time and the tags."""
    return (
        f"{ref}: {len(pushed.blobs)} blobs ({pushed.count('sent')} sent, {pushed.count('mounted')} mounted, "
        f"{pushed.count('there')} there already), {console.size(pushed.bytes_sent)} in "
        f"{pushed.seconds:.1f} s; {pushed.repository}: {', '.join(tags)}"
    )
