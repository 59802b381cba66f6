"""base → its own Python, run without root, chroot or container.

Byte-code must come from the image's exact interpreter. Its files are taken out of the base once, and it is
started through the base's own loader, so that nothing of the host's Python or C library takes part.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import BuildFailed
from torchkiln.nouns import LockedBase
from torchkiln.oci.gunzip import open_gzip
from torchkiln.store import Store

LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"


def python_name(version: str) -> str:
    """Of "3.11.2" the program and the folder of its library: "python3.11"."""
    return "python" + ".".join(version.split(".")[:2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A base's Python under *root*, a folder of the cache."""

    root: Path
    version: str  # full, "3.11.2"

    def argv(self) -> list[str]:
        """The command that starts it, to be followed by Python's own arguments; needs no environment.

        Nothing of the caller's environment, user folder or site-packages is seen; the hash seed is fixed, so
        that what it marshals is the same each time; it writes no byte-code of its own.
        """
        name = python_name(self.version)
        return [
            *("/usr/bin/env", "-i", "LC_ALL=C", "PYTHONUTF8=1", "PYTHONCOERCECLOCALE=0"),
            *("PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONHOME={self.root / 'usr'}"),
            *(str(self.root / LOADER), "--inhibit-cache", "--library-path", str(self.root / LIBRARIES)),
            *(str(self.root / "usr/bin" / name), "-s", "-S"),
            *(["-P"] if name != "python3.10" else []),
        ]


def interpreter(base: LockedBase, store: Store) -> Interpreter:
    """The Python of *base*, whose blob is in *store*; taken out of it at the first call (~2 s, 60 MB).

    :raises BuildFailed: the base is not in the store, is damaged, or holds no such Python.
    """
    root = store.root / "interpreters" / base.digest.removeprefix("sha256:")
    found = Interpreter(root=root, version=base.python)
    if root.is_dir():
        return found
    with store.lock(f"interpreter-{base.os}", f"takes the Python out of the base of {base.os}"):
        if root.is_dir():
            return found
        temporary = store.temporary("interpreter")
        try:
            extract_python(store.blob(base.digest), base.python, temporary)
            root.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, root)
        except (OSError, EOFError, tarfile.TarError) as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise BuildFailed(
                f"the Python of base {base.digest} cannot be taken out: {error}",
                hint="make room, or set TORCHKILN_CACHE to another folder" if full else "",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return found


def extract_python(blob: Path, version: str, into: Path, *, also: str = "") -> None:
    """Take Python *version* and the libraries that it loads out of the base *blob*, to the folder *into*.

    :param also: a pattern of further paths, "usr/bin/tar".
    :raises BuildFailed: the base holds no such Python.
    :raises OSError: it cannot be read or written; EOFError, tarfile.TarError: it is damaged.
    """
    name = python_name(version)
    wanted = re.compile(
        rf"usr/bin/{name}|usr/lib/{name}/(?!config-|test/).+|"
        rf"{LIBRARIES}/(ld-linux-x86-64\.so\.2|lib(c|m|dl|pthread|util|rt|z|expat|ffi|crypto|ssl|lzma|bz2|uuid)\.so\.[^/]+)"
        + (f"|{also}" if also else "")
    )
    with open_gzip(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            if not wanted.fullmatch(path) or ".." in path.split("/"):
                continue
            place = into / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                place.symlink_to(member.linkname)
            elif (data := tar.extractfile(member)) is not None:
                place.write_bytes(data.read())
                place.chmod(member.mode | 0o600)
    for needed in (f"usr/bin/{name}", f"usr/lib/{name}/os.py", LOADER):
        if not (into / needed).exists():
            raise BuildFailed(f"the base has no {needed}")
