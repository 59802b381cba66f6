"""Pushes to docker-registry and crane through a proxy, with faults at points drawn from a seed.

In every case, either the image is complete, byte for byte, or an error is reported and no tag is set.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.crane import each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.pushing import SIZES, Rests, has_all, image, push_to
from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.credentials import Login
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


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a repository that no other test uses."""
    return f"faults/{tmp_path.name.lower().replace('_', '-').strip('-')}-{os.getpid()}"


@pytest.fixture
def built(tmp_path: Path) -> ImageOnDisk:
    """An image with blobs that no other test pushes."""
    sizes = {f"{tmp_path} {SEED} {title}": size for title, size in SIZES.items()}
    return image(tmp_path, "v1", sizes, labels=str(tmp_path))


@pytest.fixture
def proxy(registry: RunningRegistry) -> Iterator[FaultProxy]:
    with FaultProxy(registry.host) as found:
        yield found


def is_complete(registry: RunningRegistry, name: str, built: ImageOnDisk) -> bool:
    """Whether the tag exists, and each of the image's blobs matches its digest."""
    assert registry.tags(name) == ["v1"]
    return has_all(registry, name, built)


def test_a_connection_cut_in_a_blob(
    registry: RunningRegistry, proxy: FaultProxy, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    proxy.faults = [Fault("cut", "PATCH", skip=draw.randrange(2), at=draw.randrange(1_400_000), times=2)]

    pushed = push_to(proxy.host, name, built)

    assert is_complete(registry, name, built)
    assert pushed.count("sent") == 4
    assert any(request.method == "PATCH" and request.status == 0 for request in proxy.requests)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 500), ("POST", 502), ("PATCH", 503), ("PUT", 500)])
def test_temporary_errors_of_a_server(
    registry: RunningRegistry,
    proxy: FaultProxy,
    name: str,
    built: ImageOnDisk,
    draw: random.Random,
    method: str,
    status: int,
) -> None:
    most = ATTEMPTS - 1
    proxy.faults = [
        Fault("status", method, status=status, skip=draw.randrange(2), times=draw.randint(1, most))
    ]

    push_to(proxy.host, name, built)

    assert is_complete(registry, name, built)
    assert status in [request.status for request in proxy.requests]


@pytest.mark.parametrize("path", [UPLOAD, BLOB, MANIFEST])
def test_lost_responses(
    registry: RunningRegistry,
    proxy: FaultProxy,
    name: str,
    built: ImageOnDisk,
    draw: random.Random,
    path: str,
) -> None:
    """If the registry has received a blob, but the response is lost, the blob is not sent again."""
    proxy.faults = [Fault("unanswered", path=path, skip=draw.randrange(4), times=draw.randint(1, 3))]

    push_to(proxy.host, name, built)

    assert is_complete(registry, name, built)
    assert proxy.counted("PUT", "digest=") == 4


def test_too_many_requests(
    registry: RunningRegistry, proxy: FaultProxy, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    """The push waits as long as the server's Retry-After, but at most half a minute."""
    first, second = draw.randint(2, 8), 86400
    proxy.faults = [
        Fault("status", skip=draw.randrange(6), status=429, headers={"Retry-After": str(first)}),
        Fault("status", skip=draw.randrange(6), status=429, headers={"Retry-After": str(second)}),
    ]
    rests = Rests()

    push_to(proxy.host, name, built, rests=rests)

    assert sorted(rests.seconds) == [first, 30]
    assert is_complete(registry, name, built)


def test_slow_answers(
    registry: RunningRegistry, proxy: FaultProxy, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    proxy.faults = [Fault("slow", skip=draw.randrange(8), times=3)]
    rests = Rests()

    push_to(proxy.host, name, built, rests=rests)

    assert is_complete(registry, name, built)
    assert rests.seconds == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", UPLOAD), ("HEAD", BLOB), ("PUT", f"{MANIFEST}sha256"), ("PUT", f"{MANIFEST}v1")],
)
def test_a_wrong_digest_is_reported(
    registry: RunningRegistry,
    proxy: FaultProxy,
    name: str,
    built: ImageOnDisk,
    draw: random.Random,
    method: str,
    path: str,
) -> None:
    """No tag is set, unless the wrong digest is in the response to the request that sets the tag."""
    if method == "HEAD":
        push_to(proxy.host, name, built, tags=())
    several = 4 if "blobs" in path else 1
    proxy.faults = [Fault("digest", method, path, skip=draw.randrange(several))]

    with pytest.raises(RegistryError, match=f"the registry received sha256:{'f' * 64}, not sha256:"):
        push_to(proxy.host, name, built)

    assert registry.tags(name) == (["v1"] if path.endswith("v1") else [])


def test_a_server_that_goes_down_during_a_push(
    registry: RunningRegistry, proxy: FaultProxy, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    """All requests fail from a random request on: no tag is set, and the next push succeeds."""
    push_to(proxy.host, f"{name}-first", built)  # crane's registry shares blobs between repositories
    counter = Fault("status", skip=1_000_000)  # counts requests on arrival; the proxy records them later
    proxy.faults = [counter]
    push_to(proxy.host, f"{name}-counted", built)
    needed = 1_000_000 - counter.skip
    for skip in sorted(draw.sample(range(needed), 5)):
        proxy.faults = [Fault("status", skip=skip, status=503, times=1_000_000)]
        fresh = f"{name}-{skip}"

        with pytest.raises(RegistryError, match=r"HTTP 503 \([36] attempts\)"):
            push_to(proxy.host, fresh, built)
        assert registry.tags(fresh) == [], f"request {skip} of {needed}"

        proxy.faults = []
        push_to(proxy.host, fresh, built)
        assert is_complete(registry, fresh, built)


def test_a_token_that_expires_in_the_middle(
    registry: RunningRegistry, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    """The push gets a new token, also for a PATCH, whose body it must send again."""
    with FaultProxy(registry.host, {LOGIN.user: LOGIN.password}) as proxy:
        proxy.lives = draw.randint(4, 6)  # an attempt needs 3 before its PATCH

        push_to(proxy.host, name, built, login=LOGIN)

        assert is_complete(registry, name, built)
        assert len(proxy.fetched) > 1
        assert proxy.counted("GET", "/token") == len(proxy.fetched)


def test_an_expired_token_is_not_used(registry: RunningRegistry, name: str, built: ImageOnDisk) -> None:
    """The response with the token states its lifetime; after that, the push requests a new token."""
    with FaultProxy(registry.host, {LOGIN.user: LOGIN.password}) as proxy:
        proxy.token_lifetime = 1e-6  # type: ignore[assignment]

        push_to(proxy.host, name, built, login=LOGIN)

        assert is_complete(registry, name, built)
        refused = [request for request in proxy.requests if request.status == 401]
        assert [item.path for item in refused] == ["/v2/"]


@pytest.mark.parametrize(
    ("login", "message"),
    [(None, "without a login"), (Login(user="kim", password="wrong-passw0rd"), "for kim")],
)
def test_a_user_without_push_permission_gets_an_error(
    registry: RunningRegistry, name: str, built: ImageOnDisk, login: Login | None, message: str
) -> None:
    """The error names the user, but does not show the password."""
    with (
        FaultProxy(registry.host, {LOGIN.user: LOGIN.password}) as proxy,
        pytest.raises(RegistryError, match=message) as error,
    ):
        push_to(proxy.host, name, built, login=login)

    assert f"docker login {proxy.host}" in error.value.hint
    assert "passw0rd" not in f"{error.value.message}{error.value.hint}"
    assert registry.tags(name) == []


def test_a_damaged_blob_is_never_completed(
    registry: RunningRegistry, proxy: FaultProxy, name: str, built: ImageOnDisk, draw: random.Random
) -> None:
    """One byte differs, in any of the layers."""
    layer = draw.choice(built.layers)
    data = bytearray(layer.path.read_bytes())
    data[draw.randrange(len(data))] ^= 1
    layer.path.chmod(0o644)
    layer.path.unlink()  # other hard links exist
    layer.path.write_bytes(data)

    with pytest.raises(VerificationFailed, match="checksum mismatch"):
        push_to(proxy.host, name, built)

    assert registry.content(name, layer.digest) == b""
    assert not any(
        "digest=" in request.path and layer.digest[7:] in request.path for request in proxy.requests
    )
    assert registry.tags(name) == []
