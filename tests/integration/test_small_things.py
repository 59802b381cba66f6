"""What people notice at a prompt; and what nobody may find in an image."""

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
from tests.outward import outward
from tests.workplace import IMAGE, TAG, Container, Workplace
from torchkiln.registry.reference import is_local
from torchkiln.store.root import cache_root

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base


def typed(container: Container, lines: str, *options: str) -> str:
    """What an interactive bash on a terminal shows when *lines* are typed into it."""
    shell = f"docker exec -it {' '.join(options)} {container.name} bash"
    argv = ["script", "--quiet", "--return", "--command", shell, "/dev/null"]
    done = subprocess.run(
        argv,
        input=f"{lines}\nexit\nexit\n",  # the second: where a line began another shell
        env={**container.environ, "TERM": "xterm"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.stdout


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    with workplace.started("-e", "TZ=Asia/Tokyo", command=["sleep", "900"]) as found:
        yield found


def test_the_first_screen(container: Container) -> None:
    """Build facts, the driver's state, the tag in the prompt, colours; and once, not in each shell below."""
    seen = typed(container, "bash")

    assert seen.count("PyTorch 2.6.0+cu124 for CUDA 12.1 (built with 12.4), cuDNN 9.1.0.70") == 1
    assert "warning: no GPU was passed to this container: add --gpus all" in seen
    assert f"root@{TAG.removesuffix('-cudnn9-runtime')}\x1b[0m:\x1b[1;34m/workspace" in seen
    assert "touch ~/.hushlogin" not in seen


def test_who_wants_no_greeting(container: Container) -> None:
    container.inside("touch", "/root/.hushlogin")
    seen = typed(container, "true")
    container.inside("rm", "/root/.hushlogin")

    assert "PyTorch" not in seen


@pytest.mark.parametrize("uid", ["0", "1000", "12345"])
def test_the_usual_comforts(container: Container, uid: str) -> None:
    """Aliases, colours, a name: of any user, though `docker exec` passes the entrypoint by."""
    lines = (
        "cd /tmp; mkdir -p a$UID/b; ll a$UID; whoami; echo $LESS $LANG é; [ -w $HOME ] && echo at home;"
        " git init -q g$UID; touch g$UID/x; git -C g$UID status"
    )
    seen, name = typed(container, lines, "--user", uid), "root" if uid == "0" else "user"

    assert re.search(r"drwx\S+ +2 \w+ \w+ +4096 .*\x1b\[01;34mb\x1b\[0m/", seen)
    assert re.search(rf"^{name}$", seen, re.MULTILINE)
    assert f"{name}@{TAG[:5]}" in seen
    assert "\x1b[31mx\x1b[m" in seen  # git's red for what it does not know
    assert "-R C.UTF-8 é" in seen
    assert "at home" in seen


def test_git_completes(container: Container) -> None:
    """Not the word `complete`, but what it is for."""
    asked = "_completion_loader git; COMP_WORDS=(git chec); COMP_CWORD=1; COMP_LINE='git chec'; COMP_POINT=8;"
    seen = container.inside("bash", "-ic", f"{asked} __git_wrap__git_main; echo ${{COMPREPLY[@]}}")

    assert "checkout" in seen


def test_the_time_zone(container: Container) -> None:
    assert container.inside("date", "+%Z").strip() == "JST"
    assert container.inside("python", "-c", "import time; print(time.tzname[0])").strip() == "JST"


@pytest.mark.parametrize("place", ["/usr/bin", "/usr/local/nvidia/bin"])
def test_nvidia_smi_where_runtimes_mount_it(workplace: Workplace, shared: Path, place: str) -> None:
    program = shared / "nvidia-smi"
    program.write_text("#!/bin/sh\necho seen\n")
    program.chmod(0o755)
    mounted = ("--volume", f"{program}:{place}/nvidia-smi:ro")

    assert workplace.run(*mounted, command=["nvidia-smi"]).stdout == "seen\n"
    assert workplace.run(*mounted, command=["bash", "-lc", "nvidia-smi"]).stdout == "seen\n"


def test_apt_and_pip_work_at_once(workplace: Workplace, shared: Path) -> None:
    """Lists come on demand; from the archive's own address."""
    script = "apt-get -q update && apt-get -qy install file && file -b /bin/sh && pip download -q pip"
    ran = workplace.run(*outward(shared), command=["sh", "-c", script])

    assert ran.returncode == 0, ran.stderr
    assert "symbolic link to dash" in ran.stdout


def test_nothing_of_the_builder_is_in_it(workplace: Workplace, tmp_path: Path) -> None:
    """No mirror, index, proxy, certificate or place of this machine, in any file or setting of the image."""
    saved, marks, found, read = tmp_path / "image.tar", traces(), [], 0
    subprocess.run(["docker", "save", "-o", saved, IMAGE], env=dict(workplace.environ), check=True)
    with tarfile.open(saved) as image:
        for name, data in blobs(image):
            read += len(data)
            found += [f"{name}: {around(data, mark)}" for mark in marks if mark in data]

    assert (marks != [], read > 500_000_000) == (True, True)
    assert found == []


def blobs(image: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Each document of *image*, and each layer as the tar that it is; in pieces that overlap.

    Whole ones would stay in this process's peak memory, which programs that later tests start inherit.
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
    """*mark* and what stands beside it."""
    at = data.index(mark)
    return data[max(0, at - 80) : at + 80]


def _public() -> set[str]:
    """Hosts that stand in the tools themselves, for everybody: pip's own index, mmdebstrap's archive."""
    usual = {PyPI.netloc, PyPI.file_storage_domain}
    program = Path(shutil.which("mmdebstrap") or "/usr/bin/mmdebstrap").read_text(encoding="utf-8")
    return usual | set(re.findall(r"mirror\s*=\s*'https?://([^/']+)", program))


def traces() -> list[bytes]:
    """What would tell on this machine: hosts of its settings, its places, a line of its own CA."""
    words = {str(Path(__file__).parents[2]), str(cache_root())}
    settings = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    told = (value for name, value in os.environ.items() if re.search("(?i)proxy|mirror|index", name))
    for text in (settings, *told):
        words |= set(re.findall(r"://(?:[^/@\s]*@)?([^/:\s'\"]+)", text))
    found = [word.encode() for word in words - _public() if not is_local(word)]
    if bundle := os.environ.get("SSL_CERT_FILE"):
        usual = b"".join(path.read_bytes() for path in Path("/usr/share/ca-certificates").rglob("*.crt"))
        lines = Path(bundle).read_bytes().splitlines()
        found += [line for line in lines if len(line) == 64 and line not in usual][1:2]
    return found
