"""`publish` and the push below it, to docker-registry and to crane; read back by skopeo, crane and Docker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.engine.crane import RunningCrane, each_registry
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.needs import tool
from tests.press import Press, press
from tests.pushing import SIZES, digests, has_all, image, push_to
from tests.reports import TAG
from tests.roots import tiny_root
from torchkiln.errors import GateRefused, KilnError
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.store.store import Store

__all__ = ["each_registry"]

OVERRIDE, V1 = ("--override", "a test"), ("--tag", "v1")


@pytest.fixture
def desk(tmp_path: Path) -> Press:
    return press(tmp_path / "desk")


def publishing(desk: Press, host: str, name: str, *more: str) -> list[str]:
    """`publish TAG --to HOST/NAME` under the one tag v1, whatever the gate says."""
    return desk.command(
        *desk.publishing(f"{host}/{name}", *OVERRIDE, *(() if "--tag" in more else V1), *more)
    )


def published(desk: Press, host: str, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Its end."""
    argv = publishing(desk, host, name, *more)
    return subprocess.run(argv, env=desk.settings, capture_output=True, text=True, check=False)


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


def test_the_reference_is_the_answer(registry: RunningRegistry, desk: Press, name: str) -> None:
    """On stdout, by digest; all else is talk."""
    built = desk.build()
    ran = published(desk, registry.host, name)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{registry.host}/{name}@{built.manifest}\n"
    assert "warning: publishing with --override: a test\n" in ran.stderr
    count = len(built.layers) + 1
    assert f"{count} blobs ({count} sent, 0 mounted, 0 there already)" in ran.stderr
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


def test_the_answer_as_json(registry: RunningRegistry, desk: Press, name: str) -> None:
    built = desk.build()
    ran = published(desk, registry.host, name, "--json", "--quiet", "--tag", "a", "--tag", "b")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)

    sizes = {digest: path.stat().st_size for digest, path in digests(built).items()}
    del sizes[built.manifest]
    assert told["reference"] == f"{registry.host}/{name}@{built.manifest}"
    assert (told["image"], told["tags"], told["override"]) == (TAG, ["a", "b"], "a test")
    assert told["bytes_sent"] == sum(sizes.values())
    assert {one["digest"]: (one["size"], one["how"], one["sent"]) for one in told["blobs"]} == {
        digest: (size, "sent", size) for digest, size in sizes.items()
    }
    assert registry.tags(name) == ["a", "b"]


def test_nothing_is_published_that_is_not_proved(registry: RunningRegistry, desk: Press, name: str) -> None:
    desk.build()
    done = desk.publish(f"{registry.host}/{name}")

    assert isinstance(done.exception, GateRefused)
    assert ("import", "no report has it: it did not run") in done.exception.missing
    assert done.stdout == ""
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
    registry: RunningRegistry, engine: Mapping[str, str], name: str, tmp_path: Path
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
    desk: Press,
    name: str,
    number: signal.Signals,
    code: int,
) -> None:
    """While all threads send to a server that reads nothing, which would be given two minutes each."""
    proxy.faults = [Fault("stall", "PATCH|PUT", times=100)]
    desk.build()
    argv = publishing(desk, proxy.host, name)
    with subprocess.Popen(
        argv, env=desk.settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert proxy.stalled.wait(300)
            process.send_signal(number)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()

    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert registry.tags(name) == []

    proxy.faults = []
    assert published(desk, proxy.host, name).returncode == 0
    assert registry.tags(name) == ["v1"]


def test_a_killed_push_leaves_no_tag_and_is_gone_on_with(
    registry: RunningRegistry, proxy: FaultProxy, desk: Press, name: str
) -> None:
    """What got there whole is not sent again."""
    proxy.faults = [Fault("stall", "PUT", path="digest=", skip=2)]
    built = desk.build()
    argv = publishing(desk, proxy.host, name, "--jobs", "1")
    with subprocess.Popen(argv, env=desk.settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert proxy.stalled.wait(300)
        process.kill()
    assert registry.tags(name) == []

    again = published(desk, proxy.host, name, "--json")

    told = json.loads(again.stdout)
    assert (told["there"], told["sent"]) == (2, len(built.layers) - 1)
    assert registry.tags(name) == ["v1"]
    assert has_all(registry, name, built)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((TAG, "--to", "team/app"), 2, "no registry in the reference"),
        ((TAG, "--to", "127.0.0.1:9/team/app:v2"), 2, "neither tag nor digest"),
        ((TAG, "--to", "127.0.0.1:9/team/app", "--tag", "a b"), 2, "invalid tag 'a b'"),
        (("v9", "--to", "127.0.0.1:9/team/app"), 2, "no such image: 'v9'"),
        (("--to", "127.0.0.1:9/team/app"), 2, "no image is named"),
        ((TAG, "--to", "127.0.0.1:9/team/app"), 9, "connection refused (3 attempts)"),
    ],
)
def test_slips_are_told(desk: Press, arguments: tuple[str, ...], code: int, told: str) -> None:
    desk.build()
    ran = desk.run("publish", *arguments, *desk.here, *OVERRIDE)
    error = ran.exception

    assert (error.exit_code if isinstance(error, KilnError) else ran.exit_code, ran.stdout) == (code, "")
    assert told in (error.message if isinstance(error, KilnError) else ran.stderr)
