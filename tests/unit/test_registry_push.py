"""Pushes to a registry in memory: cases that docker-registry cannot give; guarantees of BlobUploads."""

from __future__ import annotations

import base64
import os
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.faultproxy import Fault, FaultProxy
from tests.pushing import SIZES, Rests, digests, image, push_to
from tests.servers.registry_server import RegistryServer
from torchkiln.errors import ConfigError, RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.credentials import Login
from torchkiln.registry.push import BlobUploads, History, PushOptions
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry, Stopped
from torchkiln.store.store import Store

SEED = int(os.environ.get("TORCHKILN_TEST_SEED") or random.randrange(1 << 30))
KIM = Login(user="kim", password="correct-horse")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        yield found


@pytest.fixture
def proxy(server: RegistryServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.host) as found:
        yield found


@pytest.fixture
def built(tmp_path: Path) -> ImageOnDisk:
    return image(tmp_path, "v1")


def is_complete(server: RegistryServer, name: str, built: ImageOnDisk) -> bool:
    """Whether the registry has the complete image, under its tag."""
    expected = {digest: path.read_bytes() for digest, path in digests(built).items()}
    manifest = expected.pop(built.manifest)
    found = server.repository(name)
    return found.blobs == expected and found.manifests == {"v1": manifest, built.manifest: manifest}


@pytest.mark.parametrize("cuts", [1, 3, 8])
def test_an_interrupted_upload_is_resumed(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk, cuts: int
) -> None:
    """It is resumed as long as each attempt makes progress. No byte is sent twice."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    draw = random.Random(f"{SEED} {cuts}")
    proxy.faults = [Fault("cut", "PATCH", at=draw.randrange(1, 2_900_000 // cuts)) for _ in range(cuts)]
    push_to(proxy.host, "team/app", built, jobs=1)
    assert is_complete(server, "team/app", built)
    config = built.config_path.stat().st_size
    assert proxy.blob_bytes() == sum(layer.size for layer in built.layers) + config
    patches = [request for request in proxy.requests if request.method == "PATCH"]
    assert len(patches) == cuts + 2
    at = 0
    for patch in patches[: cuts + 1]:
        assert patch.range == (f"{at}-{built.layers[0].size - 1}" if at else "")
        at += patch.body


def test_an_upload_without_progress_fails(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    proxy.faults = [Fault("cut", "PATCH", at=0, times=1000)]
    rests = Rests()
    with pytest.raises(
        RegistryError, match=r"(closed the connection .*|connection reset by peer) \(6 attempts\)"
    ):
        push_to(proxy.host, "team/app", built, rests=rests)
    assert max(rests.seconds) > min(rests.seconds)
    assert server.repository("team/app").tags == []


def test_a_blob_damaged_after_an_interruption_is_not_completed(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    """The hash covers the whole blob, including the correct part before the interruption."""
    layer = built.layers[0]
    proxy.faults = [Fault("cut", "PATCH", at=2_000_000)]

    class Damaging(Rests):
        def __call__(self, seconds: float) -> None:
            data = bytearray(layer.path.read_bytes())
            data[1000] ^= 1
            layer.path.unlink()
            layer.path.write_bytes(data)

    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        push_to(proxy.host, "team/app", built, jobs=1, rests=Damaging())
    assert layer.digest not in server.repository("team/app").blobs
    assert server.uploads == {}  # the upload was cancelled in the registry


def test_no_blob_is_started_after_a_failed_one(
    server: RegistryServer, built: ImageOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker thread fails and is free before the main thread, which waits here, sees the error."""
    monkeypatch.setattr("torchkiln.registry.push.wait", lambda futures, return_when: wait(futures))
    layer = built.layers[0]
    layer.path.write_bytes(layer.path.read_bytes()[:-1] + b"?")
    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        push_to(server.host, "team/app", built, jobs=1)
    assert (server.repository("team/app").blobs, server.uploads) == ({}, {})


def test_a_blob_damaged_in_transit_is_sent_again(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    """After the registry reports a wrong digest, the blob is sent again, at most twice."""
    refusals = [Fault("status", "PUT", "digest=", status=400, times=2)]
    proxy.faults = list(refusals)
    push_to(proxy.host, "team/app", built, jobs=1)
    assert is_complete(server, "team/app", built)
    proxy.faults = [Fault("status", "PUT", "digest=", status=400, times=3)]
    with pytest.raises(RegistryError, match=r"blob sha256:.*: HTTP 400"):
        push_to(proxy.host, "team/other", built, jobs=1)
    assert server.repository("team/other").tags == []


def test_uploads_elsewhere_get_no_login(built: ImageOnDisk) -> None:
    """The registry redirects uploads to another host, which must not get the login."""
    with RegistryServer() as storage, RegistryServer() as server:
        storage.repositories, storage.uploads = server.repositories, server.uploads
        server.behaviour.uploads_at = f"http://{storage.host}"
        storage.behaviour.uploads_at = f"http://{storage.host}"
        with FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
            push_to(proxy.host, "team/app", built, login=KIM)
        assert is_complete(server, "team/app", built)
        assert storage.logins == []
        assert server.logins != []


def test_a_redirected_head_does_not_send_the_login(built: ImageOnDisk) -> None:
    with RegistryServer() as storage, RegistryServer() as server:
        push_to(storage.host, "team/app", built)
        server.repositories = storage.repositories
        server.behaviour.redirects_heads_to = f"http://{storage.host}"
        with FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
            pushed = push_to(proxy.host, "team/app", built, login=KIM)
        assert pushed.count("there") == 4
        assert storage.logins == []


def test_a_registry_without_digest_headers(server: RegistryServer, built: ImageOnDisk) -> None:
    server.behaviour.tells_digests = False
    push_to(server.host, "team/app", built)
    assert is_complete(server, "team/app", built)


def test_a_partial_blob_counts_as_missing(server: RegistryServer, built: ImageOnDisk) -> None:
    push_to(server.host, "team/app", built)
    server.behaviour.short_by = 1
    assert push_to(server.host, "team/app", built).count("sent") == 4


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_refused_mount_is_not_an_error(server: RegistryServer, built: ImageOnDisk, status: int) -> None:
    server.behaviour.refuses_mounts = status
    pushed = push_to(server.host, "team/app", built, mount_from=["theirs/app"])
    assert pushed.count("sent") == 4
    assert is_complete(server, "team/app", built)


def test_a_refused_manifest_is_reported_with_the_registrys_message(
    server: RegistryServer, built: ImageOnDisk
) -> None:
    server.behaviour.refuses_manifests = "MANIFEST_INVALID"
    with pytest.raises(
        RegistryError, match=r"manifest sha256:.*HTTP 400, MANIFEST_INVALID: no such blob; no tag was set"
    ):
        push_to(server.host, "team/app", built)


def test_a_registry_that_echoes_the_login(built: ImageOnDisk) -> None:
    """The registry's error text contains the login; the message must contain neither token nor password."""
    with RegistryServer() as server, FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
        server.behaviour.echo = True
        with pytest.raises(RegistryError, match="DENIED: not with Bearer …") as error:
            push_to(proxy.host, "team/app", built, login=KIM)
        message = error.value.message + error.value.hint
        for secret in (*proxy.fetched, KIM.password, base64.b64encode(b"kim:correct-horse").decode()):
            assert secret not in message


def test_basic_authentication(server: RegistryServer, built: ImageOnDisk) -> None:
    with FaultProxy(server.host, {KIM.user: KIM.password}, basic=True) as proxy:
        push_to(proxy.host, "team/app", built, login=KIM)
        assert [request.path for request in proxy.requests if request.status == 401] == ["/v2/"]
    assert is_complete(server, "team/app", built)


def test_a_wrong_password_is_tried_once(server: RegistryServer, built: ImageOnDisk) -> None:
    """It is sent once for each blob in progress: with more attempts, a registry could lock the account."""
    with FaultProxy(server.host, {KIM.user: KIM.password}, basic=True) as proxy:
        with pytest.raises(RegistryError, match="access denied for kim"):
            push_to(proxy.host, "team/app", built, login=Login(user="kim", password="wrong"))
        heads = [request.path for request in proxy.requests if request.method == "HEAD"]
        assert len(heads) == len(set(heads))


def test_an_invalid_tag_is_refused_before_anything_is_sent(
    server: RegistryServer, built: ImageOnDisk
) -> None:
    with pytest.raises(ConfigError, match="invalid tag 'a/b'"):
        push_to(server.host, "team/app", built, tags=["v1", "a/b"])
    assert server.repositories == {}


def test_the_repositories_of_a_blob_are_recorded(tmp_path: Path) -> None:
    """Only repositories of the target's registry are listed, the latest first, without the target itself."""
    history, digest = History(Store(tmp_path)), Digest("sha256:" + "1" * 64)
    for name in ("one", "two", "three", "four", "two"):
        history.note(digest, Repository(host="a.example", name=name))
    assert history.sources(digest, Repository(host="a.example", name="x")) == ("two", "four", "three")
    assert history.sources(digest, Repository(host="a.example", name="four")) == ("two", "three")
    assert history.sources(digest, Repository(host="b.example", name="x")) == ()
    assert History(None).sources(digest, Repository(host="a.example", name="x")) == ()


def uploads(registry: Registry, host: str, jobs: int = 2) -> BlobUploads:
    """Uploads of blobs to the repository team/app."""
    to = Repository(host=host, name="team/app")
    return BlobUploads(registry, to, PushOptions(observer=Silent(), history=History(None), jobs=jobs))


def test_blobs_are_sent_before_the_manifest_exists(server: RegistryServer, built: ImageOnDisk) -> None:
    """They are sent in the order in which they are built, each only once."""
    manifest = built.manifest_path.read_bytes()
    with Registry(server.host, sleep=Rests()) as registry, uploads(registry, server.host) as pushing:
        for layer in (*reversed(built.layers), built.layers[0]):
            pushing.submit(layer.digest, layer.path)
        pushing.submit(built.config_digest, built.config_path)
        pushed = pushing.finish(manifest, ["v1"])
    assert is_complete(server, "team/app", built)
    assert [blob.digest for blob in pushed.blobs] == [
        *(layer.digest for layer in reversed(built.layers)),
        built.config_digest,
    ]


def test_a_manifest_with_unsent_blobs_is_not_pushed(server: RegistryServer, built: ImageOnDisk) -> None:
    with Registry(server.host, sleep=Rests()) as registry, uploads(registry, server.host) as pushing:
        pushing.submit(built.config_digest, built.config_path)
        with pytest.raises(VerificationFailed, match=f"were not sent: .*{built.layers[0].digest}"):
            pushing.finish(built.manifest_path.read_bytes(), ["v1"])
    assert server.repository("team/app").manifests == {}


@pytest.mark.parametrize("change", ["gone", "short"])
def test_a_layer_missing_in_the_layout_is_reported_at_once(
    server: RegistryServer, built: ImageOnDisk, change: str
) -> None:
    path = built.layers[1].path
    data = path.read_bytes()
    path.unlink()
    if change == "short":
        path.write_bytes(data[:-1])
    with pytest.raises(VerificationFailed, match=path.name):
        push_to(server.host, "team/app", built)
    assert server.repository("team/app").tags == []


def test_a_failed_upload_stops_the_others(proxy: FaultProxy, built: ImageOnDisk) -> None:
    """The other uploads wait for a silent server with a timeout of two minutes, but are stopped at once."""
    proxy.faults = [Fault("stall", "PATCH"), Fault("status", "PATCH", status=403, times=1000)]
    with ThreadPoolExecutor(1, "test") as pool:
        error = pool.submit(push_to, proxy.host, "team/app", built).exception(timeout=300)
    assert isinstance(error, RegistryError)
    assert "access denied" in error.message
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("push")]


def test_stopped_uploads_send_no_more_requests(server: RegistryServer) -> None:
    registry = Registry(server.host)
    registry.check()
    registry.stop()
    with pytest.raises(Stopped):
        registry.check()
    with pytest.raises(Stopped):
        registry.sleep(3600)


def test_sizes_are_of_both_kinds() -> None:
    """Some blobs of the tests above must be smaller than 1 MiB, and some larger."""
    assert min(SIZES.values()) < 1 << 20 < max(SIZES.values())
