"""Publications that are cut at a request that a seed draws: nothing wrong is seen, and the next completes.

`make test` draws some cuts; `make proof` fifty (`-m proof`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.press import Press, press
from tests.pushing import digests
from tests.reports import TAG
from torchkiln.oci.layout import ImageOnDisk

__all__ = ["each_registry"]

SEED = int(os.environ.get("TORCHKILN_TEST_SEED") or random.randrange(1 << 30))
KINDS = {
    "https://sigstore.dev/cosign/sign/v1",
    "https://slsa.dev/provenance/v1",
    "urn:torchkiln:smoke-report:2",
    "urn:torchkiln:clearance:1",
}
FIRST, SECOND = "20261121", "20261122"  # days
NAMES = {TAG, "2.7-cuda12.1-runtime", "v2.7"}
FAULTS = (
    lambda at: Fault("status", status=503, skip=at, times=100_000),
    lambda at: Fault("unanswered", skip=at, times=100_000),
    lambda at: Fault("status", status=403, skip=at, times=100_000),
    # In the midst of a request. Not for crane, which keeps what came of a manifest as the whole of it.
    lambda at: Fault("cut", skip=at, times=100_000, at=1),
)


def asked(registry: RunningRegistry, path: str) -> Any:
    """What the registry answers to who is not us."""
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"
    request = urllib.request.Request(f"http://{registry.host}/v2/{path}", headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read()


def contents(image: ImageOnDisk) -> dict[str, bytes]:
    """Of each of its blobs; the next build takes them away."""
    return {digest: path.read_bytes() for digest, path in digests(image).items()}


def seen(registry: RunningRegistry, name: str, images: dict[str, dict[str, bytes]]) -> dict[str, str]:
    """Each tag with the image that it stands for; of which all must be there, with all that goes with it."""
    found = {}
    for tag in registry.tags(name):
        data = asked(registry, f"{name}/manifests/{tag}")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert all(registry.content(name, blob) == data for blob, data in images[digest].items())
        index = json.loads(asked(registry, f"{name}/manifests/{digest.replace(':', '-')}"))
        kinds = set()
        for entry in index["manifests"]:
            manifest = json.loads(asked(registry, f"{name}/manifests/{entry['digest']}"))
            assert manifest["subject"]["digest"] == digest
            assert registry.content(name, manifest["layers"][0]["digest"])
            kinds.add(manifest["annotations"]["dev.sigstore.bundle.predicateType"])
        assert kinds >= KINDS
        found[tag] = digest
    return found


def campaign(registry: RunningRegistry, desk: Press, name: str, cuts: int) -> None:
    """Publish an image over another, *cuts* times, cut each time; then once more."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    draw = random.Random(f"{SEED} {name}")
    old = desk.build("old")
    before = contents(old)
    old_report = desk.signed(desk.report(old), "old.dsse.json")
    for run in range(cuts):
        # Docker's registry lets one blob be of many repositories: a fresh one each time sees all of the work.
        place = f"{name}-{run}"
        desk.build("old")
        done = desk.publish(f"{registry.host}/{place}", "--report", old_report, "--dated", FIRST)
        assert done.exit_code == 0, done.exception
        new = desk.build(f"new {run}")
        report = desk.signed(desk.report(new), "new.dsse.json")
        images = {old.manifest: before, new.manifest: contents(new)}
        with FaultProxy(registry.host) as proxy:
            # Of about seventy requests; where it is beyond the last, nothing is cut.
            at, kind = draw.randrange(75), draw.randrange(len(FAULTS) - isinstance(registry, RunningCrane))
            proxy.faults = [FAULTS[kind](at)]
            to = f"{proxy.host}/{place}"
            cut = desk.publish(to, "--report", report, "--dated", SECOND)
            told = f"run {run}, fault {kind} at request {at}: {cut.exception}"
            assert cut.exit_code == 0 or getattr(cut.exception, "exit_code", None) in (9, 12), told

            there = seen(registry, place, images)
            assert set(there) >= NAMES, told
            assert there[f"{TAG}-{FIRST}"] == old.manifest, told
            assert there.get(f"{TAG}-{SECOND}", new.manifest) == new.manifest, told
            if new.manifest in there.values():
                assert f"{TAG}-{SECOND}" in there, told  # the one that never moves comes first

            proxy.faults = []
            again = desk.publish(to, "--report", report, "--dated", SECOND)
            assert again.exit_code == 0, f"{told}; then {again.exception}"
        there = seen(registry, place, images)
        assert {tag: there[tag] for tag in NAMES} == dict.fromkeys(NAMES, new.manifest), told
    done = desk.run(
        "verify", f"{registry.host}/{place}:{TAG}", *desk.keys, "--suite", str(desk.suite), "--full"
    )
    assert done.exit_code == 0, done.exception


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda attempt, wait: 0.0)


def test_a_cut_publication_is_completed(registry: RunningRegistry, tmp_path: Path) -> None:
    campaign(registry, press(tmp_path / "desk"), f"cut/{tmp_path.name.lower().replace('_', '-')}", 2)


@pytest.mark.proof
def test_fifty_cut_publications_are_completed(registry: RunningRegistry, tmp_path: Path) -> None:
    campaign(registry, press(tmp_path / "desk"), f"fifty/{tmp_path.name.lower().replace('_', '-')}", 25)
