"""An image's JSON document → its keys that other readers take for ones of the specification.

Go's decoder, which Docker, containerd and podman use, ignores case: `Layers` beside `layers` would be the
layers that an engine runs, and not those that were looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NAMES = frozenset(
    [
        *("schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject"),
        *("annotations", "digest", "size", "urls", "data", "platform", "imageLayoutVersion"),
        *("architecture", "os", "os.version", "os.features", "variant", "created", "author", "rootfs"),
        *("type", "diff_ids", "history", "created_by", "comment", "empty_layer"),
        *("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels"),
        *("StopSignal", "ArgsEscaped", "Healthcheck", "OnBuild", "Shell"),
        *("Test", "Interval", "Timeout", "StartPeriod", "StartInterval", "Retries"),
    ]
)
_FOLDED = {name.casefold(): name for name in _NAMES}
_FREE = frozenset({"annotations", "Labels", "ExposedPorts", "Volumes"})  # their keys are the author's own
_MOST = 20  # faults that are told


def misspelt(document: Any) -> list[str]:
    """What is wrong with keys of *document* that are the specification's in other case; the first few."""
    return [told for told, _ in zip(_misspelt(document), range(_MOST), strict=False)]


def _misspelt(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            for key, inner in one.items():
                meant = _FOLDED.get(key.casefold(), key)
                if meant != key:
                    yield f"the key {key[:80]!r} is {meant!r} in other case: engines take one for the other"
                elif key not in _FREE:
                    waiting.append(inner)
