"""Provides the byte-code of one wheel, from the cache or compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torchkiln.engine.cache_keys import layer_key
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store
from torchkiln.wheel.bytecode import Code, Compiler, read_pack, write_pack

# Tests in wheels are almost never imported, but have a sixth of all byte-code. Layers for a standalone Python
# do not contain it.
_TESTS = re.compile(r"/tests?/")


class Bytecode:
    """The .pyc files of one wheel; `cached` are those in the cache, None if they must be compiled.

    :param interpreter: the command that starts *python*.
    """

    def __init__(
        self, wheel: LockedWheel, store: Store, python: ImagePython, interpreter: tuple[str, ...]
    ) -> None:
        self._store, self._interpreter = store, interpreter
        self._left_out = _TESTS if python.of_another else None
        self._pack = store.root / "bytecode" / f"{layer_key((wheel,), python)}.pack"
        self.cached = _intact(self._pack)
        self._compiler: Compiler | None = None

    def source(self, path: str, data: bytes) -> None:
        """Compile a Python source in the background, unless its byte-code is left out."""
        if self._left_out and self._left_out.search(path):
            return
        if self._compiler is None:
            self._compiler = Compiler(self._interpreter, self._store.temporary("made"))
        self._compiler.add(path, data)

    def result(self) -> Iterable[Code]:
        """All .pyc files, which then are in the cache.

        :raises BuildFailed: the image's Python failed.
        """
        if self.cached is not None:
            return self.cached
        if self._compiler is None:
            return ()
        self._compiler.finish()
        pack = self._store.temporary("pack")
        try:
            write_pack(self._compiler.output, pack, self._compiler.requested)
            self.cached = _intact(pack)
            if self.cached is None:
                raise ValueError("the pack cannot be read back")
            self._store.adopt(pack, self._pack)
        except ValueError as error:
            raise BuildFailed(
                f"the image's Python returned invalid byte-code: {error}",
                hint="the base is damaged or malicious, or the disk is faulty: run it again",
            ) from error
        finally:
            pack.unlink(missing_ok=True)
        return self.cached

    def close(self) -> None:
        """End the compiler and delete its output."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.output.unlink(missing_ok=True)


def _intact(pack: Path) -> list[Code] | None:
    """The content of a pack; None if it is missing or damaged."""
    try:
        with pack.open("rb") as file:
            return list(read_pack(file))
    except (OSError, ValueError):
        return None
