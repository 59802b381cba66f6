"""The filter's system call numbers are those in the kernel's header file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchkiln.runtimes.sandbox import ALLOWED, BUILDING

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason=f"{HEADER} does not exist: apt-get install linux-libc-dev")
@pytest.mark.parametrize("calls", [ALLOWED, BUILDING], ids=["allowed", "denied"])
def test_numbers(calls: dict[str, int]) -> None:
    defined = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", HEADER.read_text(), re.MULTILINE))
    defined.setdefault("fchmodat2", "452")  # Linux 6.6
    assert {name: str(number) for name, number in calls.items()} == {name: defined[name] for name in calls}
