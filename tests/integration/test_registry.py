"""`publish` and the push below it, to docker-registry and to crane; read back by skopeo, crane and Docker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.needs import tool
from tests.pushing import SIZES, digests, has_all, image, push_to
from tests.roots import tiny_root
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.places import ROOT
from torchkiln.store import Store

__all__ = ["each_registry"]

OVERRIDE = ("--override", "a test")


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A layout, a cache and a Docker configuration of one test's own."""

    folder: Path

    def command(self, *arguments: str) -> list[str]:
        """What a user types."""
        python = str(ROOT / ".venv/bin/python")
        return [python, str(ROOT / "build.py"), "publish", *arguments, "--output", str(self.folder / "dist")]

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "TORCHKILN_CACHE": str(self.folder / "cache"),
            "DOCKER_CONFIG": str(self.folder / "docker"),
        }

    def publish(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Its end."""
        return subprocess.run(
            self.command(*arguments), env=self.environ, capture_output=True, text=True, check=False
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(folder=tmp_path)


@pytest.fixture
def built(tmp_path: Path) -> ImageOnDisk:
    return image(tmp_path, "v1", {f"{tmp_path} {title}": size for title, size in SIZES.items()})


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A repository that no other test has."""
    return f"team/{tmp_path.name.lower().replace('_', '-').strip('-')}"


@pytest.fixture
def proxy(registry: RunningRegistry) -> Iterator[FaultProxy]:
    """Breaks nothing unless it is told to; counts."""
    with FaultProxy(registry.host) as found:
        yield found


def test_the_reference_is_the_answer(
    registry: RunningRegistry, desk: Desk, built: ImageOnDisk, name: str
) -> None:
    """On stdout, by digest; all else is talk."""
    ran = desk.publish("v1", "--to", f"{registry.host}/{name}", *OVERRIDE)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{registry.host}/{name}@{built.manifest}\n"
    assert "publishing without the gate: a test\n" in ran.stderr
    assert "4 blobs (4 sent, 0 mounted, 0 there)" in ran.stderr
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


def test_the_answer_as_json(registry: RunningRegistry, desk: Desk, built: ImageOnDisk, name: str) -> None:
    to = ("--to", f"{registry.host}/{name}")
    ran = desk.publish("v1", *to, *OVERRIDE, "--json", "--quiet", "--tag", "a", "--tag", "b")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)

    sizes = {digest: path.stat().st_size for digest, path in digests(built).items()}
    del sizes[built.manifest]
    assert told["reference"] == f"{registry.host}/{name}@{built.manifest}"
    assert (told["image"], told["tags"], told["override"]) == ("v1", ["a", "b"], "a test")
    assert told["bytes_sent"] == sum(sizes.values())
    assert {one["digest"]: (one["size"], one["how"], one["sent"]) for one in told["blobs"]} == {
        digest: (size, "sent", size) for digest, size in sizes.items()
    }
    assert registry.tags(name) == ["a", "b"]


def test_nothing_is_published_that_nobody_answers_for(
    registry: RunningRegistry, desk: Desk, built: ImageOnDisk, name: str
) -> None:
    ran = desk.publish("v1", "--to", f"{registry.host}/{name}")

    assert (ran.returncode, ran.stdout) == (7, "")
    assert "that the gate has not cleared" in ran.stderr
    assert "v1: not cleared" in ran.stderr
    assert registry.tags(name) == []


def test_a_sibling_sends_no_byte_of_a_layer(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str, tmp_path: Path
) -> None:
    """Counted on the way: its own config, and nothing else."""
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


@pytest.mark.parametrize("known", ["remembered", "named"])
def test_a_neighbours_blobs_are_mounted(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str, tmp_path: Path, known: str
) -> None:
    """From where this cache pushed them before, or from where the user says."""
    store = Store(tmp_path / "cache") if known == "remembered" else None
    push_to(proxy.host, name, built, store=store)
    before = proxy.blob_bytes()

    sources = () if store else ("team/nobody", name)
    pushed = push_to(proxy.host, f"{name}-2", built, store=store, mount_from=sources[1:])

    assert proxy.blob_bytes() == before
    assert (pushed.count("mounted" if registry.apart else "there"), pushed.bytes_sent) == (4, 0)
    assert {blob.source for blob in pushed.blobs} == ({name} if registry.apart else {""})
    assert registry.tags(f"{name}-2") == ["v1"]


def test_a_neighbour_that_has_them_not_costs_nothing(
    registry: RunningRegistry, proxy: FaultProxy, built: ImageOnDisk, name: str
) -> None:
    """The registry begins an upload instead of the mount, and it is used."""
    pushed = push_to(proxy.host, name, built, mount_from=["team/nobody"])

    assert pushed.count("sent") == 4
    assert proxy.counted("POST") == 4
    assert registry.tags(name) == ["v1"]


def test_skopeo_gets_the_same_bytes(
    registry: RunningRegistry, desk: Desk, built: ImageOnDisk, name: str, tmp_path: Path
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


def test_crane_finds_nothing_wrong_until_something_is(
    registry: RunningRegistry, crane: RunningCrane, built: ImageOnDisk, name: str
) -> None:
    """Its client computes every digest anew, of what layers inflate to as well."""
    push_to(registry.host, name, built)
    argv = [crane.program, "validate", "--remote", f"{registry.host}/{name}:v1"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0

    blob = registry.blob(built.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


def test_docker_pulls_and_runs_it(
    registry: RunningRegistry, engine: Mapping[str, str], desk: Desk, name: str, tmp_path: Path
) -> None:
    """An image of a shell and little else."""
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
    """An image that a container can run, in the registry; its reference by digest."""
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_though_the_registry_is_silent(
    registry: RunningRegistry,
    proxy: FaultProxy,
    desk: Desk,
    built: ImageOnDisk,
    name: str,
    number: signal.Signals,
    code: int,
) -> None:
    """While all threads send to a server that reads nothing, which would be given two minutes each."""
    proxy.faults = [Fault("stall", "PATCH|PUT", times=100)]
    argv = desk.command("v1", "--to", f"{proxy.host}/{name}", *OVERRIDE)
    with subprocess.Popen(
        argv, env=desk.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert proxy.stalled.wait(60)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()

    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert registry.tags(name) == []

    proxy.faults = []
    assert desk.publish("v1", "--to", f"{proxy.host}/{name}", *OVERRIDE).returncode == 0
    assert registry.tags(name) == ["v1"]


def test_a_killed_push_leaves_no_tag_and_is_gone_on_with(
    registry: RunningRegistry, proxy: FaultProxy, desk: Desk, built: ImageOnDisk, name: str
) -> None:
    """What got there whole is not sent again."""
    proxy.faults = [Fault("stall", "PUT", path="digest=", skip=2)]
    argv = desk.command("v1", "--to", f"{proxy.host}/{name}", "--jobs", "1", *OVERRIDE)
    with subprocess.Popen(argv, env=desk.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert proxy.stalled.wait(60)
        process.kill()
    assert registry.tags(name) == []

    again = desk.publish("v1", "--to", f"{proxy.host}/{name}", "--json", *OVERRIDE)

    told = json.loads(again.stdout)
    assert (told["there"], told["sent"]) == (2, 2)
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("v1", "--to", "team/app"), 2, "names no registry"),
        (("v1", "--to", "{host}/team/app:v2"), 2, "without tag and digest"),
        (("v1", "--to", "{host}/team/app", "--tag", "a b"), 2, "'a b' is no tag"),
        (("v9", "--to", "{host}/team/app"), 2, "no image is called 'v9'"),
        (("--to", "{host}/team/app"), 2, "which image?"),
        (("v1", "--to", "127.0.0.1:9/team/app"), 9, "nobody listens there, 3 times in a row"),
    ],
)
def test_slips_are_told(
    registry: RunningRegistry,
    desk: Desk,
    built: ImageOnDisk,
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    ran = desk.publish(*(word.format(host=registry.host) for word in arguments), *OVERRIDE)

    assert (ran.returncode, ran.stdout) == (code, "")
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
