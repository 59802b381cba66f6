"""Distribution of thin images: gate, licence of changed libraries, SBOM, `diff` and `ls`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests import sboms
from tests.cells import planned_cell, small_wheels
from tests.oci_samples import BlobFolder, Member, files, plan, tar_of
from tests.publisher import Publisher, new_publisher
from tests.pushing import digests
from tests.reports import IMAGE, LOCKED, SUITE, TAG, gpu, host, report, signed_report
from tests.servers.registry_server import RegistryServer
from tests.thin import thin_locked
from torchkiln.errors import GateRefused, KilnError, VerificationFailed
from torchkiln.gate.gate import judge
from torchkiln.locks.lock import save
from torchkiln.matrix.policy import Policy
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_image
from torchkiln.plan.plan import IMAGE_JSON
from torchkiln.publishing.session import LABEL, demand_licence
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.cyclonedx import cyclonedx

NOWHERE = "127.0.0.1:9/team/app"  # connection refused
THIN = f"{TAG}-sm90"


# --- the gate -------------------------------------------------------------------------------------


def built(publisher: Publisher, *, thin: bool, own_use: bool = False) -> ImageOnDisk:
    """A small image of the full or the thin cell, and its lock."""
    wheels = small_wheels(publisher.folder / "wheels", salt=str(publisher.folder))
    locked = planned_cell(wheels, salt=str(publisher.folder)).locked
    locked = thin_locked(own_use=own_use, full=locked) if thin else locked
    recorded = publisher._built(locked, wheels, "gzip").layers[1:-1]
    save(publisher.folder / "images", replace(locked, layers=recorded))
    return open_layout(publisher.layout).image(f"{TAG}{'-sm90' * thin}{'-ownuse' * own_use}")


def publish(publisher: Publisher, image: ImageOnDisk, *more: str) -> KilnError:
    """The error of `publish`, which finds no registry at this address."""
    lab = ("--trust", f"laboratory={publisher.folder / 'lab.pub.pem'}", *publisher.signing)
    error = publisher.run("publish", image.ref, "--to", NOWHERE, *publisher.here, *lab, *more).exception
    assert isinstance(error, KilnError), error
    return error


def proof(publisher: Publisher, of: ImageOnDisk, **changes: Any) -> tuple[str, str]:
    """The option `--report` with a signed report of the image."""
    return "--report", publisher.signed(replace(publisher.report(of, tag=of.ref), **changes))


def test_a_report_of_the_full_image_never_clears_a_thin_one(tmp_path: Path) -> None:
    publisher = new_publisher(tmp_path / "publisher")
    full, thin = built(publisher, thin=False), built(publisher, thin=True)
    assert full.manifest != thin.manifest
    for image, other in ((thin, full), (full, thin)):
        refused = publish(publisher, image, *proof(publisher, other))
        assert isinstance(refused, GateRefused)
        assert f"is a report of another image: {other.manifest}" in refused.message
        renamed = publish(publisher, image, *proof(publisher, other, tag=image.ref))
        assert isinstance(renamed, GateRefused)
        claimed = publish(publisher, image, *proof(publisher, other, tag=image.ref, image=image.manifest))
        assert isinstance(claimed, GateRefused)
        assert "the image.json in the image differs from that of the lock" in claimed.message
        assert publish(publisher, image, *proof(publisher, image)).exit_code == 9


@pytest.mark.parametrize(
    ("gpus", "demanded"),
    [((), ["8.0", "9.0", "10.0"]), (("9.0",), ["9.0"]), (("8.0",), ["8.0"]), (("7.5",), [])],
)
def test_the_policy_demands_only_gpus_that_can_run_the_image(
    gpus: tuple[str, ...], demanded: list[str]
) -> None:
    locked = thin_locked(gpus) if gpus else LOCKED
    on = report(host=json.dumps(host(gpu("NVIDIA T4", (7, 5)))))
    found = judge([signed_report(on)], Policy(gpus=("8.0", "9.0", "10.0")), locked, SUITE, image=IMAGE)
    assert [what for what, _ in found.missing if what.startswith("GPU ")] == [
        f"GPU {one}" for one in demanded
    ]


# --- the licence ----------------------------------------------------------------------------------


def image_of(
    folder: Path,
    *,
    labels: Mapping[str, str] | None = None,
    facts: bytes | None = None,
    ref: str = "trial",
    above: bool = False,
) -> ImageOnDisk:
    """An image with *labels* and with *facts* as image.json. With *above*, another layer is on top."""
    store = BlobFolder(folder / "made")
    layers = [store.layer("base", tar_of(files(etc__motd=b"hello\n")))]
    if facts is not None:
        folders = [Member(name="etc/"), Member(name="etc/torchkiln/")]
        layers.append(store.layer("overlay", tar_of([*folders, Member(name=IMAGE_JSON, data=facts)])))
    if above:
        layers.append(store.layer("own", tar_of(files(opt__own=b"x"))))
    titles = tuple(layer.title for layer in layers)
    described = plan(ref, titles=titles, labels=tuple(sorted((labels or {}).items())))
    write_image(folder / "dist", described, layers, store.path)
    return open_layout(folder / "dist").image(ref)


VERSION = "org.opencontainers.image.version"
MARKED: dict[str, dict[str, Any]] = {
    "label": {"labels": {LABEL: "true"}},
    "image.json": {"facts": b'{"own_use": true}'},
    "image.json of an image below": {"facts": b'{"own_use": true}', "above": True},
    "the tag in the labels": {"labels": {VERSION: f"{THIN}-ownuse"}},
    "its name": {"ref": f"{THIN}-ownuse-zstd"},
    "all": {"labels": {LABEL: "true", VERSION: f"{THIN}-ownuse"}, "facts": b'{"own_use": true}'},
}
FREE: dict[str, dict[str, Any]] = {
    "not torchkiln's": {},
    "thin": {"labels": {VERSION: THIN, "torchkiln.gpus": "9.0"}, "facts": b'{"gpus": ["9.0"]}'},
    "full": {"labels": {VERSION: TAG}, "facts": b'{"schema": 2}', "above": True},
}
INVALID: dict[str, dict[str, Any]] = {
    "a label that is not true": {"labels": {LABEL: "false"}},
    "an empty label": {"labels": {LABEL: ""}},
    "own_use is text": {"facts": b'{"own_use": "no"}'},
    "not JSON": {"facts": b"{"},
    "not an object": {"facts": b"[]"},
}


@pytest.mark.parametrize("case", MARKED)
def test_an_image_for_own_use_needs_the_confirmation(tmp_path: Path, case: str) -> None:
    image = image_of(tmp_path, **MARKED[case])
    with pytest.raises(GateRefused, match="contains modified NVIDIA libraries") as refused:
        demand_licence(image, confirmed=False)
    assert (refused.value.exit_code, "--licence-confirmed" in refused.value.hint) == (7, True)
    demand_licence(image, confirmed=True)


@pytest.mark.parametrize("case", FREE)
def test_other_images_need_no_confirmation(tmp_path: Path, case: str) -> None:
    demand_licence(image_of(tmp_path, **FREE[case]), confirmed=False)


@pytest.mark.parametrize("case", INVALID)
@pytest.mark.parametrize("confirmed", [False, True])
def test_an_image_with_an_invalid_own_use_mark_is_refused(tmp_path: Path, case: str, confirmed: bool) -> None:
    with pytest.raises(VerificationFailed):
        demand_licence(image_of(tmp_path, **INVALID[case]), confirmed=confirmed)


def test_publish_refuses_it_before_the_gate(tmp_path: Path) -> None:
    publisher = new_publisher(tmp_path / "publisher")
    image = built(publisher, thin=True, own_use=True)
    for more in ((), ("--override", "tested by hand"), proof(publisher, image)):
        error = publish(publisher, image, *more)
        assert (error.exit_code, "NVIDIA's licence may not" in error.message) == (7, True)
    confirmed = publish(publisher, image, *proof(publisher, image), "--licence-confirmed")
    assert confirmed.exit_code == 9  # connection refused: there is no registry
    assert publish(publisher, image, "--licence-confirmed").exit_code == 7  # the gate
    without = built(publisher, thin=True)
    assert publish(publisher, without, *proof(publisher, without)).exit_code == 9


def test_push_refuses_it_before_any_request(tmp_path: Path) -> None:
    publisher = new_publisher(tmp_path / "publisher")
    image_of(publisher.folder, **MARKED["image.json"])
    with RegistryServer() as server:
        words = ("push", "trial", "--to", f"{server.host}/team/app", "--output", str(publisher.layout))
        error = publisher.run(*words).exception
        assert isinstance(error, GateRefused)
        assert not server.repositories
        done = publisher.run(*words, "--licence-confirmed")
        assert done.exit_code == 0, done.output
        repository = server.repositories["team/app"]
    image = open_layout(publisher.layout).image("trial")
    assert {*digests(image)} <= {*repository.blobs, *repository.manifests}


def test_of_several_images_the_others_are_pushed(tmp_path: Path) -> None:
    publisher = new_publisher(tmp_path / "publisher")
    image_of(publisher.folder, **MARKED["label"], ref="changed")
    image_of(publisher.folder, ref="free")
    with RegistryServer() as server:
        words = ("push", "changed", "free", "--to", f"{server.host}/team/app")
        done = publisher.run(*words, "--output", str(publisher.layout))
        assert getattr(done.exception, "exit_code", None) == 7
        assert re.search("changed: .*modified NVIDIA libraries", done.stderr)
        assert [*server.repositories["team/app"].tags] == ["unproven-free"]


# --- SBOM -----------------------------------------------------------------------------------------


def bill(*, own_use: bool = False) -> Bill:
    full = sboms.locked()
    thin = thin_locked(own_use=own_use, full=full)
    return bill_of(thin, sboms.IMAGE, sboms.evidence(), files=None, name="pytorch-cuda", tool="0.1.0")


CUT = "modified: in its libraries, device code that GPUs of capability 9.0 do not load is replaced by zeros"


@pytest.mark.parametrize("own_use", [False, True])
def test_modified_wheels_are_marked_by_their_pedigree(own_use: bool) -> None:
    text = cyclonedx(bill(own_use=own_use)).decode()
    marked = {item["name"]: item for item in json.loads(text)["components"] if "pedigree" in item}
    assert {"torch", "torchvision"} <= {*marked}
    assert own_use or len(marked) == 2
    assert all(part["pedigree"]["notes"].startswith(CUT) for part in marked.values())
    assert ("nvidia-cudnn-cu12" in marked) is own_use
    assert "numpy" not in marked
    torch = marked["torch"]
    (ancestor,) = torch["pedigree"]["ancestors"]
    assert (ancestor["purl"], ancestor["hashes"]) == (torch["purl"], torch["hashes"])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_a_full_image_has_no_modified_part_and_another_serial_number() -> None:
    full = bill_of(
        sboms.locked(), sboms.IMAGE, sboms.evidence(), files=None, name="pytorch-cuda", tool="0.1.0"
    )
    assert b"pedigree" not in cyclonedx(full)
    serials = {one.serial() for one in (full, bill(), bill(own_use=True))}
    assert len(serials) == 3
