"""From wheels on the network to an image in a registry: ours against `docker buildx build` and `push`."""

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
from bench.results import Figure, Outcome, Sample, per_round
from bench.sides import Say, Way, alternate, remove
from bench.subject import DOOR, Subject
from tests.engine.fixture import reach
from tests.engine.registry import docker_registry
from torchkiln.index.settings import index_settings
from torchkiln.nouns import Source
from torchkiln.tags import tag_of

_BASE = "torchkiln-bench-base:1"
# What people write: pip by its index, in one step. Index and CA come as secrets, as in a private network.
_PLAIN = """\
FROM {base}
COPY requirements.txt /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \\
    rm -rf /opt/venv && python3 -m venv /opt/venv \\
    && /opt/venv/bin/pip install --no-cache-dir -r /requirements.txt
"""


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """A Docker engine for all runs, which builds for one registry after the other."""

    subject: Subject
    environ: Mapping[str, str]

    def ours(self, *, bytecode: bool) -> Sample:
        """`build --ahead`, then `publish`."""
        subject, tag = self.subject, tag_of(self.subject.locked.resolution)
        cache, layout = subject.cache("ours", wheels=False, bytecode=bytecode), subject.scratch / "layout"
        with self._registry() as repository:
            build = [*subject.command(), "--output", str(layout), "--ahead", repository]
            publish = [*DOOR, "publish", tag, "--output", str(layout), "--to", repository, "--quiet"]
            publish += ["--override", "a benchmark"]
            try:
                return self._timed([build, publish], {"TORCHKILN_CACHE": str(cache)})
            finally:
                remove(cache, layout)

    def on_docker(self) -> Sample:
        """`build --engine docker`, then `docker push`."""
        subject = self.subject
        tag, cache = tag_of(subject.locked.resolution), subject.cache("ours", wheels=False)
        with self._registry() as repository:
            build = [*subject.command(), "--engine", "docker"]
            push = ["docker", "push", "--quiet", f"{repository}:{tag}"]
            name = f"pytorch-cuda:{tag}"
            try:
                return self._timed(
                    [build, ["docker", "tag", name, f"{repository}:{tag}"], push],
                    {"TORCHKILN_CACHE": str(cache)},
                )
            finally:
                remove(cache)
                self._forget(name, f"{repository}:{tag}")

    def plain(self, requirements: str) -> Sample:
        """A Dockerfile with `pip install -r` of *requirements*, then `docker push`."""
        with self._registry() as repository, tempfile.TemporaryDirectory(dir=self.subject.scratch) as folder:
            self._lay(Path(folder), requirements)
            name = f"{repository}:plain"
            secrets = [word for id in ("pip", "ca") for word in ("--secret", f"id={id},src={folder}/{id}")]
            build = ["docker", "buildx", "build", "--quiet", "--load", "--network", "host", "--tag", name]
            try:
                return self._timed([[*build, *secrets, folder], ["docker", "push", "--quiet", name]], {})
            finally:
                self._forget(name)

    def import_base(self) -> None:
        """Our base, under a name that a Dockerfile can start from."""
        blob = self.subject.store.blob(self.subject.locked.base.digest)
        self._docker("import", str(blob), _BASE)

    def _lay(self, folder: Path, requirements: str) -> None:
        settings = index_settings(self.subject.environ)
        lines = [
            "[global]",
            f"index-url = {settings.url(Source.DEFAULT)}",
            "disable-pip-version-check = true",
        ]
        lines += ["cert = /run/secrets/ca"] if settings.ca_bundle else []
        (folder / "pip").write_text("\n".join(lines) + "\n")
        bundle = Path(settings.ca_bundle or os.devnull)
        (folder / "ca").write_bytes(bundle.read_bytes() if bundle.is_file() else b"")
        (folder / "requirements.txt").write_text(requirements)
        (folder / "Dockerfile").write_text(_PLAIN.format(base=_BASE))

    def _timed(self, commands: Sequence[Sequence[str]], more: Mapping[str, str]) -> Sample:
        """One after the other; what an engine or registry does for them counts on the clock alone."""
        environ = {**self.subject.environ, **self.environ, **more}
        samples = [measure(argv, env=environ, cwd=self.subject.scratch)[0] for argv in commands]
        found = samples[0]
        for sample in samples[1:]:
            found += sample
        return replace(found, stages=())

    @contextmanager
    def _registry(self) -> Iterator[str]:
        """A repository in an empty registry, gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="registry-", dir=self.subject.scratch))
        os.sync()
        try:
            with docker_registry(folder / "its") as running:
                yield f"{running.host}/team/pytorch"
        finally:
            shutil.rmtree(folder)

    def _forget(self, *names: str) -> None:
        self._docker("image", "rm", "--force", *names)
        self._docker("builder", "prune", "--all", "--force")

    def _docker(self, *arguments: str) -> None:
        subprocess.run(["docker", *arguments], env=dict(self.environ), stdout=subprocess.DEVNULL, check=True)


def published(subject: Subject, rounds: int, say: Say) -> Outcome:
    """From nothing but the base to an image in a registry of this machine."""
    harbour = Harbour(subject=subject, environ=reach(os.getpid()))
    harbour.import_base()
    locked = (subject.images / tag_of(subject.locked.resolution) / "requirements.txt").read_text()
    (torch,) = (wheel.version for wheel in subject.locked.wheels if wheel.name == "torch")
    plain, alone = "docker build, the same requirements", "docker build, torch alone"
    kept, made, by_docker = "ours, .pyc cached", "ours, .pyc made", "ours, --engine docker"
    ways = (
        Way(name=kept, what="`build --ahead`, then `publish`", run=lambda: harbour.ours(bytecode=True)),
        Way(
            name=plain, what="`pip install -r` in one step, `docker push`", run=lambda: harbour.plain(locked)
        ),
        Way(
            name=made,
            what="the same; the base's Python compiles",
            run=lambda: harbour.ours(bytecode=False),
        ),
        Way(
            name=alone,
            what=f"`pip install torch=={torch}`, `docker push`",
            run=lambda: harbour.plain(f"torch=={torch}\n"),
        ),
        Way(
            name=by_docker,
            what="our Dockerfile, a step for each big wheel, `docker push`",
            run=harbour.on_docker,
        ),
    )
    found = alternate(ways, rounds, say)
    figures = [
        Figure(
            what=f"{name} / {rival}",
            unit="×",
            values=per_round(found[name].samples, found[rival].samples),
            target=0.15 if (name, rival) == (made, plain) else None,
        )
        for name, rival in ((made, plain), (kept, plain), (made, alone), (by_docker, plain))
    ]
    return Outcome(
        name="published",
        title="From wheels not cached to an image in a registry",
        state=(
            "the base there (in our cache, in the engine), no wheel, no page of the index, no layer; a fresh"
            " registry on this machine for each run; times are of build and push together"
        ),
        sides=tuple(found.values()),
        figures=tuple(figures),
        notes=(
            "Core-seconds and memory are the clients' alone: engine and registry are processes of their own.",
            "The plain Dockerfile's pip makes .pyc files, as it does by default. Everything is fetched by it"
            " while it builds; engine docker of ours fetches first, then builds without a network.",
        ),
    )
