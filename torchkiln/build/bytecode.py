"""One wheel's byte-code, from the cache or made: sources in as they come by, a kept pack out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchkiln.build.cache_keys import layer_key
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.wheel.bytecode import Code, Compiler, press, read_pack


class Bytecode:
    """The .pyc files of one wheel; `kept` are those in the cache, None when they must be made.

    :param python: the base's full version.
    :param interpreter: the command that starts the base's Python.
    """

    def __init__(self, wheel: LockedWheel, store: Store, python: str, interpreter: tuple[str, ...]) -> None:
        self._store, self._interpreter = store, interpreter
        self._pack = store.root / "bytecode" / f"{layer_key((wheel,), python)}.pack"
        self.kept = _intact(self._pack)
        self._compiler: Compiler | None = None

    def source(self, path: str, data: bytes) -> None:
        """One Python source, to be compiled beside the caller's work."""
        if self._compiler is None:
            self._compiler = Compiler(self._interpreter, self._store.temporary("made"))
        self._compiler.add(path, data)

    def result(self) -> Iterable[Code]:
        """All of them, now in the cache.

        :raises BuildFailed: the base's Python failed.
        """
        if self.kept is not None:
            return self.kept
        if self._compiler is None:
            return ()
        self._compiler.finish()
        pack = self._store.temporary("pack")
        try:
            press(self._compiler.made, pack, self._compiler.asked)
            self.kept = _intact(pack)
            if self.kept is None:
                raise ValueError("it reads otherwise than it was written")
            self._store.adopt(pack, self._pack)
        except ValueError as error:
            raise BuildFailed(
                f"the base's Python did not give the byte-code that it was asked for: {error}",
                hint="the base is damaged, or was made to do harm; or the disk is at fault: run again",
            ) from error
        finally:
            pack.unlink(missing_ok=True)
        return self.kept

    def close(self) -> None:
        """End what still runs, delete what is half made."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.made.unlink(missing_ok=True)


def _intact(pack: Path) -> list[Code] | None:
    """What is in a pack that is there and whole."""
    try:
        with pack.open("rb") as file:
            return list(read_pack(file))
    except (OSError, ValueError):
        return None
