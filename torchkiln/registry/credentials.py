"""Finds the user's login for a registry in Docker's or podman's configuration.

No secret appears in an error, a repr or the arguments of a program.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.errors import ConfigError, RegistryError, ToolMissing
from torchkiln.registry.reference import DOCKER_HUB, Repository
from torchkiln.util.strict_json import json_of, read_file

_LIMIT = 4 << 20
_TIMEOUT = 60.0  # seconds for a helper, which may ask its user for a passphrase
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ABSENT = "credentials not found"  # the message of every helper for an unknown registry
_LOG_IN = "correct this configuration file of Docker or Podman, or log in again: docker login"
_HUB_KEY = (
    "https" + "://index.docker.io/v1/"
)  # the key under which `docker login` stores the credentials of Docker Hub


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A user with a password, or an identity token instead."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not be shown."""
        return tuple(filter(None, (self.password, self.identity_token)))


def find_login(
    repository: Repository, environ: Mapping[str, str], *, patience: float = _TIMEOUT
) -> Login | None:
    """The user's login for *repository*, or None.

    Files are read in this order: $REGISTRY_AUTH_FILE, Docker's config.json, podman's session auth.json.

    :raises ConfigError: one of these files is malformed.
    :raises ToolMissing: the credential helper in one of them is not installed.
    :raises RegistryError: the helper failed, or took longer than *patience* seconds.
    """
    for path in _files(environ):
        config = _read(path)
        if config is not None and (login := _of_config(config, path, repository, environ, patience)):
            return login
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    if chosen := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(chosen)
    home = environ.get("HOME")
    folder = (
        Path(environ["DOCKER_CONFIG"])
        if environ.get("DOCKER_CONFIG")
        else Path(home or Path.home(), ".docker")
    )
    yield folder / "config.json"
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "containers", "auth.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json_of(read_file(path, _LIMIT))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint=_LOG_IN) from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: not a JSON object", hint=_LOG_IN)
    return found


def _of_config(
    config: Mapping[str, Any], path: Path, repository: Repository, environ: Mapping[str, str], patience: float
) -> Login | None:
    keys = tuple(_keys(repository))
    helpers = _mapping(config, "credHelpers", path)
    helper = next((helpers[key] for key in keys if key in helpers), None) or config.get("credsStore")
    if helper:
        login = _from_helper(helper, path, keys[-1], environ, patience)
        if login:
            return login
    entries = {_normal(key): value for key, value in _mapping(config, "auths", path).items()}
    for key in keys:
        if isinstance(entry := entries.get(_normal(key)), dict) and (login := _of_entry(entry, path, key)):
            return login
    return None


def _keys(repository: Repository) -> Iterator[str]:
    """The keys of *repository* in a configuration, the most specific first."""
    parts = [repository.host, *repository.name.split("/")]
    for count in range(len(parts), 0, -1):
        yield "/".join(parts[:count])
    if repository.host == DOCKER_HUB:
        yield _HUB_KEY


def _normal(key: str) -> str:
    """*key* as Docker compares it, without the scheme and the /v1/ or /v2/ that older versions wrote."""
    return re.sub(r"^https?://|/(?:v[12]/?)?$", "", re.sub(r"/v[12]/?$", "", key))


def _mapping(config: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {name} is not an object", hint=_LOG_IN)
    return found


def _of_entry(entry: Mapping[str, Any], path: Path, key: str) -> Login | None:
    """The login in an entry of `auths`; an empty entry means that a helper has the login."""
    user, password = entry.get("username") or "", entry.get("password") or ""
    if packed := entry.get("auth"):
        try:
            user, colon, password = base64.b64decode(str(packed), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            colon = ""
        if not colon:
            raise ConfigError(
                f"{path}: the `auth` of {key} is not base64 of user:password", hint=f"docker login {key}"
            )
    token = entry.get("identitytoken") or ""
    if not all(isinstance(value, str) for value in (user, password, token)):
        raise ConfigError(f"{path}: the entry of {key} is malformed", hint=f"docker login {key}")
    if not (user or token):
        return None
    return Login(user=user, password=password.rstrip("\0"), identity_token=token)


def _from_helper(
    helper: object, path: Path, key: str, environ: Mapping[str, str], patience: float
) -> Login | None:
    """The login that `docker-credential-HELPER get` prints for *key*."""
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise ConfigError(f"{path}: invalid name of a credential helper")
    program = f"docker-credential-{helper}"
    hint = f"test it: echo {key} | {program} get"
    try:
        done = subprocess.run(
            [program, "get"],
            input=key.encode(),
            env=dict(environ),
            capture_output=True,
            timeout=patience,
            check=False,
        )
    except FileNotFoundError:
        raise ToolMissing(
            f"{program}: executable file not found in PATH; {path} configures it",
            hint=f"install it, or remove it from {path}",
        ) from None
    except subprocess.TimeoutExpired:
        raise RegistryError(f"{program} timed out after {patience:g} seconds", hint=hint) from None
    except OSError as error:
        raise ToolMissing(f"{program}: {error.strerror}") from None
    if done.returncode:
        if _ABSENT in (done.stdout + done.stderr).decode(errors="replace"):
            return None
        raise RegistryError(f"{program} failed with exit code {done.returncode}", hint=hint)
    try:
        output = json_of(done.stdout)
        user, secret = output["Username"], output["Secret"]
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"{program}: invalid output", hint=hint) from None
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    return Login(identity_token=secret) if user == "<token>" else Login(user=user, password=secret)
