"""Lists the packages of a project's uv.lock with uv, offline and without the project's code."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torchkiln.errors import ConfigError
from torchkiln.index.settings import redact_text
from torchkiln.index.uv import private_folder, run_uv
from torchkiln.store.store import Store

_OUTPUT = 16 << 20  # bytes that are read; a lock of 500 packages gives 2,000,000
_ARGUMENTS = (
    *("export", "--frozen", "--offline", "--no-cache", "--no-config", "--quiet", "--color", "never"),
    *("--format", "requirements.txt", "--no-emit-project", "--no-default-groups"),
    *("--no-header", "--no-annotate", "--no-python-downloads", "--python", sys.executable),
)
_PROJECT = """\
[project]
name = "{name}"
version = "0"
[tool.uv.workspace]
members = []
"""


def exported(
    name: str, lock: bytes, store: Store, *, extras: Iterable[str] = (), groups: Iterable[str] = ()
) -> str:
    """The packages of *lock*, a uv.lock, that the project *name* needs to run, as lines with hashes.

    With *extras* and *groups*, the packages that these need are included.

    uv gets a pyproject.toml with only the name, because settings in that of the project could name other
    files. This file is the root of a workspace, so that uv reads no pyproject.toml in the folders above.

    :raises ConfigError: with uv's message, if uv cannot read the lock, the lock lacks an extra or a group, or
        these conflict.
    :raises BuildFailed: uv exceeds a limit.
    """
    chosen = [*(f"--extra={each}" for each in extras), *(f"--group={each}" for each in groups)]
    with private_folder(store) as folder:
        (folder / "pyproject.toml").write_text(_PROJECT.format(name=name))
        (folder / "uv.lock").write_bytes(lock)
        out = folder / "stdout.txt"
        with out.open("wb") as stdout:
            code, messages = run_uv((*_ARGUMENTS, *chosen), folder, "http://127.0.0.1:1", stdout=stdout)
        if code:
            text = redact_text(messages[:2000].strip())
            hint = "run: uv lock"
            if chosen:
                hint = "choose other extras and groups; or, if pyproject.toml has changed, run: uv lock"
            raise ConfigError(f"uv.lock: {text.removeprefix('error: ')}", hint=hint)
        with out.open("rb") as file:
            return file.read(_OUTPUT).decode("utf-8", "replace")
