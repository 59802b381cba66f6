"""Wanted → the folder in which uv resolves it: a project and settings of its own, and no others. Pure.

uv obeys what lies in the folders above: pyproject.toml as a workspace, uv.toml, .python-version, .venv, whose
Python it even runs. So the project is the root of a workspace, the settings are named on the command line,
which turns off all others, and so is the Python. Of the environment uv gets nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from urllib.parse import quote

from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.model.platform import LINUX_AMD64

PLATFORM = f"{LINUX_AMD64.machine}-manylinux_2_28"
PINS = "pins.txt"


def arguments(wanted: IndexRequest) -> list[str]:
    """What uv is called with, in the folder that has `files`."""
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
        "--no-annotate",
        *("--index-strategy", "first-index"),
        *("--keyring-provider", "disabled"),
        *("--constraints", "constraints.txt"),
        *("pyproject.toml", "-o", PINS),
    ]


def environment(folder: str, default_url: str) -> dict[str, str]:
    """All of uv's environment: none of the user's variables can change the answer, and none is needed."""
    return {
        "UV_DEFAULT_INDEX": default_url,
        "UV_HTTP_RETRIES": "0",  # our session tries again
        "UV_HTTP_TIMEOUT": "900",  # and has limits of its own
        "UV_CONCURRENT_DOWNLOADS": "16",
        "UV_NO_ENV_FILE": "1",
        "NO_PROXY": "*",
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        **dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME"), folder),
    }


def files(wanted: IndexRequest, pytorch_url: str) -> Mapping[str, str]:
    """File name → text."""
    project = [
        "[project]",
        'name = "the-image"',
        'version = "0"',
        f'requires-python = "=={wanted.python}.*"',
        f"dependencies = {_array((*wanted.requirements, *map(_by_address, wanted.known)))}",
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
    for one in wanted.known:
        settings += ["[[dependency-metadata]]", f"name = {_string(one.name)}"]
        settings += [f"version = {_string(one.version)}", f"requires-dist = {_array(one.requires)}"]
    return {
        "pyproject.toml": "\n".join(project) + "\n",
        "uv.toml": "".join(f"{line}\n" for line in settings),
        "constraints.txt": "".join(f"{text}\n" for text in wanted.constraints),
        # uv keeps what it finds in its output file where the requirements allow it.
        PINS: "".join(f"{name}=={version}\n" for name, version in wanted.keep),
    }


def _by_address(given: KnownWheel) -> str:
    """As uv takes a wheel that it need not look for. The address leads nowhere, and what is asked of that
    wheel is told beside it, so that uv never follows it; the hash is what uv holds the answer to."""
    return f"{given.name} @ https://given.invalid/{quote(given.filename)}#sha256={given.sha256}"


def _array(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(_string(text) for text in texts) + "]"


def _string(text: str) -> str:
    """A TOML basic string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
