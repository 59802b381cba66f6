"""Makes the project, settings, arguments and environment for a run of uv. Pure.

uv reads files in the parent folders: pyproject.toml as a workspace, uv.toml, .python-version, and .venv,
whose Python it runs. So the project is the root of a workspace, and settings and Python are on the command
line, which turns off all others. uv inherits no environment variables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from urllib.parse import quote

from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.model.platform import LINUX_AMD64

PLATFORM = f"{LINUX_AMD64.machine}-manylinux_2_28"
PINS = "pins.txt"
NAME = "the-image"  # of the project


def arguments(wanted: IndexRequest) -> list[str]:
    """uv's arguments, in the folder with `files`."""
    return [
        *("pip", "compile"),
        *("--config-file", "uv.toml"),
        *("--python", sys.executable),
        "--no-cache",
        *("--color", "never"),
        "--no-progress",
        *("--only-binary", ":all:"),
        *("--python-platform", PLATFORM),
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


def environment(folder: str, default_url: str) -> dict[str, str]:
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


def files(wanted: IndexRequest, pytorch_url: str) -> Mapping[str, str]:
    """The files in uv's folder: name → text."""
    project = [
        "[project]",
        f"name = {_string(NAME)}",
        'version = "0"',
        f'requires-python = "=={wanted.python}.*"',
        f"dependencies = {_array((*wanted.requirements, *map(_by_url, wanted.known)))}",
        "[tool.uv]",
        "package = false",
        "[tool.uv.workspace]",
        "members = []",
    ]
    if wanted.bound:  # only in a project can uv bind a package to an index
        project += [
            "[[tool.uv.index]]",
            'name = "pytorch"',
            f"url = {_string(pytorch_url)}",
            "explicit = true",
            "[tool.uv.sources]",
            *(f'{_string(name)} = {{ index = "pytorch" }}' for name in wanted.bound),
        ]
    settings = []
    for given in wanted.known:
        settings += ["[[dependency-metadata]]", f"name = {_string(given.name)}"]
        settings += [f"version = {_string(given.version)}", f"requires-dist = {_array(given.requires)}"]
    return {
        "pyproject.toml": "\n".join(project) + "\n",
        "uv.toml": "".join(f"{line}\n" for line in settings),
        "constraints.txt": "".join(f"{text}\n" for text in wanted.constraints),
        # uv keeps the versions in its output file if the requirements allow them.
        PINS: "".join(f"{name}=={version}\n" for name, version in wanted.keep),
    }


def _by_url(given: KnownWheel) -> str:
    """The requirement for the wheel *given*.

    Its URL does not exist; uv does not open it, because uv.toml contains the wheel's metadata.
    """
    return f"{given.name} @ https://given.invalid/{quote(given.filename)}#sha256={given.sha256}"


def _array(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(_string(text) for text in texts) + "]"


def _string(text: str) -> str:
    """A TOML basic string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
