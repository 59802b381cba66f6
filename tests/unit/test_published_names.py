"""The tags of an image: `verify` detects moved tags, and `publish --tag` refuses reserved names."""

from __future__ import annotations

import json

import pytest

from tests.keys import P256, UNKNOWN_KEY
from tests.published import Scene, a_built_publisher, a_scene_with_referrers, a_server
from tests.reports import TAG
from torchkiln.attest.signers import ByKey
from torchkiln.attest.statement import PUBLICATION, publication
from torchkiln.errors import ConfigError
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.tags import misfit
from torchkiln.publishing.names import names_of
from torchkiln.util.places import ROOT

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server"]

DATED = f"{TAG}-20261122"
ALIAS = "2.7-cuda12.1-runtime"
MATRIX = matrix.read(ROOT / "matrix.yaml", facts.load())


def verify_name(scene: Scene, tag: str, *more: str) -> tuple[int, str]:
    """The exit code of `verify` for *tag*, and what it prints about the name."""
    words = (
        "verify",
        f"{scene.target}:{tag}",
        *scene.publisher.keys,
        "--suite",
        str(scene.publisher.suite),
        "--json",
    )
    done = scene.publisher.run(*words, *more)
    points = json.loads(done.stdout)["points"]
    code = getattr(done.exception, "exit_code", None) or done.exit_code
    return code, "".join(point["text"] for point in points if point["what"] == "name")


def moved(scene: Scene, tag: str, digest: str = "") -> None:
    """Make the registry's *tag* point to the scene's image, or to *digest*."""
    scene.there.manifests[tag] = scene.there.manifests[digest or scene.image.manifest]


def test_each_published_name_is_valid(scene: Scene) -> None:
    scene.publish()
    for tag in (DATED, "v2.7"):
        assert verify_name(scene, tag) == (0, f"it was published as {tag}")


WRONG = {
    "another torch": "2.6.0-cuda12.1-cudnn9-runtime",
    "another CUDA": "2.7.1-cuda11.8-cudnn9-runtime",
    "another cuDNN": "2.7.1-cuda12.1-cudnn8-runtime",
    "another flavor": "2.7.1-cuda12.1-cudnn9-devel",
    "another OS": f"{TAG}-ubuntu22.04",
    "its own tag and a word": f"{TAG}-transformers",
    "zstd": f"{TAG}-zstd",
    "another day": f"{TAG}-20261123",
    "a second image of the day": f"{TAG}-20261122b",
    "another image's day": "2.6.0-cuda12.1-cudnn9-runtime-20261122",
    "another alias": "v2.6",
    "another alias by CUDA": "2.7-cuda11.8-runtime",
    "a flavor's alias": "2.7-cuda12.1-devel",
    "an alias of zstd": "v2.7-zstd",
    "an alias with a day": "v2.7-20261122",
    "latest": "latest",
    "capitals": "V2.7",
    "a name without a meaning": "trial",
}


#: Cases with a valid name for this image that no signed statement contains.
UNSIGNED = {"another day", "a second image of the day", "latest", "a name without a meaning"}


def test_a_tag_moved_to_the_image(scene: Scene) -> None:
    assert {case for case, tag in WRONG.items() if not misfit(tag, TAG, MATRIX)} == UNSIGNED
    scene.publish()
    for case in ("another torch", "latest"):
        moved(scene, WRONG[case])
        code, message = verify_name(scene, WRONG[case])

        assert code == 12
        assert ("the tag was moved" if case in UNSIGNED else "another image's name") in message


def test_a_dated_tag_moved_to_another_days_image(scene: Scene) -> None:
    """Both images are signed and valid, and are of the same cell."""
    scene.publish()
    first = scene.image
    scene.image = scene.publisher.build("2")
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    done = scene.publisher.publish(scene.target, "--report", report, "--dated", "20261123")
    assert done.exit_code == 0, done.exception
    assert verify_name(scene, f"{TAG}-20261123")[0] == 0

    moved(scene, f"{TAG}-20261123", first.manifest)
    code, message = verify_name(scene, f"{TAG}-20261123")
    assert code == 12
    assert message.endswith(f"not as {TAG}-20261123: the tag was moved")


def test_a_custom_name_is_signed_too(scene: Scene) -> None:
    scene.publish("--tag", "trial")
    assert set(scene.there.tags) == {"trial"}
    assert verify_name(scene, "trial") == (0, "it was published as trial")
    moved(scene, "stable")

    code, message = verify_name(scene, "stable")
    assert (code, message) == (12, "it was published as trial, not as stable: the tag was moved")


def test_a_missing_statement_of_names(scene: Scene) -> None:
    """Each published image has a statement of its names, so removing the statement is detected."""
    scene.publish()
    scene.lose(PUBLICATION)

    code, message = verify_name(scene, DATED)
    assert code == 12
    assert "the statement of its names is missing" in message


def test_every_tag_of_an_image_without_its_statement_of_names_is_misnamed(scene: Scene) -> None:
    scene.publish()
    words = ("catalog", scene.target, *scene.publisher.keys, "--json")
    [image] = json.loads(scene.publisher.run(*words).stdout)["images"]
    assert image["misnamed"] == []
    scene.lose(PUBLICATION)

    [image] = json.loads(scene.publisher.run(*words).stdout)["images"]
    assert image["tags"]
    assert image["misnamed"] == image["tags"]


@pytest.mark.parametrize("who", ["an unknown key", "no key"])
def test_names_without_a_trusted_signature(scene: Scene, who: str) -> None:
    scene.publish()
    message = publication(TAG, scene.image.manifest, ["stable"])
    if who == "an unknown key":
        artifact = ByKey(UNKNOWN_KEY).sign(message)
        scene.beside(artifact.kind, artifact.data)
    else:
        from torchkiln.attest.signers import Unsigned

        artifact = Unsigned().sign(message)
        scene.beside(artifact.kind, artifact.data)
    moved(scene, "stable")

    assert verify_name(scene, "stable")[0] == 12


def test_a_wrong_signed_name_is_refused(scene: Scene) -> None:
    """A signed list may contain another cell's name; the lock decides."""
    scene.publish()
    name = "2.6.0-cuda12.1-cudnn9-runtime"
    artifact = ByKey(P256).sign(publication(TAG, scene.image.manifest, [name]))
    scene.beside(artifact.kind, artifact.data)
    moved(scene, name)

    code, message = verify_name(scene, name)
    assert code == 12
    assert "another image's name" in message


def test_a_reference_by_digest_checks_no_name(scene: Scene) -> None:
    scene.publish()
    words = (*scene.publisher.keys, "--suite", str(scene.publisher.suite))
    by_digest = f"{scene.target}@{scene.image.manifest}"
    assert scene.publisher.run("verify", by_digest, *words).exit_code == 0

    both = f"{scene.target}:2.6.0-cuda12.1-cudnn9-runtime@{scene.image.manifest}"
    assert getattr(scene.publisher.run("verify", both, *words).exception, "exit_code", None) == 12
    bare = scene.publisher.run("verify", scene.target, *words)  # no tag in the address: `latest`
    assert getattr(bare.exception, "exit_code", None) == 2  # the registry has no such tag
    moved(scene, "latest")
    assert getattr(scene.publisher.run("verify", scene.target, *words).exception, "exit_code", None) == 12


REFUSED = {
    "its own dated tag": DATED,
    "another day": f"{TAG}-20270101",
    "another cell's dated tag": "2.6.0-cuda12.1-cudnn9-runtime-20261122",
    "an alias with a day": "v2.7-20261122",
    "anything with a day": "trial-20261122",
    "a day and letters": "trial-20261122b",
    "a list of referrers": "sha256-" + "a" * 64,
    "cosign's signature": "sha256-" + "a" * 64 + ".sig",
    "cosign's attestation": "sha256-" + "0" * 64 + ".att",
    "a list of referrers by SHA-512": "sha512-" + "a" * 64,
    "a list of referrers in capitals": "SHA256-" + "A" * 64,
    "a short list of referrers": "sha256-abc",
    "another torch": "2.6.0-cuda12.1-cudnn9-runtime",
    "another CUDA": "2.7.1-cuda11.8-cudnn9-runtime",
    "another flavor": "2.7.1-cuda12.1-cudnn9-devel",
    "another OS": f"{TAG}-ubuntu22.04",
    "another cuDNN": "2.7.1-cuda12.1-cudnn8-runtime",
    "another cell's tag with a suffix": "2.6.0-cuda12.1-cudnn9-runtime_1",
    "without cuDNN": "2.6.0-cuda12.1-runtime",
    "its own tag with a suffix": f"{TAG}-trial",
    "zstd": f"{TAG}-zstd",
    "another alias": "v2.6",
    "another alias by CUDA": "2.6-cuda12.1-runtime",
    "another OS's alias": f"{ALIAS}-ubuntu22.04",
    "zstd's alias": "latest-zstd",
    "capitals": "2.6.0-CUDA12.1-CUDNN9-RUNTIME",
    "an alias in capitals": "LATEST",
    "no tag": "a b",
}


def named(scene: Scene, *names: str) -> tuple[str, ...]:
    """The tags that `publish --tag NAME` sets in the registry."""
    locked = load_locked(scene.publisher.folder / "images", TAG)
    return names_of(scene.image, locked, MATRIX, facts.load(), day="20261122", requested=names).all


def test_tags_that_publish_refuses(scene: Scene) -> None:
    """They are refused before any request is sent."""
    for case, tag in REFUSED.items():
        why = "reserved for" if case in ("a list of referrers", "cosign's signature") else "."
        with pytest.raises(ConfigError, match=why):
            named(scene, tag)
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    done = scene.publisher.publish(scene.target, "--report", report, "--tag", "trial", "--tag", "v2.6")

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert (scene.there.blobs, scene.there.manifests) == ({}, {})


def test_tags_that_publish_accepts(scene: Scene) -> None:
    names = (TAG, ALIAS, "v2.7", "latest", "trial", "v1", "stable-cuda12")
    assert [named(scene, name) for name in names] == [(name,) for name in names]


def test_a_matrix_alias_that_is_another_images_name(scene: Scene) -> None:
    text = (ROOT / "matrix.yaml").read_text()
    rule = text.replace(
        'newest_patch: "{minor}-cuda{cuda}-{flavor}"', 'newest_patch: "2.6.0-cuda12.1-cudnn9-{flavor}"'
    )
    assert rule != text
    file = scene.publisher.write(rule.encode(), "matrix.yaml")
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    done = scene.publisher.publish(scene.target, "--report", report, "--matrix", file)

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert scene.there.manifests == {}


@pytest.mark.parametrize("zstd", ["", "-zstd"])
def test_the_rule_for_names(zstd: str) -> None:
    own = f"{TAG}{zstd}"
    good = [own, f"{own}-20261122", f"v2.7{zstd}", f"latest{zstd}", f"{ALIAS}{zstd}", "trial", "20261122"]
    other_format = "" if zstd else "-zstd"
    bad = [
        f"{TAG}{other_format}",
        f"v2.7{other_format}",
        f"{TAG}{other_format}-20261122",
        "v2.8",
        "v2.8-zstd",
        f"{own}-beta",
    ]

    assert [name for name in good if misfit(name, own, MATRIX)] == []
    assert [name for name in bad if not misfit(name, own, MATRIX)] == []
