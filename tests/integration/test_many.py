"""One matrix on several machines: make as the reference, caches that lie or are lost, two jobs at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.many_scene import LAYERS, TORCHES, Scene, machine_of_this_host, scene

pytestmark = pytest.mark.skipif(bool(machine_of_this_host()), reason=machine_of_this_host())


@pytest.fixture(scope="module", name="many")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("many")) as found:
        yield found


@pytest.fixture(autouse=True)
def no_fetched_wheels(many: Scene) -> None:
    many.server.sent.clear()


def made(output: str) -> Counter[str]:
    """What jobs of layers printed with --json: "made", "reused" or "there" → their number."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Counter(line["how"] for line in found if "how" in line)


def make(many: Scene, machine: str, *words: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    """Run the Makefile of all cells on *machine*; jobs print JSON."""
    file = many.folder / f"{machine}.mk"
    file.write_text(many.plan("make", *words).replace(" --locked", " --locked --json"))
    argv = ["make", f"-j{count}", "--keep-going", "-f", str(file), f"TORCHKILN={' '.join(many.argv())}"]
    return subprocess.run(argv, env=many.environ(machine), cwd=many.folder, capture_output=True, text=True)


def digests(output: str) -> dict[str, str]:
    """The digests of the images in the output of jobs, by tag."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["tag"]: line["digest"] for line in found if "tag" in line}


def test_make_builds_what_one_machine_builds(many: Scene) -> None:
    """Each layer is made once, by the first image that needs it; a second run makes none."""
    first, second = make(many, "make"), make(many, "make")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert digests(first.stdout) == digests(second.stdout) == many.digests
    assert made(first.stdout) == {"made": LAYERS}
    assert made(second.stdout) == {"reused": LAYERS}
    assert max(Counter(many.fetched()).values()) == 1
