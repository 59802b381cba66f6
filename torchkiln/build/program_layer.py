"""Makes the layer of a single program, such as micromamba, and its settings."""

from __future__ import annotations

from pathlib import Path

from torchkiln.build.environment import Environment
from torchkiln.build.fetched import fetched
from torchkiln.model.layer import Blob
from torchkiln.model.plan import OverlayFile, ProgramLayer
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.plan.micromamba import program_path


def make_program(spec: ProgramLayer, environment: Environment) -> tuple[Blob, Path]:
    """The layer of *spec* and the temporary path of its blob, which the caller owns.

    :raises BuildFailed: the file is not the locked one, or cannot be downloaded.
    """
    file = spec.program
    store, observer = environment.store, environment.observer
    path = fetched(file, environment)
    observer.begin("convert", spec.title, file.size)
    program = OverlayFile(path=program_path(file), mode=0o755, data=path.read_bytes())
    blob, encoded = encode_bytes(
        tar.archive((program, *spec.files, *spec.links), mtime=WHEEL_EPOCH, folders=spec.folders)
    )
    out = store.temporary("program")
    out.write_bytes(blob)
    observer.end("convert", spec.title)
    return encoded, out
