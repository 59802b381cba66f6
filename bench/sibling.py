"""Benchmark publishing an image whose layers the registry already has, against skopeo; and `verify`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.meters import measure
from bench.results import Figure, Outcome, Sample, per_round
from bench.sides import Contender, Say, alternate
from bench.subject import KILN, Subject
from tests.engine.registry import RunningRegistry, docker_registry
from tests.keys import pem, public_pem
from torchkiln.matrix.tags import tag_of

_OURS, _SKOPEO, _VERIFY = "ours, publish", "skopeo copy", "ours, verify"
_FIRST = "team/pytorch"  # the repository that has the layers at the start


@dataclass
class PublishScene:
    """A registry and a layout with the image, and an empty repository for each run."""

    subject: Subject
    registry: RunningRegistry
    folder: Path
    cache: Path
    count: int = field(default=0)

    @property
    def tag(self) -> str:
        return tag_of(self.subject.locked.resolution)

    def fresh(self) -> str:
        """A new, empty repository."""
        self.count += 1
        return f"{self.registry.host}/team/sibling-{self.count}"

    def publish(self, repository: str) -> Sample:
        """Publish with signed SBOMs, provenance and gate decision; --override, because there are no
        reports."""
        argv = [*KILN, "publish", self.tag, "--output", str(self.folder / "layout"), "--to", repository]
        argv += ["--images", str(self.subject.images)]
        argv += ["--key", str(self.folder / "key.pem"), "--override", "a benchmark", "--quiet"]
        return self._measured(argv)

    def skopeo(self, repository: str) -> Sample:
        """Copy the image with skopeo, without attachments."""
        source, target = f"oci:{self.folder}/layout:{self.tag}", f"docker://{repository}:{self.tag}"
        return self._measured(
            ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", source, target]
        )

    def verify(self) -> Sample:
        """Verify without layers, with an empty cache. The exit code is 12 after all checks, because there are
        no reports."""
        reference = f"{self.registry.host}/{_FIRST}:{self.tag}"
        words = [*KILN, "verify", reference, "--key", f"any={self.folder / 'pub.pem'}", "--quiet"]
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            script = 'TORCHKILN_CACHE="$0" "$@"; test $? = 12'
            return self._measured(["sh", "-c", script, cache, *words])

    def _measured(self, argv: list[str]) -> Sample:
        environ: Mapping[str, str] = {**self.subject.environ, "TORCHKILN_CACHE": str(self.cache)}
        return measure(argv, env=environ, cwd=self.subject.scratch)[0]

    def build(self) -> Sample:
        """Build the image into the layout."""
        return self._measured([*self.subject.command(), "--output", str(self.folder / "layout")])


def sibling(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure `publish`, skopeo and `verify`; another repository of the registry has all layers."""
    with _scene(subject) as scene:
        contenders = (
            Contender(
                name=_OURS,
                what="`publish`: layers mounted; SBOMs, provenance, decision, tags",
                run=lambda: scene.publish(scene.fresh()),
            ),
            Contender(
                name=_SKOPEO,
                what="the image alone; skopeo uses its own cache of blob locations",
                run=lambda: scene.skopeo(scene.fresh()),
            ),
            Contender(
                name=_VERIFY, what="`verify` of the first repository's tag, an empty cache", run=scene.verify
            ),
        )
        found = alternate(contenders, rounds, say)
    return Outcome(
        name="sibling",
        title="An image whose layers the registry has: published in another repository, and verified",
        state="the image in a layout and, by `publish`, in another repository of a registry on this machine",
        sides=tuple(found.values()),
        figures=(
            Figure(
                what=f"sibling: {_OURS} / {_SKOPEO}",
                unit="×",
                values=per_round(found[_OURS].samples, found[_SKOPEO].samples),
            ),
            *(
                Figure(
                    what=f"sibling: {name}",
                    unit="s",
                    values=tuple(sample.wall for sample in found[name].samples),
                    target=2.0,
                )
                for name in (_OURS, _VERIFY)
            ),
        ),
        notes=("The layers' package lists were read when the image was first published.",),
    )


@contextmanager
def _scene(subject: Subject) -> Iterator[PublishScene]:
    folder = Path(tempfile.mkdtemp(prefix="sibling-", dir=subject.scratch))
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(pem(key))
    (folder / "key.pem").chmod(0o600)
    (folder / "pub.pem").write_bytes(public_pem(key))
    try:
        with docker_registry(folder / "its") as registry:
            cache = subject.cache("sibling", wheels=True, bytecode=True)
            scene = PublishScene(subject=subject, registry=registry, folder=folder, cache=cache)
            scene.build()
            scene.publish(f"{registry.host}/{_FIRST}")
            os.sync()
            yield scene
    finally:
        shutil.rmtree(folder)
