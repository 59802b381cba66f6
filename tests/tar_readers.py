"""What other readers of tars make of layers: GNU tar, bsdtar, Python's tarfile. Imports nothing of ours."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.readers import CannotRead
from tests.trees import Tree, tree_of_folder, tree_of_tars

Read = Callable[[Sequence[bytes], Path], Tree]  # layers and an empty folder → what lies there


def _program(*command: str) -> Read:
    def read(layers: Sequence[bytes], folder: Path) -> Tree:
        for layer in layers:
            environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
            done = subprocess.run([*command, str(folder)], input=layer, capture_output=True, env=environ)
            if done.returncode:
                raise CannotRead(done.stderr.decode(errors="replace"))
        return tree_of_folder(folder)

    return read


def _python(layers: Sequence[bytes], _folder: Path) -> Tree:
    return tree_of_tars(io.BytesIO(layer) for layer in layers)


#: By name. Each unpacks into the folder that it gets.
TAR_READERS: Mapping[str, Read] = {
    "GNU tar": _program("tar", "--delay-directory-restore", "-xpf", "-", "-C"),
    "bsdtar": _program("bsdtar", "-xpf", "-", "-C"),
    "Python's tarfile": _python,
}


def comparable(tree: Tree) -> Tree:
    """*tree* without what readers may choose: folders' times, and the root; folders that no tar names."""
    return {
        os.fsencode(path).decode("utf-8", "surrogateescape"): replace(thing, mtime=0)
        if thing.kind == "folder"
        else thing
        for path, thing in tree.items()
        if path != "."
    }
