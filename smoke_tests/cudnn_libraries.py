"""The libraries of cuDNN: which of them a program with convolutions and recurrent layers uses, and how."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable

# cuDNN 8 has the first six, cuDNN 9 the others. Libraries that cuDNN uses for few operations are left out,
# and only loaded by probes/cudnn.py: the engines that compile at run time (engines_runtime_compiled,
# engines_tensor_ir), and libraries that newer releases add.
USED = frozenset(
    {
        *("ops_infer", "ops_train", "cnn_infer", "cnn_train", "adv_infer", "adv_train"),
        *("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled"),
    }
)
# Functions that compare a library's version with those of its dependencies. They are called through libcudnn,
# which then loads the library by its own search. torch no longer calls libcudnn_cnn of cuDNN 9, which has the
# older interface to convolutions.
_VERSION_CHECKS = (
    *("OpsInfer", "OpsTrain", "CnnInfer", "CnnTrain", "AdvInfer", "AdvTrain"),
    *("Graph", "Ops", "Cnn", "Adv"),
)
_NAME = re.compile(r"libcudnn_([a-z_]+)(-[0-9a-f]+)?\.so")


def mapped() -> list[str]:
    """The real paths of the libraries of cuDNN in this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(os.path.realpath(path) for path in paths if os.path.basename(path).startswith("libcudnn"))


def inconsistent(loaded: Iterable[str]) -> list[str]:
    """Call all version checks of this cuDNN; those that do not succeed, with their status."""
    found = []
    for path in loaded:
        if not re.match(r"libcudnn(-[0-9a-f]+)?\.so", os.path.basename(path)):
            continue
        library = ctypes.CDLL(path)
        for part in _VERSION_CHECKS:
            check = getattr(library, f"cudnn{part}VersionCheck", None)
            if check is not None and (status := check()):
                found.append(f"cudnn{part}VersionCheck: status {status}")
    return found


def unused(libraries: Iterable[str], loaded: Iterable[str]) -> list[str]:
    """The names of *libraries* that should be in use but are not *loaded*."""
    names = {path: _NAME.match(os.path.basename(path)) for path in libraries}
    used = {path for path, name in names.items() if name and name[1] in USED}
    return sorted(os.path.basename(path) for path in used - set(loaded))
