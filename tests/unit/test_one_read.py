"""`publish` reads each file only once, so it publishes the cleared image even if files are replaced."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.keys import ED, UNKNOWN_KEY, pem, public_pem
from tests.published import a_built_publisher, a_copied_publisher
from tests.publisher import Publisher
from tests.reports import TAG, found
from tests.servers.registry_server import RegistryServer
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.registry.session import Registry

__all__ = ["a_built_publisher", "a_copied_publisher"]

NAME, DAY = "team/app", "20261122"
NAMES = {TAG, f"{TAG}-{DAY}", "2.7-cuda12.1-runtime", "v2.7"}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        found.behaviour.lists_referrers = True
        yield found


def before_request(number: int, do: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Call *do* before the registry gets request *number*; returns the count of requests so far."""
    ask, count = Registry.request_once, [0]

    def counting_request(self: Registry, *arguments: object, **named: object) -> object:
        count[0] += 1
        if count[0] == number:
            do()
        return ask(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "request_once", counting_request)
    return count


def put(path: Path, data: bytes) -> None:
    """Replace *path* by a new file with *data*, which has another inode, as `mv` does."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.chmod(0o600)
    new.replace(path)


def other_manifest(image: ImageOnDisk) -> bytes:
    """Another valid manifest of the same blobs: it has an additional annotation."""
    manifest_json = json.loads(image.manifest_path.read_bytes())
    return json.dumps({**manifest_json, "annotations": {"org.example.by": "another user"}}).encode()


def published(publisher: Publisher, server: RegistryServer) -> object:
    report = publisher.signed(publisher.report(open_layout(publisher.layout).image(TAG)))
    return publisher.publish(
        f"{server.host}/{NAME}", "--report", report, "--dated", DAY, "--jobs", "1"
    ).exception


def named(server: RegistryServer) -> dict[str, str]:
    """The SHA-256 of each tag's manifest in the registry, computed from its bytes; also checks all blobs."""
    there = server.repository(NAME)
    for digest, data in there.blobs.items():
        assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {tag: hashlib.sha256(there.manifests[tag]).hexdigest() for tag in there.tags}


@pytest.mark.parametrize("number", [2, 8, 16, 28, 40, 52])
def test_a_manifest_that_is_swapped_at_each_instant(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An earlier version read the manifest again after the push, and gave the tags to the swapped one."""
    image = open_layout(publisher.layout).image(TAG)
    replacement = other_manifest(image)
    before_request(number, lambda: put(image.manifest_path, replacement), monkeypatch)
    error = published(publisher, server)

    assert set(named(server).values()) <= {image.manifest.partition(":")[2]}
    assert set(named(server)) == (NAMES if error is None else set())


def test_a_manifest_that_is_swapped_before_the_push_is_refused(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = open_layout(publisher.layout).image(TAG)
    before_request(1, lambda: put(image.manifest_path, other_manifest(image)), monkeypatch)
    error = published(publisher, server)

    assert getattr(error, "exit_code", None) == 12, error
    assert "checksum mismatch" in str(error)
    assert named(server) == {}


@pytest.mark.parametrize(
    ("what", "number"),
    [
        *(("the largest layer", number) for number in (1, 3, 6, 9)),
        ("the smallest layer", 1),
        ("config", 1),
        ("config", 6),
    ],
)
def test_a_blob_that_is_swapped(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    """The blob's digest is computed while it is sent; if it does not match, no tag is set."""
    image = open_layout(publisher.layout).image(TAG)
    layers = sorted(image.layers, key=lambda layer: layer.size)
    path = {
        "config": image.config_path,
        "the largest layer": layers[-1].path,
        "the smallest layer": layers[0].path,
    }[what]
    replacement = bytearray(path.read_bytes())
    replacement[len(replacement) // 2] ^= 1
    before_request(number, lambda: put(path, bytes(replacement)), monkeypatch)
    error = published(publisher, server)

    assert getattr(error, "exit_code", 12) == 12, error
    assert set(named(server).values()) <= {image.manifest.partition(":")[2]}
    assert set(named(server)) == (NAMES if error is None else set())


@pytest.mark.parametrize("kind", ["a link", "a pipe", "nothing", "a folder"])
def test_a_blob_that_is_no_longer_a_file(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """`publish` does not hang at a pipe, and does not follow a link."""
    import os

    image = open_layout(publisher.layout).image(TAG)
    path = max(image.layers, key=lambda layer: layer.size).path

    def swap() -> None:
        away = path.rename(publisher.folder / "away")
        if kind == "a link":
            path.symlink_to(away)
        elif kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a folder":
            path.mkdir()

    before_request(1, swap, monkeypatch)
    error = published(publisher, server)

    assert getattr(error, "exit_code", None) == 12, error
    assert named(server) == {}


@pytest.mark.parametrize("number", [1, 12])
def test_reports_locks_keys_and_policy_are_read_before_the_first_request(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """If these files are replaced or deleted later, nothing changes."""
    policy = publisher.folder / "policy.yaml"
    text = Path("matrix.yaml").read_text()
    policy.write_text(text.replace("keys: []", 'keys: ["laboratory=lab.pub.pem"]'))
    image = open_layout(publisher.layout).image(TAG)
    good = publisher.signed(publisher.report(image))
    bad = publisher.report(image, found("cuda", "failed", "is 0"), verdict="fail")

    def swap() -> None:
        publisher.signed(bad)
        put(policy, text.replace('newest_cuda: "v{minor}"', 'newest_cuda: "v9"').encode())
        put(publisher.folder / "lab.pub.pem", public_pem(UNKNOWN_KEY))
        put(publisher.folder / "publisher.pem", pem(UNKNOWN_KEY))
        shutil.rmtree(publisher.folder / "images")
        (publisher.layout / "index.json").write_bytes(b"{}")

    before_request(number, swap, monkeypatch)
    done = publisher.publish(
        f"{server.host}/{NAME}", "--report", good, "--dated", DAY, "--matrix", str(policy), "--jobs", "1"
    )
    assert done.exit_code == 0, done.exception
    assert named(server) == dict.fromkeys(NAMES, image.manifest.partition(":")[2])
    monkeypatch.undo()
    put(publisher.folder / "lab.pub.pem", public_pem(ED))
    verified = publisher.run(
        "verify", f"{server.host}/{NAME}:{TAG}", *publisher.keys, "--suite", str(publisher.suite)
    )
    assert verified.exit_code == 0, verified.exception


def test_the_mode_of_a_private_key_is_checked_on_the_file_that_is_read(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a check by path, the file could be replaced between the check and the read."""
    from torchkiln.attest import keys
    from torchkiln.errors import ConfigError

    good, open_ = publisher.folder / "publisher.pem", publisher.folder / "open.pem"
    open_.write_bytes(pem(UNKNOWN_KEY))
    open_.chmod(0o644)
    stat = Path.stat

    def looked(self: Path, **named: bool) -> object:
        manifest_json = stat(self, **named)
        if self == good:
            open_.replace(good)
        return manifest_json

    monkeypatch.setattr(Path, "stat", looked)
    first = keys.private_key(good)
    monkeypatch.undo()
    assert first.public_key() != UNKNOWN_KEY.public_key()
    good.chmod(0o644)
    with pytest.raises(ConfigError, match="are too open"):
        keys.private_key(good)


def test_a_report_in_a_folder_is_read_once(
    publisher: Publisher, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version read each report twice: to find its image, and to check it."""
    from torchkiln.smoke import attestation

    image = open_layout(publisher.layout).image(TAG)
    (publisher.folder / "reports").mkdir()
    publisher.signed(publisher.report(image), "reports/ours.dsse.json")
    read: list[str] = []
    data = attestation._data
    monkeypatch.setattr(attestation, "_data", lambda path: read.append(path.name) or data(path))
    reports = str(publisher.folder / "reports")
    done = publisher.publish(f"{server.host}/{NAME}", "--report", reports, "--dated", DAY)

    assert done.exit_code == 0, done.exception
    assert read == ["ours.dsse.json"]
