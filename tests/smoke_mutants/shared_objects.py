"""Environments whose shared libraries are broken, without a change to a file of the real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CUDNN = """
#include <stddef.h>
size_t cudnnGetVersion(void) {{ return {number}; }}
int cudnnGetProperty(int which, int *value) {{
    const int parts[] = {{{major}, {minor}, {patch}}};
    *value = parts[which];
    return 0;
}}
"""

# rtld-audit(7): the loader asks this before it looks at a place, and NULL says that nothing is there.
_AUDIT = """
#include <stdint.h>
#include <string.h>
unsigned int la_version(unsigned int version) {{ (void)version; return 1; }}
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag) {{
    (void)cookie; (void)flag;
    return strstr(name, "{part}") ? 0 : (char *)name;
}}
"""


def another_cudnn(folder: Path, version: tuple[int, int, int]) -> dict[str, str]:
    """The environment in which another cuDNN, of *version*, answers first when it is asked what it is."""
    major, minor, patch = version
    number = major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
    # Not by cuDNN's own soname: the loader would take it for the library that torch needs, and miss the rest.
    source = _CUDNN.format(number=number, major=major, minor=minor, patch=patch)
    return {"LD_PRELOAD": str(_built(folder / "libanother_cudnn.so", source))}


def without_library(folder: Path, part: str) -> dict[str, str]:
    """The environment in which no library whose name contains *part* can be found."""
    return {"LD_AUDIT": str(_built(folder / "libaudit.so", _AUDIT.format(part=part)))}


def _built(path: Path, source: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path
