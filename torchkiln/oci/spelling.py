"""Finds keys of an OCI document that differ from the specification's keys only in case.

Go's JSON decoder, which Docker, containerd and podman use, ignores case. If a manifest had both `Layers` and
`layers`, an engine could run other layers than those that were checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
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
_FREE = frozenset({"annotations", "Labels", "ExposedPorts", "Volumes"})  # these have any keys
_MAX_FAULTS = 20  # reported


def wrong_case_keys(document: Any) -> list[str]:
    """A sentence for each key that differs from one of the specification only in case; the first 20."""
    return list(islice(_wrong_case_keys(document), _MAX_FAULTS))


def _wrong_case_keys(document: Any) -> Iterator[str]:
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                known = _FOLDED.get(key.casefold(), key)
                if known != key:
                    yield f"the key {key[:80]!r} differs from {known!r} only in case: engines read it, too"
                elif key not in _FREE:
                    waiting.append(inner)
