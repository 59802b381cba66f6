"""The commands of the READMEs, and the tests that run them.

`tests/integration/test_readmes.py` runs them as printed, except for names of other machines: addresses,
ports, GPUs, and the names of image and container. tools/readme.py writes the outputs in `console` blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from torchkiln.util.places import ROOT

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+# .*$")


class Scene(Enum):
    """The environment that a command needs."""

    OFFLINE = "this checkout"
    CHECKOUT = "a checkout with a small image, and a registry"
    PROJECT = "a folder with the matrix of the README, and an index"
    CONTAINER = "an engine with an image that has JupyterLab"
    INSTALLED = "tests/proof/test_installed.py"


# The first pattern that matches the start of a command is used.
_SCENES: tuple[tuple[str, Scene], ...] = (
    (r"(uv tool|pip) install \.|torchkiln ", Scene.INSTALLED),
    (r"docker |ssh ", Scene.CONTAINER),
    (r"(\.venv/bin/)?python build\.py (explain|pick|lock --check)\b", Scene.OFFLINE),
    (r"python build\.py lock --torch\b", Scene.PROJECT),
    (r"make (image|setup)$", Scene.CHECKOUT),
    (r"(\.venv/bin/)?python build\.py (--torch|run|smoke run|publish|verify)\b", Scene.CHECKOUT),
)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of *language* in *text*."""
    return [found["body"] for found in _FENCE.finditer(text) if found["language"] == language]


def commands(text: str) -> list[str]:
    """The commands of a page in order: those of `sh` and `console` blocks, and of `run:` in YAML."""
    return [line for found in _FENCE.finditer(text) for line in _of_block(**found.groupdict())]


def _of_block(language: str, body: str) -> Iterator[str]:
    for line in body.replace("\\\n", " ").splitlines():
        if language == "sh" and line.strip():
            yield " ".join(_COMMENT.sub("", line).split())
        elif language == "console" and line.startswith("$ "):
            yield line.removeprefix("$ ")
        elif language == "yaml" and (found := re.fullmatch(r"\s*- run: (.+)", line)):
            yield found[1]


def scene_of(command: str) -> Scene:
    """The environment in which a test runs *command*.

    :raises AssertionError: when no test runs such a command.
    """
    for pattern, scene in _SCENES:
        if re.match(pattern, command):
            return scene
    raise AssertionError(f"no test runs this command: {command}")
