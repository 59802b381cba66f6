"""The environment of SSH sessions, from the container's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Each session sets its own, or they are credentials of a service.
_NOT_SHARED = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME"),
        *("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE", "JUPYTER_PASSWORD", "SSH_PUBLIC_KEY", "PUBLIC_KEY"),
    }
)
# Debian's sshd_config accepts LC_* of clients. The image does not have their locales: programs warn or fail.
# A SetEnv is stronger; libc treats an empty value as none.
_OF_CLIENTS = (
    *("LANG", "LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT"),
    *("LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME"),
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def shared(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of every session, and the names of those that sshd_config cannot hold (line breaks)."""
    variables = {
        name: value
        for name, value in sorted(environ.items())
        if name not in _NOT_SHARED and _NAME.fullmatch(name)
    }
    broken = tuple(name for name, value in variables.items() if "\n" in value or "\r" in value)
    return {name: value for name, value in variables.items() if name not in broken}, broken


def without_clients_locale(variables: Mapping[str, str]) -> dict[str, str]:
    """*variables*, and an empty value for each category of locales that they do not set."""
    return dict.fromkeys(_OF_CLIENTS, "") | dict(variables)


def set_env(variables: Mapping[str, str]) -> str:
    """One SetEnv line of sshd_config(5) for all *variables*, because sshd reads only the first; or empty."""
    words = (re.sub(r'(["\\])', r"\\\1", f"{name}={value}") for name, value in variables.items())
    line = " ".join(f'"{word}"' for word in words)
    return f"SetEnv {line}\n" if line else ""
