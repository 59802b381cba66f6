"""Resolves requirements with uv, from metadata alone, for the image's Python.

uv runs in a private folder in the cache, connects only to the relay, and is killed if it takes more memory or
time than any resolution needs.

uv reads files in the parent folders: pyproject.toml as a workspace, uv.toml, .python-version, and .venv,
whose Python it runs. So the project is the root of a workspace, and settings and Python are on the command
line, which turns off all others. uv inherits no environment variables.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed, KilnError, OnlySource, ToolMissing, Unresolvable
from torchkiln.index.pages import Pages
from torchkiln.index.relay import Relay
from torchkiln.index.settings import redact_text
from torchkiln.model.cell import Source
from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree
from torchkiln.util.places import HOW_TO_INSTALL

PINS = "pins.txt"
NAME = "the-image"  # of the project
MEMORY = 320 << 20  # bytes of memory that uv may use; a cell takes a quarter of that, one with vllm half
CPU = 40  # seconds of processor time, of all cores together; a cell takes two
SECONDS = 900.0  # of wall clock time
_POLL = 0.05  # seconds between two checks of uv
_NOISE = ("warning:", "hint:", "error: No solution found")
_STDERR = 1 << 20  # bytes of uv's messages that are read
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"\s*# via (.*)")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ONLY_SOURCE = re.compile(r"(?<![\w.-])([\w.-]+)(?:[<>=!]\S+)?\s+ha(?:s|ve) no usable wheels")
_UNKNOWN = re.compile(
    r"(?:Because )?(\S+) was not found in the (?:package registry|provided package locations)"
)


# In uv's message: what is wrong with one package, and its name.
_CAUSES = {
    r"(\S+?)==\S+ has no (?:usable )?wheels.* all versions of \1 cannot": "no wheel of {} fits the image",
    r"(\S+?)==\S+ was yanked.* all versions of \1 cannot be used": "{}: yanked from the index",
    r"(\S+?)(?:==\S+)? depends? on Python.* because only \1\S* is": "{} requires another version of Python",
    r"\A(?!.*depends? on).*?(?:no version|only(?: the following versions)?)(?: of)? ([\w.-]+)": (
        "no version of {} satisfies the requirements"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One package of the resolution; the hashes are those of all its files."""

    name: str
    version: str
    hashes: frozenset[str]
    index: Source
    via: tuple[str, ...] = ()  # the packages that require it


def compile_pins(wanted: IndexRequest, pages: Pages) -> tuple[Pin, ...]:
    """uv's resolution of *wanted*, sorted by name.

    :raises Unresolvable: the requirements conflict, or the index `pytorch` is needed and not configured.
    :raises BuildFailed: an index is at fault, or the resolver exceeds a limit.
    """
    if wanted.bound:
        pages.settings.url(Source.PYTORCH)
    with private_folder(pages.store) as folder, Relay(pages, as_of=wanted.as_of, local=wanted.local) as relay:
        for name, text in _files(wanted, relay.url(Source.PYTORCH)).items():
            (folder / name).write_text(text)
        code, messages = run_uv(_arguments(wanted), folder, relay.url(Source.DEFAULT), relay=relay)
        if code == 0:
            return parse_pins((folder / PINS).read_text(), bound=wanted.bound)
        raise _error_of(messages, relay, code)


def run_uv(
    words: Sequence[str],
    folder: Path,
    index: str,
    *,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    relay: Relay | None = None,
) -> tuple[int, str]:
    """Run uv with the arguments *words* in *folder*; returns its exit code and its messages.

    :param index: the URL of the default index.
    :param relay: serves the index; if it has failed, uv is stopped.
    :raises ToolMissing: uv is not installed.
    :raises KilnError: the relay has failed, or uv exceeds a limit.
    """
    uv, messages = find_uv(), folder / "stderr.txt"
    with messages.open("wb") as stderr:
        process = subprocess.Popen(
            [uv, *words],
            cwd=folder,
            env=_environment(str(folder), index),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            fault = watch(process, relay)
        finally:
            process.kill()
            process.wait()
    if relay and relay.failures:
        raise relay.failures[0]
    if fault:
        raise fault
    with messages.open("rb") as file:
        return process.returncode, file.read(_STDERR).decode("utf-8", "replace")


def parse_pins(text: str, *, bound: tuple[str, ...]) -> tuple[Pin, ...]:
    """The pins in a compiled requirements file with hashes; requirements by URL are skipped."""
    logical = text.replace("\\\n", " ").splitlines()
    pins: list[Pin] = []
    for line in logical:
        if found := _PIN.match(line):
            name = canonicalize_name(found["name"])
            pin = Pin(
                name=name,
                version=found["version"],
                hashes=frozenset(_HASH.findall(line)),
                index=Source.PYTORCH if name in bound else Source.DEFAULT,
            )
            pins.append(pin)
        elif pins and (comment := _VIA.match(line)):
            pins[-1] = replace(pins[-1], via=_packages(comment[1]))
    return tuple(pins)


def _packages(names: str) -> tuple[str, ...]:
    """The packages in a comment that uv wrote, without the project that is compiled."""
    parts = (part.strip() for part in names.split(","))
    return tuple(canonicalize_name(part) for part in parts if _PROJECT.fullmatch(part) and part != NAME)


def find_uv() -> str:
    """The path of uv.

    :raises ToolMissing: uv is not installed.
    """
    from uv import find_uv_bin

    try:
        return find_uv_bin()
    except FileNotFoundError as error:
        raise ToolMissing("uv is not installed", hint=HOW_TO_INSTALL) from error


@contextmanager
def private_folder(store: Store) -> Iterator[Path]:
    """A folder in the cache that only this user can access; it is deleted at the end, or by the next run."""
    store.sweep()
    folder = store.temporary("resolver")
    with store.writable():
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)


def watch(process: subprocess.Popen[bytes], relay: Relay | None) -> KilnError | None:
    """Wait for uv; returns why it was stopped, or None.

    The time limit does not include builds of METADATA, for which uv waits.
    """
    with suppress(OSError):
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU, CPU + 1))
    left = SECONDS
    while True:
        since = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL)
            return _limit_exceeded(f"{CPU} seconds of processor time") if process.returncode < 0 else None
        if relay and relay.failures:
            return None
        if _resident(process.pid) > MEMORY:
            return _limit_exceeded(f"{MEMORY >> 20} MiB of memory")
        if not (relay and relay.builds):
            left -= time.monotonic() - since
        if left < 0:
            return _limit_exceeded(f"{SECONDS / 60:.0f} minutes")


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _limit_exceeded(limit: str) -> BuildFailed:
    return BuildFailed(
        f"the resolver was stopped: it used more than {limit}",
        hint="the index is at fault, or the requirements are too wide: add bounds",
    )


def _error_of(stderr: str, relay: Relay, code: int) -> KilnError:
    """The error with uv's message, without its decoration and with redacted URLs."""
    lines = [redact_text(line.strip(" ×╰─▶│├").rstrip()) for line in stderr.splitlines()]
    essential = [line[:2000] for line in lines if line and not line.startswith(_NOISE)]
    message = "\n".join(essential[-12:])
    message = message.replace(f"{NAME} depends on", "you require")  # as uv says without a project
    for name in map(canonicalize_name, _UNKNOWN.findall(stderr)):
        if name in relay.missing:
            return relay.missing[name]
    if code != 1:
        return BuildFailed(f"the resolver failed:\n{message}", hint="check the requirements and the index")
    if sources := dict.fromkeys(map(canonicalize_name, _ONLY_SOURCE.findall("\n".join(essential)))):
        return OnlySource(sources, message)
    named = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9][\w.-]*", stderr)}
    left_out = [line for name in sorted(named & relay.left_out.keys()) for line in relay.left_out[name]]
    more = "".join(f"\nskipped: {line}" for line in left_out[:5])
    for pattern, cause in _CAUSES.items():
        if found := re.search(pattern, message, re.DOTALL):
            hint = "require another version of it, or use an index that has a suitable one"
            return Unresolvable(f"{cause.format(found[1])}:\n{message}{more}", hint=hint)
    return Unresolvable(
        f"the requirements conflict:\n{message}{more}",
        hint="add bounds for the conflicting packages in matrix.yaml, or choose another cell",
    )


def _arguments(wanted: IndexRequest) -> list[str]:
    """uv's arguments, in the folder with `_files`."""
    return [
        *("pip", "compile"),
        *("--config-file", "uv.toml"),
        *("--python", sys.executable),
        "--no-cache",
        *("--color", "never"),
        "--no-progress",
        *("--only-binary", ":all:"),
        *("--python-platform", f"{wanted.platform.machine}-manylinux_2_28"),
        *("--python-version", wanted.python),
        "--no-python-downloads",
        "--generate-hashes",
        "--no-header",
        *("--annotation-style", "line"),
        *("--index-strategy", "first-index"),
        *("--keyring-provider", "disabled"),
        *("--constraints", "constraints.txt"),
        *("pyproject.toml", "-o", PINS),
    ]


def _environment(folder: str, default_url: str) -> dict[str, str]:
    """All environment variables that uv gets: those of the user cannot change the resolution."""
    return {
        "UV_DEFAULT_INDEX": default_url,
        "UV_HTTP_RETRIES": "0",  # the relay retries
        "UV_HTTP_TIMEOUT": "86400",  # the relay has time limits; a build of METADATA may take minutes
        "UV_CONCURRENT_DOWNLOADS": "16",
        "UV_NO_ENV_FILE": "1",
        "NO_PROXY": "*",
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        **dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME"), folder),
    }


def _files(wanted: IndexRequest, pytorch_url: str) -> Mapping[str, str]:
    """The files in uv's folder: name → text."""
    project = [
        "[project]",
        f"name = {_toml(NAME)}",
        'version = "0"',
        f'requires-python = "=={wanted.python}.*"',
        f"dependencies = {_toml((*wanted.requirements, *map(_by_url, wanted.known)))}",
        "[tool.uv]",
        "package = false",
        "[tool.uv.workspace]",
        "members = []",
    ]
    if wanted.bound:  # only in a project can uv bind a package to an index
        project += [
            "[[tool.uv.index]]",
            'name = "pytorch"',
            f"url = {_toml(pytorch_url)}",
            "explicit = true",
            "[tool.uv.sources]",
            *(f'{_toml(name)} = {{ index = "pytorch" }}' for name in wanted.bound),
        ]
    settings = []
    for given in wanted.known:
        settings += ["[[dependency-metadata]]", f"name = {_toml(given.name)}"]
        settings += [f"version = {_toml(given.version)}", f"requires-dist = {_toml(given.requires)}"]
    return {
        "pyproject.toml": "\n".join(project) + "\n",
        "uv.toml": "".join(f"{line}\n" for line in settings),
        "constraints.txt": "".join(f"{text}\n" for text in wanted.constraints),
        # uv keeps the versions in its output file if the requirements allow them.
        PINS: "".join(f"{name}=={version}\n" for name, version in wanted.keep),
    }


def _toml(value: str | tuple[str, ...]) -> str:
    """*value* in TOML, whose texts and lists are written as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _by_url(given: KnownWheel) -> str:
    """The requirement for the wheel *given*.

    Its URL does not exist; uv does not open it, because uv.toml contains the wheel's metadata.
    """
    return f"{given.name} @ https://given.invalid/{quote(given.filename)}#sha256={given.sha256}"
