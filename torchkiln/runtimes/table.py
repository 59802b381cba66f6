"""Lists the runtimes for `run` and `smoke`. To add a runtime, write a module and add a row here."""

from __future__ import annotations

from collections.abc import Mapping

from torchkiln.runtimes.engine import EngineRuntime
from torchkiln.runtimes.runtime import Runtime
from torchkiln.runtimes.unpacked import UnpackedRuntime

RUNTIMES: Mapping[str, Runtime] = {
    "rootfs": UnpackedRuntime(what="in Linux namespaces, without an engine"),
    "docker": EngineRuntime(what="in a Docker or Podman engine"),
}
