"""Docker Compose 2: the plugin that the user has installed, or that of Debian 13 (16 MB to download)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.engine.root import home, made, runnable

_SUITE = "trixie"  # Compose 2.26; Debian 12 has 1.29, which knows neither `gpus` nor `!reset`
_PLUGIN = "usr/libexec/docker/cli-plugins/docker-compose"


def with_compose(engine: Mapping[str, str], folder: Path) -> Mapping[str, str]:
    """The environment in which `docker compose` reaches *engine*; the plugin is put into *folder* if needed.

    :raises NoEngine: this user or this machine cannot get the plugin.
    """
    argv = ["docker", "compose", "version"]
    if subprocess.run(argv, env=dict(engine), capture_output=True, check=False).returncode == 0:
        return engine
    old = Path(engine.get("DOCKER_CONFIG") or Path.home() / ".docker")
    plugins = folder / "cli-plugins"
    plugins.mkdir(parents=True)
    for place, target in ((old, folder), (old / "cli-plugins", plugins)):
        for path in place.glob("*") if place.is_dir() else ():
            if path.name not in ("cli-plugins", "docker-compose"):
                (target / path.name).symlink_to(path)
    root = made(home() / "compose", _SUITE, ["docker-compose"], "--variant=extract")
    runnable(root, _PLUGIN, plugins / "docker-compose")
    return {**engine, "DOCKER_CONFIG": str(folder)}
