"""Writes the layer of a standalone Python: its files in /opt/python, and a /opt/venv that uses it.

/opt/venv is the base's virtual environment. The layer replaces its pyvenv.cfg and its links to Python.
Packages stay in the folder of the base's Python version, and the folder of the new version is a link to that
folder. So the images of both Pythons can share a layer of packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from torchkiln.base.interpreter import HOME, python_name
from torchkiln.base.python_archive import PythonFiles, StoredFile
from torchkiln.model.plan import WHITEOUT
from torchkiln.model.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.oci import tar

_VENV = PREFIX.lstrip("/")
_CONFIG = """\
home = /{home}/bin
include-system-site-packages = true
version = {version}
executable = /{home}/bin/{name}
"""

Content = bytes | StoredFile
"""The bytes of a file with mode 0644, or a file of the archive."""


def sources(found: PythonFiles) -> Iterator[str]:
    """The paths of the modules of the standard library, sorted."""
    folder = f"{HOME}/lib/{python_name(found.version)}/"
    return iter(sorted(path for path in found.files if path.startswith(folder) and path.endswith(".py")))


def layer_tar(
    found: PythonFiles, contents: BinaryIO, *, base: str, bytecode: Mapping[str, bytes]
) -> Iterator[bytes]:
    """The tar of the layer of *found*, in pieces, sorted by path.

    :param contents: the file to which `read_python` wrote the contents.
    :param base: the version of the base's Python, "3.11.2".
    :param bytecode: the .pyc files, by path.
    """
    name, lower = python_name(found.version), python_name(base)
    program = f"/{HOME}/bin/{name}"
    files: dict[str, Content] = {**found.files, **bytecode}
    files[f"{_VENV}/pyvenv.cfg"] = _CONFIG.format(home=HOME, version=found.version, name=name).encode()
    files[f"{_VENV}/bin/{WHITEOUT}{lower}"] = b""
    links = {f"{_VENV}/bin/{link}": program for link in ("python", "python3", name)}
    links |= {**found.links, f"{_VENV}/lib/{name}": lower}
    return _entries(files, links, contents)


def content_of(file: StoredFile, contents: BinaryIO) -> bytes:
    """The content of *file*."""
    contents.seek(file.start)
    return contents.read(file.size)


def _entries(files: Mapping[str, Content], links: Mapping[str, str], contents: BinaryIO) -> Iterator[bytes]:
    for path in _with_folders({*files, *links}):
        if path in links:
            yield tar.link(path, links[path], mtime=WHEEL_EPOCH)
        elif path in files:
            file = files[path]
            data = content_of(file, contents) if isinstance(file, StoredFile) else file
            mode = file.mode if isinstance(file, StoredFile) else 0o644
            yield tar.header(path, mode=mode, size=len(data), mtime=WHEEL_EPOCH)
            yield data
            yield tar.padding(len(data))
        else:
            yield tar.header(path, mode=0o755, mtime=WHEEL_EPOCH, directory=True)
    yield tar.END


def _with_folders(paths: Iterable[str]) -> list[str]:
    """*paths* and their folders, each folder before its content."""
    return sorted({*paths, *(folder for path in paths for folder in tar.parents(path))})
