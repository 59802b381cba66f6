"""Build images from an index, push them to a registry, and pull them into a second Docker engine.

All contenders of a run share two Docker engines; each has an empty registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.meters import measure
from bench.results import Sample
from bench.sides import remove
from bench.subject import KILN, Subject
from tests.engine.fixture import reach
from tests.engine.registry import RunningRegistry, docker_registry
from torchkiln.base.mmdebstrap import command
from torchkiln.base.recipe import recipe
from torchkiln.docker.build_locked import apt_secrets
from torchkiln.index.settings import index_settings
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Source

OUR_BASE, BARE = "torchkiln-bench-base:1", "torchkiln-bench-bare:1"
# A usual Dockerfile: pip in one step. Index, mirror and CA are build secrets, as in a private network.
_PIP = """\
COPY requirements.txt /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \\
    rm -rf /opt/venv && python3 -m venv /opt/venv \\
    && /opt/venv/bin/pip install --no-cache-dir -r /requirements.txt
"""
_APT = """\
RUN --mount=type=secret,id=apt-config --mount=type=secret,id=apt-sources \\
    --mount=type=secret,id=apt-ca,mode=0444 \\
    export APT_CONFIG=/run/secrets/apt-config DEBIAN_FRONTEND=noninteractive && apt-get update \\
    && apt-get install --yes --no-install-recommends {packages} && rm -rf /var/lib/apt/lists/*
"""


@dataclass(frozen=True, kw_only=True)
class EnginePair:
    """Two Docker engines: *engine* builds and pushes, *other* pulls."""

    subject: Subject
    engine: Mapping[str, str]
    other: Mapping[str, str]

    @property
    def tag(self) -> str:
        return tag_of(self.subject.locked.resolution)

    def ours(self, *, bytecode: bool, base: bool = True, pull: bool = True) -> Sample:
        """`build --ahead`, then `publish`. *pull* is not needed if another contender has pulled the same
        bytes."""
        cache = self.subject.cache("ours", wheels=False, bytecode=bytecode, base=base)
        layout = self.subject.scratch / "layout"
        with self._registry() as registry:
            repository = f"{registry.host}/team/pytorch"
            build = [*self.subject.command(), "--output", str(layout), "--ahead", repository]
            publish = [*KILN, "publish", self.tag, "--output", str(layout), "--to", repository, "--quiet"]
            publish += ["--images", str(self.subject.images), "--tag", self.tag, "--override", "a benchmark"]
            try:
                environ = {"TORCHKILN_CACHE": str(cache)}
                return self._sample(registry, self.tag, [build, publish], environ, pull=pull)
            finally:
                remove(cache, layout)

    def on_docker(self) -> Sample:
        """`build --engine docker`, then `docker push`."""
        cache, name = self.subject.cache("ours", wheels=False), f"pytorch-cuda:{self.tag}"
        with self._registry() as registry:
            pushed = f"{registry.host}/team/pytorch:{self.tag}"
            build = [*self.subject.command(), "--engine", "docker"]
            push = ["sh", "-c", 'docker tag "$1" "$2" && docker push --quiet "$2"', "sh", name, pushed]
            try:
                return self._sample(registry, self.tag, [build, push], {"TORCHKILN_CACHE": str(cache)})
            finally:
                remove(cache)
                self._forget(name, pushed)

    def plain(self, requirements: str, *, bare: bool = False) -> Sample:
        """A Dockerfile with `pip install -r` of *requirements*, then `docker push`.

        :param bare: start from a bare Debian, on which apt installs the packages of torchkiln's base.
        """
        with self._registry() as registry, tempfile.TemporaryDirectory(dir=self.subject.scratch) as folder:
            secrets = self._lay(Path(folder), requirements, bare)
            name = f"{registry.host}/team/pytorch:plain"
            build = ["docker", "buildx", "build", "--quiet", "--load", "--network", "host", "--tag", name]
            build += [word for id in secrets for word in ("--secret", f"id={id},src={folder}/{id}")]
            try:
                return self._sample(
                    registry, "plain", [[*build, folder], ["docker", "push", "--quiet", name]], {}
                )
            finally:
                self._forget(name)

    def import_bases(self) -> None:
        """Import torchkiln's base and a bare Debian into the engine, for FROM lines."""
        blob = self.subject.store.blob(self.subject.locked.base.digest)
        self._docker("import", str(blob), OUR_BASE)
        of = recipe(self.subject.locked.base.os)
        argv = command(
            replace(of, packages=("ca-certificates",), hooks=()), os.environ, unprivileged=os.geteuid() != 0
        )
        with tempfile.NamedTemporaryFile(dir=self.subject.scratch, suffix=".tar") as tar:
            subprocess.run(argv, stdout=tar, stderr=subprocess.DEVNULL, check=True)
            self._docker("import", tar.name, BARE)

    def _lay(self, folder: Path, requirements: str, bare: bool) -> tuple[str, ...]:
        """Write the Dockerfile and its files; returns the names of its secrets."""
        of, bundle = recipe(self.subject.locked.base.os), index_settings(self.subject.environ).ca_bundle
        of_apt = apt_secrets(of, os.environ, Path(bundle) if bundle else None) if bare else {}
        secrets = pip_secrets(self.subject) | of_apt
        for name, content in secrets.items():
            (folder / name).write_bytes(content)
        (folder / "requirements.txt").write_text(requirements)
        apt = _APT.format(packages=" ".join(of.packages)) if bare else ""
        (folder / "Dockerfile").write_text(f"FROM {BARE if bare else OUR_BASE}\n{apt}{_PIP}")
        return tuple(secrets)

    def _sample(
        self,
        registry: RunningRegistry,
        tag: str,
        commands: Sequence[Sequence[str]],
        more: Mapping[str, str],
        *,
        pull: bool = True,
    ) -> Sample:
        """Build and push with *commands*, then pull with the other engine; the sum does not include the pull.

        Core-seconds are those of the commands, without engine and registry; bytes are the registry's
        contents.
        """
        environ = {**self.subject.environ, **self.engine, **more}
        build, push = (measure(argv, env=environ, cwd=self.subject.scratch)[0] for argv in commands)
        blobs = (registry.folder / "data/docker/registry/v2/blobs").rglob("data")
        size = sum(path.stat().st_size for path in blobs)
        legs = [("build", build.wall), ("push", push.wall)]
        if pull:
            legs.append(("pull", self._pulled(f"{registry.host}/team/pytorch:{tag}")))
        return replace(build + push, stages=(), legs=tuple(legs), bytes=size)

    def _pulled(self, name: str) -> float:
        """The seconds of the other engine's pull."""
        argv = ["docker", "pull", "--quiet", name]
        try:
            return measure(argv, env=dict(self.other), cwd=self.subject.scratch)[0].wall
        finally:
            self._docker("image", "rm", "--force", name, environ=self.other)

    @contextmanager
    def _registry(self) -> Iterator[RunningRegistry]:
        """An empty registry, deleted afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="registry-", dir=self.subject.scratch))
        os.sync()
        try:
            with docker_registry(folder / "its") as running:
                yield running
        finally:
            shutil.rmtree(folder)

    def _forget(self, *names: str) -> None:
        self._docker("image", "rm", "--force", *names)
        self._docker("builder", "prune", "--all", "--force")

    def _docker(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        subprocess.run(
            ["docker", *arguments], env=dict(environ or self.engine), stdout=subprocess.DEVNULL, check=True
        )


def pip_secrets(subject: Subject) -> dict[str, bytes]:
    """The user's index and CA as secrets of a Dockerfile: `pip` for /etc/pip.conf, and `ca`."""
    settings = index_settings(subject.environ)
    lines = ["[global]", f"index-url = {settings.url(Source.DEFAULT)}", "disable-pip-version-check = true"]
    lines += ["cert = /run/secrets/ca"] if settings.ca_bundle else []
    return {
        "pip": "".join(f"{line}\n" for line in lines).encode(),
        "ca": Path(settings.ca_bundle).read_bytes() if settings.ca_bundle else b"",
    }


def engine_pair(subject: Subject) -> EnginePair:
    """Two Docker engines that end with this process.

    :raises NoEngine: this machine cannot run one.
    """
    found = EnginePair(subject=subject, engine=reach(os.getpid()), other=reach(os.getpid(), "second"))
    found.import_bases()
    return found
