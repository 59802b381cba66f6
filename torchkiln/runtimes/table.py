"""Lists the runtimes for `run` and `smoke`. To add a runtime, write a module and add a row here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torchkiln.runtimes.command import RuntimeSettings
from torchkiln.runtimes.driver import HostDriver
from torchkiln.runtimes.engine import EngineRuntime
from torchkiln.runtimes.oci import OciRuntime
from torchkiln.runtimes.rootfs import RootfsRuntime
from torchkiln.runtimes.runtime import Runtime
from torchkiln.runtimes.unpacked import UnpackedRuntime


def _rootfs(settings: RuntimeSettings, driver: HostDriver | None) -> RootfsRuntime:
    return RootfsRuntime(shm_size=settings.shm_size, driver=driver)


def _oci(program: str, settings: RuntimeSettings, driver: HostDriver | None) -> OciRuntime:
    return OciRuntime(program=program, shm_size=settings.shm_size, driver=driver)


RUNTIMES: Mapping[str, Runtime] = {
    "rootfs": UnpackedRuntime(
        name="rootfs", what="in Linux namespaces, without an engine", starter=_rootfs, interactive=True
    ),
    "crun": UnpackedRuntime(name="crun", what="with crun", starter=partial(_oci, "crun")),
    "runc": UnpackedRuntime(name="runc", what="with runc", starter=partial(_oci, "runc")),
    "docker": EngineRuntime(what="in a Docker or Podman engine"),
}
