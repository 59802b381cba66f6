"""The push against a registry in memory: what Debian's cannot show, and what BlobUploads promises."""

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
from tests.standin.registry_server import RegistryServer
from torchkiln.errors import ConfigError, RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.credentials import Login
from torchkiln.registry.history import History
from torchkiln.registry.push import BlobUploads, PushOptions
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


def is_whole(server: RegistryServer, name: str, built: ImageOnDisk) -> bool:
    """Whether all of it is there, under its tag."""
    wanted = {digest: path.read_bytes() for digest, path in digests(built).items()}
    manifest = wanted.pop(built.manifest)
    found = server.repository(name)
    return found.blobs == wanted and found.manifests == {"v1": manifest, built.manifest: manifest}


@pytest.mark.parametrize("cuts", [1, 3, 8])
def test_an_upload_goes_on_where_it_was_cut(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk, cuts: int
) -> None:
    """However often, as long as each try gets on: no byte goes twice."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    draw = random.Random(f"{SEED} {cuts}")
    proxy.faults = [Fault("cut", "PATCH", at=draw.randrange(1, 2_900_000 // cuts)) for _ in range(cuts)]

    push_to(proxy.host, "team/app", built, jobs=1)

    assert is_whole(server, "team/app", built)
    config = built.config_path.stat().st_size
    assert proxy.blob_bytes() == sum(layer.size for layer in built.layers) + config
    patches = [one for one in proxy.asked if one.method == "PATCH"]
    assert len(patches) == cuts + 2
    at = 0
    for patch in patches[: cuts + 1]:
        assert patch.range == (f"{at}-{built.layers[0].size - 1}" if at else "")
        at += patch.body


def test_an_upload_that_gets_nowhere_ends(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    proxy.faults = [Fault("cut", "PATCH", at=0, times=1000)]
    rests = Rests()

    with pytest.raises(RegistryError, match=r"(closed the connection .*|connection reset) \(6 attempts\)"):
        push_to(proxy.host, "team/app", built, rests=rests)

    assert max(rests.seconds) > min(rests.seconds)
    assert server.repository("team/app").tags == []


def test_a_blob_damaged_behind_a_cut_is_not_completed(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    """What went before was sound; the hash is of all of it."""
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
    assert server.uploads == {}  # the registry was told to forget it


def test_no_blob_is_begun_behind_one_that_failed(
    server: RegistryServer, built: ImageOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thread is free before the main one hears of it, which is busy elsewhere here."""
    monkeypatch.setattr("torchkiln.registry.push.wait", lambda futures, return_when: wait(futures))
    layer = built.layers[0]
    layer.path.write_bytes(layer.path.read_bytes()[:-1] + b"?")
    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        push_to(server.host, "team/app", built, jobs=1)

    assert (server.repository("team/app").blobs, server.uploads) == ({}, {})


def test_what_arrives_damaged_is_sent_again(
    server: RegistryServer, proxy: FaultProxy, built: ImageOnDisk
) -> None:
    """The registry says so, as it must: twice it may."""
    refusals = [Fault("status", "PUT", "digest=", status=400, times=2)]
    proxy.faults = list(refusals)
    push_to(proxy.host, "team/app", built, jobs=1)
    assert is_whole(server, "team/app", built)

    proxy.faults = [Fault("status", "PUT", "digest=", status=400, times=3)]
    with pytest.raises(RegistryError, match=r"blob sha256:.*: HTTP 400"):
        push_to(proxy.host, "team/other", built, jobs=1)
    assert server.repository("team/other").tags == []


def test_uploads_elsewhere_get_no_login(built: ImageOnDisk) -> None:
    """The registry's storage has another host; it is none of its business who we are."""
    with RegistryServer() as storage, RegistryServer() as server:
        storage.repositories, storage.uploads = server.repositories, server.uploads
        server.manners.uploads_at = f"http://{storage.host}"
        storage.manners.uploads_at = f"http://{storage.host}"
        with FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
            push_to(proxy.host, "team/app", built, login=KIM)

        assert is_whole(server, "team/app", built)
        assert storage.logins == []
        assert server.logins != []


def test_a_head_that_is_redirected_takes_no_login_along(built: ImageOnDisk) -> None:
    with RegistryServer() as storage, RegistryServer() as server:
        push_to(storage.host, "team/app", built)
        server.repositories = storage.repositories
        server.manners.redirects_heads_to = f"http://{storage.host}"
        with FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
            pushed = push_to(proxy.host, "team/app", built, login=KIM)

        assert pushed.count("there") == 4
        assert storage.logins == []


def test_a_registry_that_tells_no_digests(server: RegistryServer, built: ImageOnDisk) -> None:
    server.manners.tells_digests = False

    push_to(server.host, "team/app", built)

    assert is_whole(server, "team/app", built)


def test_half_a_blob_is_not_there(server: RegistryServer, built: ImageOnDisk) -> None:
    push_to(server.host, "team/app", built)
    server.manners.short_by = 1

    assert push_to(server.host, "team/app", built).count("sent") == 4


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_mount_that_is_refused_is_no_reason_to_fail(
    server: RegistryServer, built: ImageOnDisk, status: int
) -> None:
    server.manners.refuses_mounts = status

    pushed = push_to(server.host, "team/app", built, mount_from=["theirs/app"])

    assert pushed.count("sent") == 4
    assert is_whole(server, "team/app", built)


def test_a_manifest_that_is_refused_is_told_in_the_registrys_words(
    server: RegistryServer, built: ImageOnDisk
) -> None:
    server.manners.refuses_manifests = "MANIFEST_INVALID"

    with pytest.raises(
        RegistryError, match=r"manifest sha256:.*HTTP 400, MANIFEST_INVALID: no such blob; no tag was set"
    ):
        push_to(server.host, "team/app", built)


def test_a_registry_that_tells_the_login_back(built: ImageOnDisk) -> None:
    """Neither the token nor the password gets into an error by that."""
    with RegistryServer() as server, FaultProxy(server.host, {KIM.user: KIM.password}) as proxy:
        server.manners.echo = True
        with pytest.raises(RegistryError, match="DENIED: not with Bearer …") as error:
            push_to(proxy.host, "team/app", built, login=KIM)

        told = error.value.message + error.value.hint
        for secret in (*proxy.fetched, KIM.password, base64.b64encode(b"kim:correct-horse").decode()):
            assert secret not in told


def test_basic_authentication(server: RegistryServer, built: ImageOnDisk) -> None:
    with FaultProxy(server.host, {KIM.user: KIM.password}, basic=True) as proxy:
        push_to(proxy.host, "team/app", built, login=KIM)
        assert [one.path for one in proxy.asked if one.status == 401] == ["/v2/"]

    assert is_whole(server, "team/app", built)


def test_a_wrong_password_is_tried_once(server: RegistryServer, built: ImageOnDisk) -> None:
    """For each blob that had begun: more would lock accounts."""
    with FaultProxy(server.host, {KIM.user: KIM.password}, basic=True) as proxy:
        with pytest.raises(RegistryError, match="access denied for kim"):
            push_to(proxy.host, "team/app", built, login=Login(user="kim", password="wrong"))
        heads = [one.path for one in proxy.asked if one.method == "HEAD"]
        assert len(heads) == len(set(heads))


def test_a_tag_that_is_none_is_refused_before_anything_is_sent(
    server: RegistryServer, built: ImageOnDisk
) -> None:
    with pytest.raises(ConfigError, match="invalid tag 'a/b'"):
        push_to(server.host, "team/app", built, tags=["v1", "a/b"])
    assert server.repositories == {}


def test_where_a_blob_was_pushed_is_remembered(tmp_path: Path) -> None:
    """The latest first, of that registry only, and not where it goes now."""
    history, digest = History(Store(tmp_path)), Digest("sha256:" + "1" * 64)
    for name in ("one", "two", "three", "four", "two"):
        history.note(digest, Repository(host="a.example", name=name))

    assert history.sources(digest, Repository(host="a.example", name="x")) == ("two", "four", "three")
    assert history.sources(digest, Repository(host="a.example", name="four")) == ("two", "three")
    assert history.sources(digest, Repository(host="b.example", name="x")) == ()
    assert History(None).sources(digest, Repository(host="a.example", name="x")) == ()


def uploads(registry: Registry, host: str, jobs: int = 2) -> BlobUploads:
    """Into team/app."""
    to = Repository(host=host, name="team/app")
    return BlobUploads(registry, to, PushOptions(observer=Silent(), history=History(None), jobs=jobs))


def test_blobs_go_ahead_before_there_is_a_manifest(server: RegistryServer, built: ImageOnDisk) -> None:
    """As a build makes them, in whatever order; twice the same is once."""
    manifest = built.manifest_path.read_bytes()
    with Registry(server.host, sleep=Rests()) as registry, uploads(registry, server.host) as pushing:
        for layer in (*reversed(built.layers), built.layers[0]):
            pushing.submit(layer.digest, layer.path)
        pushing.submit(built.config_digest, built.config_path)
        pushed = pushing.finish(manifest, ["v1"])

    assert is_whole(server, "team/app", built)
    assert [blob.digest for blob in pushed.blobs] == [
        *(layer.digest for layer in reversed(built.layers)),
        built.config_digest,
    ]


def test_a_manifest_of_blobs_that_nobody_sent_is_not_put(server: RegistryServer, built: ImageOnDisk) -> None:
    with Registry(server.host, sleep=Rests()) as registry, uploads(registry, server.host) as pushing:
        pushing.submit(built.config_digest, built.config_path)
        with pytest.raises(VerificationFailed, match=f"were not sent: .*{built.layers[0].digest}"):
            pushing.finish(built.manifest_path.read_bytes(), ["v1"])

    assert server.repository("team/app").manifests == {}


@pytest.mark.parametrize("change", ["gone", "short"])
def test_a_layer_that_is_not_in_the_layout_is_told_at_once(
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


def test_one_that_fails_ends_the_others(proxy: FaultProxy, built: ImageOnDisk) -> None:
    """Though these wait for a server that says nothing, and would for two minutes."""
    proxy.faults = [Fault("stall", "PATCH"), Fault("status", "PATCH", status=403, times=1000)]

    with ThreadPoolExecutor(1, "test") as pool:
        error = pool.submit(push_to, proxy.host, "team/app", built).exception(timeout=300)

    assert isinstance(error, RegistryError)
    assert "access denied" in error.message
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("push")]


def test_who_is_stopped_asks_nothing_more(server: RegistryServer) -> None:
    registry = Registry(server.host)
    registry.check()
    registry.stop()

    with pytest.raises(Stopped):
        registry.check()
    with pytest.raises(Stopped):
        registry.sleep(3600)


def test_sizes_are_of_both_kinds() -> None:
    """Else the tests above would not show what they say."""
    assert min(SIZES.values()) < 1 << 20 < max(SIZES.values())
