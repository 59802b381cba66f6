"""The real image, built by each engine, in interactive use: imports of torch, tests that need real wheels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.clients import READY, Client, browsing, output, sessions
from tests.engine.place import shared
from tests.fake_driver import fake_driver
from tests.needs import needs_gcc, nightly, outward, without_gpus
from tests.proof.headline import NAME, TAG
from tests.troubles import Example, demand_output, for_image
from tests.workplace import Container, Workplace, key
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

__all__ = ["shared"]

pytestmark = pytest.mark.proof

VERSION = "2.7.1+cu126"
COMPILED = """
import getpass, os, torch
f = torch.compile(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)
assert torch.allclose(f(torch.randn(1000)), torch.ones(1000), atol=1e-5)
print(getpass.getuser(), os.path.isdir(os.path.join('/tmp', 'torchinductor_user')))
"""


@pytest.fixture(scope="module", params=["embedded", pytest.param("docker", marks=nightly)])
def real(request: pytest.FixtureRequest, engine: Mapping[str, str]) -> Workplace:
    """The headline image, built by the engine of the parameter, in a Docker engine."""
    request.getfixturevalue("pulled" if request.param == "embedded" else "by_docker")
    return Workplace(environ=engine, image=NAME)


@pytest.fixture(scope="module")
def container(real: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Container, Path]]:
    """A container that is started like those of the articles, and the SSH key for it."""
    private, public = key(tmp_path_factory.mktemp("keys"))
    ports = ("--publish", "127.0.0.1::8888", "--publish", "127.0.0.1::22")
    options = ("-e", f"SSH_PUBLIC_KEY={public}", "-e", "MINE=1", "-e", "NVIDIA_VISIBLE_DEVICES=all")
    with real.started(*ports, *options, "--shm-size", "1g") as found:
        found.says(READY)
        found.serves()
        yield found, private


@pytest.mark.parametrize("kind", sessions(""))
def test_every_kind_of_session_imports_torch(container: tuple[Container, Path], kind: str) -> None:
    look = "python -c 'import torch; print(torch.__version__)'; echo $NVIDIA_VISIBLE_DEVICES $MINE"
    command, text, terminal = sessions(look)[kind]
    found, private = container
    done = Client(container=found, key=private).ssh(*command, text=text, terminal=terminal, user="user")

    assert done.returncode == 0, done.stderr
    assert f"{VERSION}\nall 1\n" in done.stdout.replace("\r", "")


def test_a_notebook_imports_torch(container: tuple[Container, Path]) -> None:
    """In a real browser, open the printed URL, and run a cell that imports torch."""
    with browsing() as (page, hosts):
        cell_output = output(container[0], page, "import torch; torch.__version__")

    assert (cell_output, hosts) == (f"'{VERSION}'", {"127.0.0.1"})


def test_a_notebook_shows_a_progress_bar(container: tuple[Container, Path]) -> None:
    """tqdm.notebook, drawn by JupyterLab's extension of ipywidgets."""
    code = "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass"
    with browsing() as (page, _):
        output(container[0], page, code)
        expect(page.locator(".jp-OutputArea .widget-html").last).to_contain_text("3/3")


def test_torch_compile_as_any_user(real: Workplace) -> None:
    """torch.compile works under Kubernetes' "restricted" pod security standard; its cache is writable."""
    options = ("--user", "12345:12345", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    ran = real.run(*options, command=["python", "-c", COMPILED])

    assert (ran.returncode, ran.stdout) == (0, "user True\n"), ran.stderr


# Each name in a process of its own: a library that was loaded before would satisfy those that need it.
BY_NAME = """
import subprocess, sys
for name in sys.argv[1:]:
    load = f"import ctypes; ctypes.CDLL({name!r})"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    if done.returncode:
        print(name, done.stderr.splitlines()[-1])
"""
MAPPED = """
import torch
torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)) @ torch.randn(6, 2)
torch.cuda.is_available()
parts = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
print(*sorted({part[5].strip() for part in parts if len(part) == 6 and part[5][0] == "/"}), sep="\\n")
"""
UNLINK = "find /usr/lib/x86_64-linux-gnu -maxdepth 1 -lname '/opt/venv/*' -delete"


def test_programs_find_cuda_by_name_without_torch(real: Workplace, locked: LockedCell) -> None:
    """As ctypes, CTranslate2 and ONNX Runtime do; libraries find those that they need, too."""
    names = [library.rpartition("/")[2] for wheel in locked.wheels for library in wheel.libraries]
    command = ["env", "-u", "LD_LIBRARY_PATH", "python", "-c", BY_NAME, *names]

    assert {"libcublas.so.12", "libcudnn.so.9", "libcudnn_cnn.so.9", "libnvrtc-builtins.so.12.6"} <= {*names}
    # The library of Mellanox is not in the image.
    assert [line.split()[0] for line in real.run(command=command).stdout.splitlines()] == [
        "libcufile_rdma.so.1"
    ]


def test_torch_loads_the_same_files_with_and_without_the_links(real: Workplace) -> None:
    """Also after ldconfig, which apt and NVIDIA's container runtime run: it adds the links to its cache."""
    run = 'exec python -c "$0"'
    cache = "ldconfig; ldconfig -p | grep -q libcublas.so.12 || exit 1"
    scripts = (run, f"{UNLINK}; {run}", f"{cache}; {run}")
    found, *others = [real.run(command=["sh", "-c", script, MAPPED]).stdout for script in scripts]

    assert found.count("/nvidia/") > 10
    assert others == [found, found]


NOTEBOOK = "from tqdm.notebook import tqdm; print(type(tqdm(range(3), display=False).container).__name__)"
INLINE = """
import torch
from torch.utils.cpp_extension import load_inline
source = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
print(load_inline("twice", source, functions=["twice"]).twice(torch.ones(2)).tolist())
"""
AUDIO = """
import torch, torchaudio
wave = torch.sin(torch.arange(1600) / 10)[None]
for name in ("x.wav", "x.flac"):
    torchaudio.save(f"/tmp/{name}", wave, 16000)
    found, rate = torchaudio.load(f"/tmp/{name}")
    print(rate, torch.allclose(found, wave, atol=1e-3))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param(NOTEBOOK, "TqdmHBox\n", id="tqdm.notebook"),
        pytest.param(INLINE, "[2.0, 2.0]\n", id="load_inline"),
        pytest.param(AUDIO, "16000 True\n16000 True\n", id="torchaudio"),
    ],
)
def test_packages_for_notebooks_extensions_and_audio(real: Workplace, code: str, printed: str) -> None:
    ran = real.run(command=["python", "-c", code])

    assert (ran.returncode, ran.stdout) == (0, printed), ran.stderr


def test_torch_is_not_replaced(real: Workplace, shared: Path) -> None:
    """The usual install commands are refused, and `pip check` finds no conflict."""
    for command in (
        ["pip", "install", "--dry-run", "torch==2.8.0"],
        ["pip", "install", "--dry-run", "--upgrade", "torchvision==0.23.0"],
        ["uv", "pip", "install", "--dry-run", "nvidia-cublas-cu12==12.8.4.1"],
    ):
        ran = real.run(*outward(shared), command=command)
        assert ran.returncode != 0, command
        assert "torchkiln: this image keeps " in ran.stderr
    assert real.run(command=["pip", "check"]).stdout == "No broken requirements found.\n"


def test_doctor_finds_no_problem(real: Workplace) -> None:
    """There are only warnings, because the host has no GPU."""
    ran = real.run("--shm-size", "1g", command=["doctor", "--json"])
    lines = {line["about"]: line for line in json.loads(ran.stdout)["lines"]}

    states = {about: line["state"] for about, line in lines.items() if line["state"] != "ok"}
    assert (ran.returncode, states) == (0, {"driver": "warning", "GPUs": "warning"})
    assert (lines["cuDNN"]["found"], TAG in lines["image"]["found"]) == ("9.5.1.17", True)


def test_doctor_reports_another_torch(real: Workplace, shared: Path) -> None:
    """With the torch guard disabled, another version can be installed; doctor warns."""
    options = (*outward(shared), "-e", "PIP_CONSTRAINT=", "-e", "UV_CONSTRAINT=")
    replaced = "pip install -q --no-deps --force-reinstall nvidia-nvtx-cu12==12.8.90"
    hosts = f"{replaced}; /opt/torchkiln/entrypoint doctor"
    ran = real.run(*options, command=["sh", "-c", hosts])

    assert (
        "warning  torch      changed since the image was built: nvidia-nvtx-cu12 12.8.90 instead of 12.6.77"
        in ran.stdout
    )


@without_gpus
@pytest.mark.parametrize("example", for_image("torch"))
def test_errors_of_the_troubles_page(example: Example, real: Workplace, shared: Path) -> None:
    """Each command of docs/troubles.md prints the documented lines."""
    demand_output(example, real.image, real.environ, shared, outward(shared))


@needs_gcc
def test_torch_refuses_a_driver_that_is_too_old(real: Workplace, shared: Path) -> None:
    """torch and doctor print the lines of docs/troubles.md, with a fake driver."""
    for library in fake_driver().iterdir():
        shutil.copy(library, shared)
    shared.chmod(0o755)
    options = ["--volume", f"{shared}:/usr/local/nvidia/lib64:ro"]
    options += ["-e", "FAKE_CUDA=11040", "-e", "FAKE_DRIVER=470.57.02"]
    ran = real.run(*options, command=["python", "-c", "import torch; torch.zeros(1).cuda()"])
    doctor = real.run(*options, command=["doctor"]).stdout

    assert "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)." in ran.stderr
    assert "470.57.02, supports CUDA up to 11.4; this image needs driver 525.60.13 or newer" in doctor


def test_the_example_trains(real: Workplace) -> None:
    """examples/dockerfile, built on the real image, on the CPU."""
    name = "torchkiln-example:real"
    argv = ["docker", "build", "--tag", name, "--build-arg", f"IMAGE={real.image}", "examples/dockerfile"]
    built = subprocess.run(argv, cwd=ROOT, env=dict(real.environ), capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    try:
        ran = Workplace(environ=real.environ, image=name).run()
    finally:
        subprocess.run(["docker", "rmi", "--force", name], env=dict(real.environ), capture_output=True)

    assert ran.returncode == 0, ran.stderr
    device, first, last = re.fullmatch(r"(\w+): loss ([\d.]+) -> ([\d.]+)\n", ran.stdout).groups()
    assert (device, float(last) < float(first) / 100) == ("cpu", True)
