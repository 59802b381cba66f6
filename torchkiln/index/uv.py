"""Wanted → pins: uv resolves, from metadata alone, for the image's Python and never the host's."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed, KilnError, ToolMissing, Unresolvable
from torchkiln.index.settings import PYTORCH_VARIABLE, IndexSettings, environment_of_uv, redact_text
from torchkiln.nouns import Source
from torchkiln.wanted import Given, Wanted

PLATFORM = "x86_64-manylinux_2_28"
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_UNDATED = re.compile(r"`([^`]+)` is missing an upload date")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One package of the answer; the hashes are those of all its files."""

    name: str
    version: str
    hashes: frozenset[str]
    index: Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What uv said: pins, or why there are none."""

    pins: tuple[Pin, ...]
    refusal: KilnError | None
    undated: frozenset[str]  # projects with files whose upload date the index did not tell


def compile_pins(
    wanted: Wanted,
    settings: IndexSettings,
    environ: Mapping[str, str],
    *,
    too_new: Mapping[str, tuple[str, ...]],
) -> Answer:
    """What *wanted* comes to, by name.

    :param too_new: project → versions that must not take part; of these projects uv does not look at the
        upload dates itself.
    :raises Unresolvable: the index `pytorch` is needed and not configured.
    """
    from uv import find_uv_bin

    if wanted.bound:
        settings.url(Source.PYTORCH)
    try:
        uv = find_uv_bin()
    except FileNotFoundError as error:
        raise ToolMissing("uv is not there", hint="run: make setup") from error
    with tempfile.TemporaryDirectory(prefix="torchkiln-lock-") as folder:
        _write_inputs(Path(folder), wanted, settings, too_new)
        done = subprocess.run(
            [uv, "pip", "compile", *_arguments(wanted, too_new), "pyproject.toml", "-o", "pins.txt"],
            cwd=folder,
            # Nobody's uv.toml takes part: neither the user's nor the system's.
            env=environment_of_uv(settings, environ) | {"XDG_CONFIG_HOME": folder, "XDG_CONFIG_DIRS": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        answer = (Path(folder) / "pins.txt").read_text()
    failed = done.returncode != 0
    return Answer(
        pins=() if failed else parse_pins(answer, bound=wanted.bound),
        refusal=_refusal(done.stderr, bound=bool(wanted.bound)) if failed else None,
        undated=frozenset(_project(name) for name in _UNDATED.findall(done.stderr)),
    )


def parse_pins(text: str, *, bound: tuple[str, ...]) -> tuple[Pin, ...]:
    """The pins of a compiled requirements file, which must have hashes; what was given by address is none."""
    logical = text.replace("\\\n", " ").splitlines()
    pins = []
    for line in logical:
        if not (found := _PIN.match(line)):
            continue
        name = canonicalize_name(found["name"])
        pins.append(
            Pin(
                name=name,
                version=found["version"],
                hashes=frozenset(_HASH.findall(line)),
                index=Source.PYTORCH if name in bound else Source.DEFAULT,
            )
        )
    return tuple(pins)


def _arguments(wanted: Wanted, too_new: Iterable[str]) -> list[str]:
    return [
        *("--color", "never"),
        "--no-progress",
        *("--only-binary", ":all:"),
        *("--python-platform", PLATFORM),
        *("--python-version", wanted.python),
        "--no-python-downloads",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        *("--index-strategy", "first-index"),
        # A day alone would be read in the host's time zone.
        *("--exclude-newer", f"{wanted.as_of}T00:00:00Z"),
        *(f"--exclude-newer-package={name}=false" for name in sorted(too_new)),
        *("--constraints", "constraints.txt"),
    ]


def _write_inputs(
    folder: Path, wanted: Wanted, settings: IndexSettings, too_new: Mapping[str, tuple[str, ...]]
) -> None:
    """A project of its own: only there can uv bind a package to an index."""
    lines = [
        "[project]",
        'name = "the-image"',
        'version = "0"',
        f'requires-python = "=={wanted.python}.*"',
        f"dependencies = {_array((*wanted.requirements, *map(_by_address, wanted.given)))}",
        "[tool.uv]",
        "package = false",
    ]
    if wanted.bound:
        lines += [
            "[[tool.uv.index]]",
            'name = "pytorch"',
            f"url = {_string(settings.url(Source.PYTORCH))}",
            "explicit = true",
            "[tool.uv.sources]",
            *(f'{_string(name)} = {{ index = "pytorch" }}' for name in wanted.bound),
        ]
    for one in wanted.given:
        lines += ["[[tool.uv.dependency-metadata]]", f"name = {_string(one.name)}"]
        lines += [f"version = {_string(one.version)}", f"requires-dist = {_array(one.requires)}"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    barred = [f"{name}!={version}" for name in sorted(too_new) for version in too_new[name]]
    (folder / "constraints.txt").write_text("".join(f"{text}\n" for text in (*wanted.constraints, *barred)))
    # uv keeps what it finds in its output file where the requirements allow it.
    (folder / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in wanted.keep))


def _by_address(given: Given) -> str:
    """As uv takes a wheel that it need not look for. The address leads nowhere, and what is asked of that
    wheel is told beside it, so that uv never follows it; the hash is what uv holds the answer to."""
    return f"{given.name} @ https://given.invalid/{quote(given.filename)}#sha256={given.sha256}"


def _project(filename: str) -> str:
    """The project of a wheel or a source archive: neither name nor version holds the first hyphen."""
    if filename.endswith(".whl"):
        return canonicalize_name(filename.partition("-")[0])
    return canonicalize_name(filename.rpartition("-")[0])


def _array(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(_string(text) for text in texts) + "]"


def _string(text: str) -> str:
    """A TOML basic string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _refusal(stderr: str, *, bound: bool) -> KilnError:
    """uv's own words, less its decoration and the addresses."""
    lines = [redact_text(line.strip(" ×╰─▶│├").rstrip()) for line in stderr.splitlines()]
    essential = [line for line in lines if line and not line.startswith(("warning:", "hint:"))]
    told = "\n".join(essential[-12:])
    if any(word in stderr.lower() for word in ("failed to fetch", "error sending request", "connect")):
        where = "the index address (pip's index-url, UV_DEFAULT_INDEX)"
        where = f"{PYTORCH_VARIABLE} and {where}" if bound else where
        return BuildFailed(f"an index cannot be reached:\n{told}", hint=f"look at the network, at {where}")
    return Unresolvable(
        f"the packages cannot be had together:\n{told}",
        hint="bound the packages that contradict each other in matrix.yaml, or choose another cell",
    )
