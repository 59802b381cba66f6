"""Extracts the Python of a base and returns the command that runs it.

Byte-code must come from the image's exact interpreter. Its files are extracted from the base once, and it is
started with the base's own loader, independent of the host's Python and C library.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base.extraction import ExtractionRefused, extract
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import LockedBase
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.compression import GZIP
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_header import DamagedTar
from torchkiln.store.store import Store

LIBRARIES = LINUX_AMD64.libraries
LOADER = f"{LIBRARIES}/{LINUX_AMD64.loader}"


def python_name(version: str) -> str:
    """The name of the program and of its library folder: "3.11.2" → "python3.11"."""
    return "python" + ".".join(version.split(".")[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A base's Python under *root*, a folder of the cache."""

    root: Path
    version: str  # full, "3.11.2"

    def argv(self, root: Path | None = None) -> list[str]:
        """The command that starts it, without arguments for Python.

        :param root: the path of `root` inside a sandbox, "/"; None: outside.
        """
        name, at = python_name(self.version), self.root if root is None else root
        return [
            *(str(at / LOADER), "--inhibit-cache", "--library-path", str(at / LIBRARIES)),
            *(str(at / "usr/bin" / name), "-s", "-S"),
            *(["-P"] if name != "python3.10" else []),
        ]

    def env(self, root: Path | None = None) -> dict[str, str]:
        """The complete environment of that command.

        It does not depend on the caller's environment, home folder or site-packages; the hash seed is fixed,
        so that byte-code is reproducible; no byte-code is written to disk.
        """
        return {
            "LC_ALL": "C",
            "PYTHONUTF8": "1",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHOME": str((self.root if root is None else root) / "usr"),
        }


def interpreter(base: LockedBase, store: Store) -> Interpreter:
    """The Python of *base*, whose blob is in *store*; extracted at the first call (~2 s, 60 MB).

    :raises BuildFailed: the base is not in the store, is damaged, or has no such Python.
    """
    root = store.root / "interpreters" / base.digest.removeprefix("sha256:")
    found = Interpreter(root=root, version=base.python)
    if root.is_dir():
        return found
    with store.lock(f"interpreter-{base.os}", f"extracts the Python of the base of {base.os}"):
        if root.is_dir():
            return found
        temporary = store.temporary("interpreter")
        try:
            extract_python(store.blob(base.digest), base, temporary)
            root.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, root)
        except DAMAGED as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise BuildFailed(
                f"the Python of base {base.digest} cannot be extracted: {error}",
                hint="free disk space, or set TORCHKILN_CACHE to another folder" if full else "",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return found


def extract_python(blob: Path, base: LockedBase, into: Path, *, also: str = "") -> None:
    """Extract the Python of *base* and its libraries from its *blob* to the new folder *into*.

    :param also: a pattern of further paths, "usr/bin/tar".
    :raises BuildFailed: it is another base, has no such Python, or a refused entry; the extracted files must
        not be run.
    :raises OSError: reading or writing failed; ValueError: the blob is damaged.
    """
    name = python_name(base.python)
    wanted = re.compile(
        rf"usr/bin/{re.escape(name)}|usr/lib/{re.escape(name)}/(?!config-|test/).+|"
        rf"{re.escape(LOADER)}|{LIBRARIES}/(lib(c|m|dl|pthread|util|rt|z|expat|ffi|crypto|ssl|lzma|bz2|uuid)\.so\.[^/]+)"
        + (f"|{also}" if also else ""),
        re.DOTALL,
    )
    try:
        with GZIP.open(blob) as stream:
            found = extract(stream, into, lambda path: wanted.fullmatch(path) is not None)
    except (ExtractionRefused, DamagedTar) as error:
        raise BuildFailed(f"the base's Python cannot be extracted: {error}") from error
    if found != base.diff_id:
        raise BuildFailed(
            f"{blob} is damaged: diff_id mismatch: expected {base.diff_id}, got {found}",
            hint="run: torchkiln cache verify --repair; then build again",
        )
    for needed in (f"usr/bin/{name}", f"usr/lib/{name}/os.py", LOADER):
        if not (into / needed).is_file():  # links stay inside the folder
            raise BuildFailed(f"the base has no /{needed}")
