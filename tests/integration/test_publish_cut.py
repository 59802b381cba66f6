"""Publications interrupted at a random request: readers see no invalid state, and the next run completes.

`make test` interrupts one publication per registry, `NIGHTLY=yes make proof` 25 more.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path

import pytest

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.integration.test_publish import KINDS, read
from tests.needs import nightly
from tests.publisher import Publisher, new_publisher
from tests.pushing import digests
from tests.reports import TAG
from torchkiln.oci.layout import ImageOnDisk

__all__ = ["each_registry"]

SEED = int(os.environ.get("TORCHKILN_TEST_SEED") or random.randrange(1 << 30))
FIRST, SECOND = "20261121", "20261122"  # days
NAMES = {TAG, "2.7-cuda12.1-runtime", "v2.7"}
FAULTS = (
    lambda at: Fault("status", status=503, skip=at, times=100_000),
    lambda at: Fault("unanswered", skip=at, times=100_000),
    lambda at: Fault("status", status=403, skip=at, times=100_000),
    # Faults that end a request in its body. Not for crane, which stores a truncated manifest as complete.
    lambda at: Fault("cut", skip=at, times=100_000, at=1),
)


def contents(image: ImageOnDisk) -> dict[str, bytes]:
    """The content of each blob, read into memory, because the next build deletes the files."""
    return {digest: path.read_bytes() for digest, path in digests(image).items()}


def tags_of(registry: RunningRegistry, name: str, images: dict[str, dict[str, bytes]]) -> dict[str, str]:
    """The image of each tag; asserts that the image and its attachments are complete."""
    found = {}
    for tag in registry.tags(name):
        data = read(registry, f"{name}/manifests/{tag}")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert all(registry.content(name, blob) == data for blob, data in images[digest].items())
        index = json.loads(read(registry, f"{name}/manifests/{digest.replace(':', '-')}"))
        kinds = set()
        for entry in index["manifests"]:
            manifest = json.loads(read(registry, f"{name}/manifests/{entry['digest']}"))
            assert manifest["subject"]["digest"] == digest
            assert registry.content(name, manifest["layers"][0]["digest"])
            kinds.add(manifest["annotations"]["dev.sigstore.bundle.predicateType"])
        assert kinds >= KINDS
        found[tag] = digest
    return found


def campaign(registry: RunningRegistry, publisher: Publisher, name: str, cuts: int) -> None:
    """Replace a published image *cuts* times, each time interrupted and then completed."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    draw = random.Random(f"{SEED} {name}")
    old = publisher.build("old")
    before = contents(old)
    old_report = publisher.signed(publisher.report(old), "old.dsse.json")
    for run in range(cuts):
        # Docker's registry shares blobs between repositories; a new image each time makes every run push all.
        place = f"{name}-{run}"
        publisher.build("old")
        done = publisher.publish(f"{registry.host}/{place}", "--report", old_report, "--dated", FIRST)
        assert done.exit_code == 0, done.exception
        new = publisher.build(f"new {run}")
        report = publisher.signed(publisher.report(new), "new.dsse.json")
        images = {old.manifest: before, new.manifest: contents(new)}
        with FaultProxy(registry.host) as proxy:
            # A publication has about 70 requests; a higher number interrupts nothing.
            at, kind = draw.randrange(75), draw.randrange(len(FAULTS) - isinstance(registry, RunningCrane))
            proxy.faults = [FAULTS[kind](at)]
            to = f"{proxy.host}/{place}"
            cut = publisher.publish(to, "--report", report, "--dated", SECOND)
            context = f"run {run}, fault {kind} at request {at}: {cut.exception}"
            assert cut.exit_code == 0 or getattr(cut.exception, "exit_code", None) in (9, 12), context

            there = tags_of(registry, place, images)
            assert set(there) >= NAMES, context
            assert there[f"{TAG}-{FIRST}"] == old.manifest, context
            assert there.get(f"{TAG}-{SECOND}", new.manifest) == new.manifest, context
            if new.manifest in there.values():
                assert f"{TAG}-{SECOND}" in there, context  # the immutable tag comes first

            proxy.faults = []
            again = publisher.publish(to, "--report", report, "--dated", SECOND)
            assert again.exit_code == 0, f"{context}; then {again.exception}"
        there = tags_of(registry, place, images)
        assert {tag: there[tag] for tag in NAMES} == dict.fromkeys(NAMES, new.manifest), context
    done = publisher.run(
        "verify", f"{registry.host}/{place}:{TAG}", *publisher.keys, "--suite", str(publisher.suite), "--full"
    )
    assert done.exit_code == 0, done.exception


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without waiting."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda attempt, wait: 0.0)


def test_an_interrupted_publication_is_completed(registry: RunningRegistry, tmp_path: Path) -> None:
    campaign(
        registry, new_publisher(tmp_path / "publisher"), f"cut/{tmp_path.name.lower().replace('_', '-')}", 1
    )


@pytest.mark.proof
@nightly
def test_fifty_interrupted_publications_are_completed(registry: RunningRegistry, tmp_path: Path) -> None:
    campaign(
        registry,
        new_publisher(tmp_path / "publisher"),
        f"fifty/{tmp_path.name.lower().replace('_', '-')}",
        25,
    )
