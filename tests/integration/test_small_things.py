"""The shell prompt of a container, and traces of the build machine that an image must not contain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from isal import igzip
from pip._internal.models.index import PyPI

from tests.engine.place import shared
from tests.integration.test_articles import on_a_terminal
from tests.needs import outward
from tests.workplace import IMAGE, TAG, Container, Workplace
from torchkiln.registry.reference import is_local
from torchkiln.store.store import cache_root

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base


def typed(container: Container, lines: str, *options: str) -> str:
    """The output of an interactive bash on a terminal for the typed *lines*."""
    shell = f"docker exec -it {' '.join(options)} {container.name} bash"
    # The second `exit` ends a shell that one of the lines started.
    return on_a_terminal(shell, container.environ, f"{lines}\nexit\nexit\n")


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    with workplace.started("-e", "TZ=Asia/Tokyo", command=["sleep", "900"]) as found:
        yield found


def test_the_first_screen(container: Container) -> None:
    """Versions, the driver's state, and a prompt with tag and colours; subshells do not repeat them."""
    screen = typed(container, "bash")

    assert screen.count("PyTorch 2.6.0+cu124 for CUDA 12.1 (built with 12.4), cuDNN 9.1.0.70") == 1
    assert "warning: no GPU was passed to this container: add --gpus all" in screen
    assert f"root@{TAG.removesuffix('-cudnn9-runtime')}\x1b[0m:\x1b[1;34m/workspace" in screen
    assert "touch ~/.hushlogin" not in screen


def test_without_greeting(container: Container) -> None:
    container.inside("touch", "/root/.hushlogin")
    screen = typed(container, "true")
    container.inside("rm", "/root/.hushlogin")

    assert "PyTorch" not in screen


@pytest.mark.parametrize("uid", ["0", "1000", "12345"])
def test_usual_conveniences_of_a_shell(container: Container, uid: str) -> None:
    """Every user has aliases, colours and a name, although `docker exec` does not run the entrypoint."""
    lines = (
        "cd /tmp; mkdir -p a$UID/b; ll a$UID; whoami; echo $LESS $LANG é; [ -w $HOME ] && echo at home;"
        " git init -q g$UID; touch g$UID/x; git -C g$UID status"
    )
    screen, name = typed(container, lines, "--user", uid), "root" if uid == "0" else "user"

    assert re.search(r"drwx\S+ +2 \w+ \w+ +4096 .*\x1b\[01;34mb\x1b\[0m/", screen)
    assert re.search(rf"^{name}$", screen, re.MULTILINE)
    assert f"{name}@{TAG[:5]}" in screen
    assert "\x1b[31mx\x1b[m" in screen  # git's red for untracked files
    assert "-R C.UTF-8 é" in screen
    assert "at home" in screen


def test_git_completes(container: Container) -> None:
    """Tab completes a git command: the test checks the result, not only that a completion is defined."""
    script = (
        "_completion_loader git; COMP_WORDS=(git chec); COMP_CWORD=1; COMP_LINE='git chec'; COMP_POINT=8;"
    )
    screen = container.inside("bash", "-ic", f"{script} __git_wrap__git_main; echo ${{COMPREPLY[@]}}")

    assert "checkout" in screen


def test_the_time_zone(container: Container) -> None:
    assert container.inside("date", "+%Z").strip() == "JST"
    assert container.inside("python", "-c", "import time; print(time.tzname[0])").strip() == "JST"


@pytest.mark.parametrize("place", ["/usr/bin", "/usr/local/nvidia/bin"])
def test_nvidia_smi_in_the_folders_of_runtimes(workplace: Workplace, shared: Path, place: str) -> None:
    program = shared / "nvidia-smi"
    program.write_text("#!/bin/sh\necho seen\n")
    program.chmod(0o755)
    mounted = ("--volume", f"{program}:{place}/nvidia-smi:ro")

    assert workplace.run(*mounted, command=["nvidia-smi"]).stdout == "seen\n"
    assert workplace.run(*mounted, command=["bash", "-lc", "nvidia-smi"]).stdout == "seen\n"


def test_apt_and_pip_work_at_once(workplace: Workplace, shared: Path) -> None:
    """Both work without preparation; package lists are downloaded from the archive's real URL."""
    script = "apt-get -q update && apt-get -qy install file && file -b /bin/sh && pip download -q pip"
    ran = workplace.run(*outward(shared), command=["sh", "-c", script])

    assert ran.returncode == 0, ran.stderr
    assert "symbolic link to dash" in ran.stdout


def test_the_image_contains_nothing_of_the_builder(workplace: Workplace, tmp_path: Path) -> None:
    """No mirror, index, proxy, certificate or path of this machine is in any file or setting of the image."""
    saved, marks, found, read = tmp_path / "image.tar", traces(), [], 0
    subprocess.run(["docker", "save", "-o", saved, IMAGE], env=dict(workplace.environ), check=True)
    with tarfile.open(saved) as image:
        for name, data in blobs(image):
            read += len(data)
            found += [f"{name}: {around(data, mark)}" for mark in marks if mark in data]

    assert (marks != [], read > 500_000_000) == (True, True)
    assert found == []


def blobs(image: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Each JSON file of *image*, and each layer as an uncompressed tar, in overlapping pieces.

    Complete blobs would raise the peak memory of this process, which programs of later tests inherit.
    """
    for blob in image:
        file = image.extractfile(blob) if blob.isfile() else None
        if file is None:
            continue
        layer = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream, before = igzip.open(file) if layer else file, b""
        while piece := stream.read(16 << 20):
            yield blob.name, before + piece
            before = piece[-200:]


def around(data: bytes, mark: bytes) -> bytes:
    """*mark* and its surroundings."""
    at = data.index(mark)
    return data[max(0, at - 80) : at + 80]


def _public() -> set[str]:
    """The public hosts that are built into the tools: pip's index and mmdebstrap's archive."""
    usual = {PyPI.netloc, PyPI.file_storage_domain}
    program = Path(shutil.which("mmdebstrap") or "/usr/bin/mmdebstrap").read_text(encoding="utf-8")
    return usual | set(re.findall(r"mirror\s*=\s*'https?://([^/']+)", program))


def traces() -> list[bytes]:
    """Texts that would identify this machine: hosts in its settings, its paths, a line of its CA bundle."""
    words = {f"{Path(__file__).parents[2]}/", f"{cache_root()}/"}  # /tmp/f is also in /tmp/foo
    settings = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    values = (value for name, value in os.environ.items() if re.search("(?i)proxy|mirror|index", name))
    for text in (settings, *values):
        words |= set(re.findall(r"://(?:[^/@\s]*@)?([^/:\s'\"]+)", text))
    found = [word.encode() for word in words - _public() if not is_local(word)]
    if bundle := os.environ.get("SSL_CERT_FILE"):
        usual = b"".join(path.read_bytes() for path in Path("/usr/share/ca-certificates").rglob("*.crt"))
        lines = Path(bundle).read_bytes().splitlines()
        found += [line for line in lines if len(line) == 64 and line not in usual][1:2]
    return found
