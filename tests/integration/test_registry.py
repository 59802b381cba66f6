"""`publish` and pushes to docker-registry and crane's registry; skopeo, crane and Docker read the images."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import forked
from tests.engine.crane import RunningCrane, both_registries, each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.needs import tool
from tests.publisher import Publisher, new_publisher
from tests.pushing import SIZES, digests, has_all, image, push_to
from tests.reports import TAG
from tests.roots import tiny_root
from torchkiln.errors import KilnError
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.store.store import Store

__all__ = ["each_registry"]

OVERRIDE, V1 = ("--override", "a test"), ("--tag", "v1")


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return new_publisher(tmp_path / "publisher")


def publishing(publisher: Publisher, host: str, name: str, *more: str) -> list[str]:
    """`publish TAG --to HOST/NAME` under the tag v1, with an override of the gate."""
    return publisher.command(
        *publisher.publishing(f"{host}/{name}", *OVERRIDE, *(() if "--tag" in more else V1), *more)
    )


def published(publisher: Publisher, host: str, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The completed process of `publishing`."""
    return forked.run(publishing(publisher, host, name, *more)[2:], env=publisher.settings)


@pytest.fixture
def built(tmp_path: Path) -> ImageOnDisk:
    return image(tmp_path, "v1", {f"{tmp_path} {title}": size for title, size in SIZES.items()})


@pytest.fixture
def name(tmp_path: Path) -> str:
    """The name of a repository that no other test uses."""
    return f"team/{tmp_path.name.lower().replace('_', '-').strip('-')}"


@pytest.fixture
def proxy(registry: RunningRegistry) -> Iterator[FaultProxy]:
    """A proxy in front of the registry that counts requests. By default, it injects no faults."""
    with FaultProxy(registry.host) as found:
        yield found


def test_publish_prints_the_reference(registry: RunningRegistry, publisher: Publisher, name: str) -> None:
    """The reference with the digest is the only output on stdout; everything else is on stderr."""
    built = publisher.build()
    ran = published(publisher, registry.host, name)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{registry.host}/{name}@{built.manifest}\n"
    assert "warning: publishing with --override: a test\n" in ran.stderr
    count = len(built.layers) + 1
    assert f"{count} blobs ({count} sent, 0 mounted, 0 there already)" in ran.stderr
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


def test_publish_prints_json(registry: RunningRegistry, publisher: Publisher, name: str) -> None:
    built = publisher.build()
    ran = published(publisher, registry.host, name, "--json", "--quiet", "--tag", "a", "--tag", "b")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)

    sizes = {digest: path.stat().st_size for digest, path in digests(built).items()}
    del sizes[built.manifest]
    assert result["reference"] == f"{registry.host}/{name}@{built.manifest}"
    assert (result["image"], result["tags"], result["override"]) == (TAG, ["a", "b"], "a test")
    assert result["bytes_sent"] == sum(sizes.values())
    assert {blob["digest"]: (blob["size"], blob["how"], blob["sent"]) for blob in result["blobs"]} == {
        digest: (size, "sent", size) for digest, size in sizes.items()
    }
    assert registry.tags(name) == ["a", "b"]


def test_a_sibling_sends_no_byte_of_a_layer(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str, tmp_path: Path
) -> None:
    """The sibling has the same layers, so only its config is sent. A proxy counts the bytes."""
    push_to(proxy.host, name, built)
    before = proxy.blob_bytes()
    sibling = image(tmp_path, "v2", {f"{tmp_path} {title}": size for title, size in SIZES.items()})
    assert sibling.layers == built.layers
    assert sibling.config_digest != built.config_digest

    pushed = push_to(proxy.host, name, sibling, tags=["v2"])

    config = sibling.config_path.stat().st_size
    assert before > sum(SIZES.values())
    assert proxy.blob_bytes() - before == pushed.bytes_sent == config
    assert (pushed.count("there"), pushed.count("sent")) == (3, 1)
    assert registry.tags(name) == ["v1", "v2"]


@both_registries
@pytest.mark.parametrize("known", ["remembered", "named"])
def test_blobs_of_another_repository_are_mounted(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str, tmp_path: Path, known: str
) -> None:
    """torchkiln knows the other repository from an earlier push with this cache, or from --mount-from."""
    store = Store(tmp_path / "cache") if known == "remembered" else None
    push_to(proxy.host, name, built, store=store)
    before = proxy.blob_bytes()

    sources = () if store else (name,)
    pushed = push_to(proxy.host, f"{name}-2", built, store=store, mount_from=sources)

    assert proxy.blob_bytes() == before
    assert (pushed.count("mounted" if registry.separate_repositories else "there"), pushed.bytes_sent) == (
        4,
        0,
    )
    assert {blob.source for blob in pushed.blobs} == ({name} if registry.separate_repositories else {""})
    assert registry.tags(f"{name}-2") == ["v1"]


def test_a_repository_without_the_blobs_is_ignored(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str
) -> None:
    """The registry starts an upload instead of the mount, and this upload is used."""
    pushed = push_to(proxy.host, name, built, mount_from=["team/absent"])

    assert pushed.count("sent") == 4
    assert proxy.counted("POST") == 4
    assert registry.tags(name) == ["v1"]


def test_skopeo_gets_the_same_bytes(
    registry: RunningRegistry, built: ImageOnDisk, name: str, tmp_path: Path
) -> None:
    tool("skopeo")
    push_to(registry.host, name, built)
    source, target = f"docker://{registry.host}/{name}:v1", f"oci:{tmp_path}/copy:v1"
    subprocess.run(
        ["skopeo", "copy", "--insecure-policy", "--src-tls-verify=false", source, target],
        check=True,
        capture_output=True,
    )

    copied = open_layout(tmp_path / "copy").image("v1")

    assert {digest: path.read_bytes() for digest, path in digests(copied).items()} == {
        digest: path.read_bytes() for digest, path in digests(built).items()
    }


def test_crane_validates_the_image_and_finds_damage(
    registry: RunningRegistry, crane: RunningCrane, built: ImageOnDisk, name: str
) -> None:
    """crane's client computes every digest again, also those of the uncompressed layers."""
    push_to(registry.host, name, built)
    argv = [crane.program, "validate", "--remote", f"{registry.host}/{name}:v1"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0

    blob = registry.blob(built.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


def test_docker_pulls_and_runs_it(
    registry: RunningRegistry, engine: Mapping[str, str], name: str, tmp_path: Path
) -> None:
    """A small image with a shell."""
    reference = _runnable(tmp_path, registry, name)
    docker = lambda *words: subprocess.run(  # noqa: E731
        ["docker", *words], env=dict(engine), capture_output=True, text=True, check=False
    )
    pulled = docker("pull", "--quiet", reference)
    assert pulled.returncode == 0, pulled.stderr
    try:
        ran = docker("run", "--rm", reference, "cat", "/etc/passwd")
        assert "kim:x:1234" in ran.stdout, ran.stderr
    finally:
        docker("rmi", "--force", reference)


def _runnable(tmp_path: Path, registry: RunningRegistry, name: str) -> str:
    """Push an image that an engine can run; returns its reference by digest."""
    import gzip

    from tests.oci_samples import BlobFolder, plan
    from torchkiln.oci.layout import write_image

    root = tiny_root(tmp_path / "root")
    tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    blobs = BlobFolder(tmp_path / "made")
    layer = blobs.layer("root", tar, pack=lambda data: gzip.compress(data, 1, mtime=0))
    described = plan("tiny", titles=("root",), env=(("PATH", "/bin"),), entrypoint=(), workdir="/")
    write_image(tmp_path / "tiny", described, [layer], blobs.path)
    return push_to(registry.host, name, open_layout(tmp_path / "tiny").image("tiny")).reference


def test_a_signal_stops_a_push_to_a_silent_registry(
    registry: RunningRegistry, proxy: FaultProxy, publisher: Publisher, name: str
) -> None:
    """SIGTERM ends the push, although all threads send to a server that reads nothing for minutes."""
    proxy.faults = [Fault("stall", "PATCH|PUT", times=100)]
    publisher.build()
    argv = publishing(publisher, proxy.host, name)
    with subprocess.Popen(
        argv, env=publisher.settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert proxy.stalled.wait(300)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()

    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err
    assert registry.tags(name) == []


def test_a_killed_push_leaves_no_tag_and_is_resumed(
    registry: RunningRegistry, proxy: FaultProxy, publisher: Publisher, name: str
) -> None:
    """Complete blobs are not sent again."""
    proxy.faults = [Fault("stall", "PUT", path="digest=", skip=2)]
    built = publisher.build()
    argv = publishing(publisher, proxy.host, name, "--jobs", "1")
    with subprocess.Popen(
        argv, env=publisher.settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert proxy.stalled.wait(300)
        process.kill()
    assert registry.tags(name) == []

    again = published(publisher, proxy.host, name, "--json")

    message = json.loads(again.stdout)
    assert (message["there"], message["sent"]) == (2, len(built.layers) - 1)
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


def test_user_errors_are_reported(publisher: Publisher) -> None:
    publisher.build()
    for arguments, code, message in (
        ((TAG, "--to", "team/app"), 2, "invalid reference: it has no registry host"),
        ((TAG, "--to", "127.0.0.1:9/team/app:v2"), 2, "neither tag nor digest"),
        ((TAG, "--to", "127.0.0.1:9/team/app", "--tag", "a b"), 2, "invalid tag 'a b'"),
        (("v9", "--to", "127.0.0.1:9/team/app"), 2, "no such image: 'v9'"),
        (("--to", "127.0.0.1:9/team/app"), 2, "no image given"),
        ((TAG, "--to", "127.0.0.1:9/team/app"), 9, "connection refused (3 attempts)"),
    ):
        ran = publisher.run("publish", *arguments, *publisher.here, *OVERRIDE)
        error = ran.exception
        ours = isinstance(error, KilnError)
        assert (error.exit_code if ours else ran.exit_code, ran.stdout) == (code, ""), arguments
        assert message in (error.message if ours else ran.stderr)
