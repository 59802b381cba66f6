"""`publish` attaches decision, report and SBOM to a project's image, and `verify` reads them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.project_gate import Scene, finding, scene
from tests.project_mutants import adds, in_the_code
from tests.projects import NAME, TAG
from tests.servers.registry_server import RegistryServer
from torchkiln.projects.gate import read
from torchkiln.sbom.matches import listed

DATED = f"{NAME}-20261122"
CLEARANCE, REPORT = "urn:torchkiln:clearance:1", "urn:torchkiln:smoke-report:2"


@pytest.fixture(scope="module", name="there")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("publish"))


@pytest.fixture(name="server")
def a_server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


def attachments(server: RegistryServer, image: str) -> dict[str, list[Any]]:
    """The predicates attached to *image*, by type."""
    found: dict[str, list[Any]] = {}
    repository = server.repository("team/app")
    for data in repository.manifests.values():
        document = json.loads(data)
        if document.get("subject", {}).get("digest") == image:
            bundle = json.loads(repository.blobs[document["layers"][0]["digest"]])
            statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
            assert statement["subject"][0]["digest"]["sha256"] == image[7:]
            found.setdefault(statement["predicateType"], []).append(statement["predicate"])
    return found


def test_decision_report_and_sbom_are_attached(there: Scene, server: RegistryServer) -> None:
    code, out, messages = there.published(server, "--json")

    assert code == 0, messages
    tags = {name for name in server.repository("team/app").manifests if ":" not in name}
    assert {NAME, DATED} <= tags
    assert json.loads(out)["digest"] == there.image.manifest
    found = attachments(server, there.image.manifest)
    [decision] = found[CLEARANCE]
    below = decision["project"]["below"]
    assert (below["tag"], below["digest"]) == (TAG, there.parent.manifest)
    assert [row["signers"] != [] for row in below["reports"]] == [True]
    [report] = found[REPORT]
    assert report["project"]["parent_image"] == there.parent.manifest
    [sbom] = found["https://cyclonedx.org/bom"]
    names = {item.name for item in listed(json.dumps(sbom).encode()).items}
    assert {NAME, "torch", "fsspec"} <= names


def test_what_the_gate_refuses_is_not_pushed(there: Scene, server: RegistryServer) -> None:
    code, _, messages = there.published(server, files=(there.parent_report(),))

    assert code == 7
    assert "linkage: not run: no report contains it" in messages
    assert not server.repository("team/app").manifests


def test_names_of_other_images_are_refused(there: Scene, server: RegistryServer) -> None:
    for name in (TAG, "latest", "2.8.0-cuda12.1-cudnn9-runtime"):
        code, _, messages = there.published(server, "--tag", name)
        assert code == 2, messages
        assert f"{name} is not a name for the project's image" in messages
    assert there.published(server, "--tag", "main")[0] == 0


def test_verify_reads_what_was_published(there: Scene, server: RegistryServer) -> None:
    there.published(server)

    code, text = there.verified(server, DATED)
    full = there.verified(server, NAME, "--full")

    assert code == 0, text
    assert f"on {TAG}@{there.parent.manifest}, which passed 5 checks on 2 × NVIDIA H200; its report" in text
    assert "import, pip-check, linkage passed in the project's image" in text
    assert full[0] == 0, full[1]
    assert "CycloneDX matches the image" in full[1]


def test_verify_reads_the_parent_image_if_it_is_there(there: Scene, server: RegistryServer) -> None:
    """If the repository has the parent image, its statements are verified; if not, the output says so."""
    there.published(server)
    alone = there.verified(server)
    code, _, messages = there.published(server, ref=TAG, files=(there.parent_report(),))
    assert code == 0, messages

    beside = there.verified(server)
    full = there.verified(server, NAME, "--full")
    del server.repository("team/app").manifests[there.parent.manifest.replace(":", "-")]  # its statements
    without = there.verified(server)

    assert f"{TAG}@{there.parent.manifest} is not in this repository: its reports were not read" in alone[1]
    assert beside[0] == 0, beside[1]
    count = len(there.parent.layers)
    assert f"is verified; its layers are the lowest {count} of this image" in beside[1]
    assert full[0] == 0, full[1]
    assert f"the lowest {count} of this image, and the code does not change it; the publisher's" in full[1]
    assert without[0] == 12
    assert "below: signatures: not signed by a trusted key" in without[1]


def test_verify_full_reads_the_layers_as_the_gate_does(there: Scene, server: RegistryServer) -> None:
    """A publisher can sign a decision for an image that the gate refuses; `--full` reads the code."""
    image = in_the_code(there, adds("app/torch.py"))
    reports = (there.parent_report(), there.signed(there.report(image)))
    for ref, files in ((TAG, reports[:1]), ("mutant", reports)):
        with patch.object(read, "code_faults", lambda *_: ()):
            code, _, messages = there.published(server, ref=ref, files=files)
        assert code == 0, messages

    quick, full = there.verified(server), there.verified(server, NAME, "--full")

    assert quick[0] == 0, quick[1]
    assert full[0] == 12
    assert "below: app/torch.py: would be imported in place of torch" in full[1]


def test_verify_finds_moved_tags_and_what_is_missing(there: Scene, server: RegistryServer) -> None:
    there.published(server, "--tag", "main")
    repository = server.repository("team/app")
    repository.manifests["other"] = repository.manifests["main"]
    code, text = there.verified(server, "other")
    assert code == 12
    assert f"{NAME} was published as main, not as other: the tag was moved" in text

    code, text = there.verified(server, "main", "--rebuild")
    assert code == 12
    assert "not rebuilt: verification failed (no provenance)" in text


def test_verify_refuses_an_override(there: Scene, server: RegistryServer) -> None:
    """`verify` judges the report again, so an image that was published by --override fails."""
    findings = (finding("import"), finding("pip-check"), finding("linkage", "failed"))
    own = there.signed(there.report(there.image, findings=findings, verdict="fail"), "failed.dsse.json")
    code, _, messages = there.published(
        server, "--override", "for a trial", files=(there.parent_report(), own)
    )
    assert code == 0, messages

    code, text = there.verified(server)

    assert code == 12
    assert "published with --override: for a trial" in text
    assert "linkage: failed: it failed (report 1)" in text


def test_verify_needs_a_trusted_decision(there: Scene, server: RegistryServer, tmp_path: Path) -> None:
    """A decision that another key signed is ignored."""
    there.published(server)
    publisher = there.publisher
    lab = ("--key", f"laboratory={publisher.folder / 'lab.pub.pem'}")

    done = publisher.run("verify", f"{server.host}/team/app:{NAME}", *lab, "--suite", str(publisher.suite))

    assert getattr(done.exception, "exit_code", 0) == 12
    assert "gate: no trusted decision of the gate found" in str(done.exception)


def test_withdraw(there: Scene, server: RegistryServer) -> None:
    """`withdraw` deletes the moving tag if the registry allows it. `verify` refuses the image."""
    there.published(server)
    publisher = there.publisher
    key = ("--key", str(publisher.folder / "publisher.pem"))
    trust = ("--trust", str(publisher.folder / "publisher.pub.pem"))

    done = publisher.run("withdraw", f"{server.host}/team/app:{NAME}", "--reason", "it crashes", *key, *trust)
    code, text = there.verified(server, DATED)

    assert done.exit_code == 0 or NAME in str(done.exception), done.exception
    assert code == 12
    assert "it crashes" in text
