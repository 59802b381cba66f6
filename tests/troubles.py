"""The console blocks of docs/troubles.md: commands and the lines that they print."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from torchkiln.util.places import ROOT

PAGE, CHINESE = ROOT / "docs" / "troubles.md", ROOT / "docs" / "troubles.zh-CN.md"
IMAGE = "pytorch-cuda:v2.7"  # the image's name in the page; tests replace it
_SECTION = re.compile(r"^## (?P<title>.+)\n(?P<text>(?:(?!## ).*\n?)*)", re.MULTILINE)
_BLOCK = re.compile(r"^<!-- run: (?P<image>\w+) -->\n```console\n(?P<lines>(?:.*\n)*?)```$", re.MULTILINE)

ImageKind = Literal["small", "torch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A console block: each command with the lines that its output must have."""

    title: str
    image: str
    commands: tuple[tuple[str, tuple[str, ...]], ...]


def sections(page: Path) -> dict[str, str]:
    """The text of each section by its title."""
    return {found["title"]: found["text"] for found in _SECTION.finditer(page.read_text())}


def examples(page: Path = PAGE) -> Iterator[Example]:
    """Every block of *page* that a test runs."""
    for title, text in sections(page).items():
        for found in _BLOCK.finditer(text):
            commands: list[tuple[str, list[str]]] = []
            for line in found["lines"].splitlines():
                if line.startswith("$ "):
                    commands.append((line[2:], []))
                else:
                    commands[-1][1].append(line)
            yield Example(
                title=title,
                image=found["image"],
                commands=tuple((command, tuple(lines)) for command, lines in commands),
            )


def for_image(kind: ImageKind) -> list[object]:
    """The parameters of a test: the examples for the image *kind*."""
    return [pytest.param(example, id=example.title) for example in examples() if example.image == kind]


def demand_output(
    example: Example, image: str, environ: Mapping[str, str], folder: Path, options: Sequence[str] = ()
) -> None:
    """Run the commands of *example* with *image* in *folder*; require that the output has all its lines.

    *options* are passed to each `docker run`. Named containers are removed.
    """
    argvs = [shlex.split(command) for command, _ in example.commands]
    try:
        for argv, (_, lines) in zip(argvs, example.commands, strict=True):
            assert argv[:2] == ["docker", "run"]
            words = [image if word == IMAGE else word for word in argv[2:]]
            done = subprocess.run(
                [*argv[:2], *options, *words], cwd=folder, env=dict(environ), capture_output=True, check=False
            )
            output = (done.stdout + done.stderr).decode(errors="replace")
            assert [line for line in lines if not _printed(line, output)] == [], output
    finally:
        names = [argv[argv.index("--name") + 1] for argv in argvs if "--name" in argv]
        if names:
            subprocess.run(
                ["docker", "rm", "--force", "--volumes", *names],
                env=dict(environ),
                capture_output=True,
                check=False,
            )


def _printed(line: str, output: str) -> bool:
    """Whether *output* has *line*; `…` stands for any text."""
    pattern = ".*".join(map(re.escape, line.split("…")))
    return any(re.fullmatch(pattern, printed) for printed in output.splitlines())
