"""`publish`: whatever is swapped on the disk while it runs, what gets a name is what was cleared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.keys import ED, STRANGER, pem, public_pem
from tests.press import Press, press
from tests.reports import TAG, found
from tests.standin.registry_server import RegistryServer
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.registry.session import Registry

NAME, DAY = "team/app", "20261122"
NAMES = {TAG, f"{TAG}-{DAY}", "2.7-cuda12.1-runtime", "v2.7"}


@pytest.fixture(scope="module", name="made")
def a_built_press(tmp_path_factory: pytest.TempPathFactory) -> Press:
    desk = press(tmp_path_factory.mktemp("made"))
    desk.build()
    return desk


@pytest.fixture
def desk(made: Press, tmp_path: Path) -> Press:
    return Press(folder=shutil.copytree(made.folder, tmp_path / "desk"))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        found.manners.lists_referrers = True
        yield found


def before_request(number: int, do: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Call *do* when the registry is about to be asked for the *number*th time; returns the count so far."""
    ask, count = Registry.request_once, [0]

    def asked(self: Registry, *given: object, **named: object) -> object:
        count[0] += 1
        if count[0] == number:
            do()
        return ask(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "request_once", asked)
    return count


def put(path: Path, data: bytes) -> None:
    """In the place of *path*, under a new inode, as `mv` does."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.chmod(0o600)
    new.replace(path)


def other_manifest(image: ImageOnDisk) -> bytes:
    """Of the same blobs, so that a registry takes it; with other bytes."""
    told = json.loads(image.manifest_path.read_bytes())
    return json.dumps({**told, "annotations": {"org.example.by": "a stranger"}}).encode()


def published(desk: Press, server: RegistryServer) -> object:
    report = desk.signed(desk.report(open_layout(desk.layout).image(TAG)))
    return desk.publish(f"{server.host}/{NAME}", "--report", report, "--dated", DAY, "--jobs", "1").exception


def named(server: RegistryServer) -> dict[str, str]:
    """Which bytes each name has: names, and the blobs that they hang on, hashed anew."""
    there = server.repository(NAME)
    for digest, data in there.blobs.items():
        assert digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {tag: hashlib.sha256(there.manifests[tag]).hexdigest() for tag in there.tags}


@pytest.mark.parametrize("number", [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56])
def test_a_manifest_that_is_swapped_at_each_instant(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It was read again after the push, so that another image got the tags."""
    image = open_layout(desk.layout).image(TAG)
    lie = other_manifest(image)
    before_request(number, lambda: put(image.manifest_path, lie), monkeypatch)
    error = published(desk, server)

    assert set(named(server).values()) <= {image.manifest.partition(":")[2]}
    assert set(named(server)) == (NAMES if error is None else set())


def test_a_manifest_that_is_swapped_before_the_push_is_refused(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = open_layout(desk.layout).image(TAG)
    before_request(1, lambda: put(image.manifest_path, other_manifest(image)), monkeypatch)
    error = published(desk, server)

    assert getattr(error, "exit_code", None) == 12, error
    assert "checksum mismatch" in str(error)
    assert named(server) == {}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("what", ["config", "the largest layer", "the smallest layer"])
def test_a_blob_that_is_swapped(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    """Its digest runs along as it is sent: a mismatch sets no tag."""
    image = open_layout(desk.layout).image(TAG)
    layers = sorted(image.layers, key=lambda one: one.size)
    path = {
        "config": image.config_path,
        "the largest layer": layers[-1].path,
        "the smallest layer": layers[0].path,
    }[what]
    lie = bytearray(path.read_bytes())
    lie[len(lie) // 2] ^= 1
    before_request(number, lambda: put(path, bytes(lie)), monkeypatch)
    error = published(desk, server)

    assert getattr(error, "exit_code", 12) == 12, error
    assert set(named(server).values()) <= {image.manifest.partition(":")[2]}
    assert set(named(server)) == (NAMES if error is None else set())


@pytest.mark.parametrize("kind", ["a link", "a pipe", "nothing", "a folder"])
def test_a_blob_that_is_no_file_any_more(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It does not hang, and a link is not followed."""
    import os

    image = open_layout(desk.layout).image(TAG)
    path = max(image.layers, key=lambda one: one.size).path

    def swap() -> None:
        away = path.rename(desk.folder / "away")
        if kind == "a link":
            path.symlink_to(away)
        elif kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a folder":
            path.mkdir()

    before_request(1, swap, monkeypatch)
    error = published(desk, server)

    assert getattr(error, "exit_code", None) == 12, error
    assert named(server) == {}


@pytest.mark.parametrize("number", [1, 4, 12])
def test_reports_locks_keys_and_policy_are_read_before_the_registry_is_asked(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Swapped or gone afterwards, they change nothing."""
    policy = desk.folder / "policy.yaml"
    text = Path("matrix.yaml").read_text()
    policy.write_text(text.replace("keys: []", "keys: [lab.pub.pem]"))
    image = open_layout(desk.layout).image(TAG)
    good = desk.signed(desk.report(image))
    bad = desk.report(image, found("cuda", "failed", "is 0"), verdict="fail")

    def swap() -> None:
        desk.signed(bad)
        put(policy, text.replace('newest_cuda: "v{minor}"', 'newest_cuda: "v9"').encode())
        put(desk.folder / "lab.pub.pem", public_pem(STRANGER))
        put(desk.folder / "publisher.pem", pem(STRANGER))
        shutil.rmtree(desk.folder / "images")
        (desk.layout / "index.json").write_bytes(b"{}")

    before_request(number, swap, monkeypatch)
    done = desk.publish(
        f"{server.host}/{NAME}", "--report", good, "--dated", DAY, "--matrix", str(policy), "--jobs", "1"
    )
    assert done.exit_code == 0, done.exception
    assert named(server) == dict.fromkeys(NAMES, image.manifest.partition(":")[2])
    monkeypatch.undo()
    put(desk.folder / "lab.pub.pem", public_pem(ED))
    seen = desk.run("verify", f"{server.host}/{NAME}:{TAG}", *desk.keys, "--suite", str(desk.suite))
    assert seen.exit_code == 0, seen.exception


def test_a_private_key_is_looked_at_and_read_as_one_file(
    desk: Press, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode was that of the name: another file under it, which others may read, came after the look."""
    from torchkiln.attest import keys
    from torchkiln.errors import ConfigError

    good, open_ = desk.folder / "publisher.pem", desk.folder / "open.pem"
    open_.write_bytes(pem(STRANGER))
    open_.chmod(0o644)
    stat = Path.stat

    def looked(self: Path, **named: bool) -> object:
        told = stat(self, **named)
        if self == good:
            open_.replace(good)
        return told

    monkeypatch.setattr(Path, "stat", looked)
    first = keys.private_key(good)
    monkeypatch.undo()
    assert first.public_key() != STRANGER.public_key()
    good.chmod(0o644)
    with pytest.raises(ConfigError, match="are too open"):
        keys.private_key(good)


def test_a_report_in_a_folder_is_read_once(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read to see of which image it tells, and again to be judged."""
    from torchkiln.smoke import attestation

    image = open_layout(desk.layout).image(TAG)
    (desk.folder / "reports").mkdir()
    desk.signed(desk.report(image), "reports/ours.dsse.json")
    read: list[str] = []
    data = attestation._data
    monkeypatch.setattr(attestation, "_data", lambda path: read.append(path.name) or data(path))
    reports = str(desk.folder / "reports")
    done = desk.publish(f"{server.host}/{NAME}", "--report", reports, "--dated", DAY)

    assert done.exit_code == 0, done.exception
    assert read == ["ours.dsse.json"]
