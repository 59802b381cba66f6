"""Pushes to docker-registry and crane through a proxy, with faults at points drawn from a seed.

In every case, either the image is complete, byte for byte, or an error is reported and no tag is set.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crane import each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.pushing import SIZES, Rests, has_all, image, push_to
from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.credentials import Login
from torchkiln.registry.push import Pushed
from torchkiln.util.http.retry import ATTEMPTS

__all__ = ["each_registry"]

SEED = int(os.environ.get("TORCHKILN_TEST_SEED") or random.randrange(1 << 30))
LOGIN = Login(user="kim", password="s3cret-and-long")
UPLOAD, BLOB, MANIFEST = "/blobs/uploads/", "/blobs/sha256", "/manifests/"


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """A random generator, seeded by the seed of the run and the test's name. A failure shows the seed."""
    sys.stderr.write(f"TORCHKILN_TEST_SEED={SEED}\n")
    return random.Random(f"{SEED} {request.node.name}")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A registry behind a proxy, an image with blobs that no other test pushes, and a repository for it."""

    registry: RunningRegistry
    proxy: FaultProxy
    name: str
    built: ImageOnDisk

    def push(self, name: str = "", **options: Any) -> Pushed:
        return push_to(self.proxy.host, name or self.name, self.built, **options)

    def is_complete(self, name: str = "") -> bool:
        """Whether the tag exists, and each of the image's blobs matches its digest."""
        assert self.registry.tags(name or self.name) == ["v1"]
        return has_all(self.registry, name or self.name, self.built)


@contextmanager
def scene_in(registry: RunningRegistry, folder: Path, *users: dict[str, str]) -> Iterator[Scene]:
    """A scene; a push needs a login if the proxy has *users*."""
    name = f"faults/{folder.name.lower().replace('_', '-').strip('-')}-{os.getpid()}"
    sizes = {f"{folder} {SEED} {title}": size for title, size in SIZES.items()}
    built = image(folder, "v1", sizes, labels=str(folder))
    with FaultProxy(registry.host, *users) as proxy:
        yield Scene(registry=registry, proxy=proxy, name=name, built=built)


@pytest.fixture
def scene(registry: RunningRegistry, tmp_path: Path) -> Iterator[Scene]:
    with scene_in(registry, tmp_path) as found:
        yield found


@pytest.fixture
def private(registry: RunningRegistry, tmp_path: Path) -> Iterator[Scene]:
    """The proxy demands the login of LOGIN."""
    with scene_in(registry, tmp_path, {LOGIN.user: LOGIN.password}) as found:
        yield found


def test_a_connection_cut_in_a_blob(scene: Scene, draw: random.Random) -> None:
    scene.proxy.faults = [
        Fault("cut", "PATCH", skip=draw.randrange(2), at=draw.randrange(1_400_000), times=2)
    ]

    pushed = scene.push()

    assert scene.is_complete()
    assert pushed.count("sent") == 4
    assert any(request.method == "PATCH" and request.status == 0 for request in scene.proxy.requests)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 500), ("POST", 502), ("PATCH", 503), ("PUT", 500)])
def test_temporary_errors_of_a_server(scene: Scene, draw: random.Random, method: str, status: int) -> None:
    most = ATTEMPTS - 1
    scene.proxy.faults = [
        Fault("status", method, status=status, skip=draw.randrange(2), times=draw.randint(1, most))
    ]

    scene.push()

    assert scene.is_complete()
    assert status in [request.status for request in scene.proxy.requests]


@pytest.mark.parametrize("path", [UPLOAD, BLOB, MANIFEST])
def test_lost_responses(scene: Scene, draw: random.Random, path: str) -> None:
    """If the registry has received a blob, but the response is lost, the blob is not sent again."""
    scene.proxy.faults = [Fault("unanswered", path=path, skip=draw.randrange(4), times=draw.randint(1, 3))]

    scene.push()

    assert scene.is_complete()
    assert scene.proxy.counted("PUT", "digest=") == 4


def test_too_many_requests(scene: Scene, draw: random.Random) -> None:
    """The push waits as long as the server's Retry-After, but at most half a minute."""
    first, second = draw.randint(2, 8), 86400
    scene.proxy.faults = [
        Fault("status", skip=draw.randrange(6), status=429, headers={"Retry-After": str(first)}),
        Fault("status", skip=draw.randrange(6), status=429, headers={"Retry-After": str(second)}),
    ]
    rests = Rests()

    scene.push(rests=rests)

    assert sorted(rests.seconds) == [first, 30]
    assert scene.is_complete()


def test_slow_answers(scene: Scene, draw: random.Random) -> None:
    scene.proxy.faults = [Fault("slow", skip=draw.randrange(8), times=3)]
    rests = Rests()

    scene.push(rests=rests)

    assert scene.is_complete()
    assert rests.seconds == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", UPLOAD), ("HEAD", BLOB), ("PUT", f"{MANIFEST}sha256"), ("PUT", f"{MANIFEST}v1")],
)
def test_a_wrong_digest_is_reported(scene: Scene, draw: random.Random, method: str, path: str) -> None:
    """No tag is set, unless the wrong digest is in the response to the request that sets the tag."""
    if method == "HEAD":
        scene.push(tags=())
    several = 4 if "blobs" in path else 1
    scene.proxy.faults = [Fault("digest", method, path, skip=draw.randrange(several))]

    with pytest.raises(RegistryError, match=f"the registry received sha256:{'f' * 64}, not sha256:"):
        scene.push()

    assert scene.registry.tags(scene.name) == (["v1"] if path.endswith("v1") else [])


def test_a_server_that_goes_down_during_a_push(scene: Scene, draw: random.Random) -> None:
    """All requests fail from a random request on: no tag is set, and the next push succeeds."""
    scene.push(f"{scene.name}-first")  # crane's registry shares blobs between repositories
    counter = Fault("status", skip=1_000_000)  # counts requests on arrival; the proxy records them later
    scene.proxy.faults = [counter]
    scene.push(f"{scene.name}-counted")
    needed = 1_000_000 - counter.skip
    for skip in sorted(draw.sample(range(needed), 5)):
        scene.proxy.faults = [Fault("status", skip=skip, status=503, times=1_000_000)]
        fresh = f"{scene.name}-{skip}"

        with pytest.raises(RegistryError, match=r"HTTP 503 \([36] attempts\)"):
            scene.push(fresh)
        assert scene.registry.tags(fresh) == [], f"request {skip} of {needed}"

        scene.proxy.faults = []
        scene.push(fresh)
        assert scene.is_complete(fresh)


def test_a_token_that_expires_in_the_middle(private: Scene, draw: random.Random) -> None:
    """The push gets a new token, also for a PATCH, whose body it must send again."""
    private.proxy.lives = draw.randint(4, 6)  # an attempt needs 3 before its PATCH

    private.push(login=LOGIN)

    assert private.is_complete()
    assert len(private.proxy.fetched) > 1
    assert private.proxy.counted("GET", "/token") == len(private.proxy.fetched)


def test_an_expired_token_is_not_used(private: Scene) -> None:
    """The response with the token states its lifetime; after that, the push requests a new token."""
    private.proxy.token_lifetime = 1e-6  # type: ignore[assignment]

    private.push(login=LOGIN)

    assert private.is_complete()
    refused = [request for request in private.proxy.requests if request.status == 401]
    assert [item.path for item in refused] == ["/v2/"]


@pytest.mark.parametrize(
    ("login", "message"),
    [(None, "without a login"), (Login(user="kim", password="wrong-passw0rd"), "for kim")],
)
def test_a_user_without_push_permission_gets_an_error(
    private: Scene, login: Login | None, message: str
) -> None:
    """The error names the user, but does not show the password."""
    with pytest.raises(RegistryError, match=message) as error:
        private.push(login=login)

    assert f"docker login {private.proxy.host}" in error.value.hint
    assert "passw0rd" not in f"{error.value.message}{error.value.hint}"
    assert private.registry.tags(private.name) == []


def test_a_damaged_blob_is_never_completed(scene: Scene, draw: random.Random) -> None:
    """One byte differs, in any of the layers."""
    layer = draw.choice(scene.built.layers)
    data = bytearray(layer.path.read_bytes())
    data[draw.randrange(len(data))] ^= 1
    layer.path.chmod(0o644)
    layer.path.unlink()  # other hard links exist
    layer.path.write_bytes(data)

    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        scene.push()

    assert scene.registry.content(scene.name, layer.digest) == b""
    assert not any(
        "digest=" in request.path and layer.digest[7:] in request.path for request in scene.proxy.requests
    )
    assert scene.registry.tags(scene.name) == []
