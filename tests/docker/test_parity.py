"""Both engines give the same image, file by file; and the output of `diff` for two images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import NAME, TAG, Scene

pytestmark = pytest.mark.network  # pip's wheel, and if it is not cached, the base

THEIRS, OURS, PLANTED = "parity:theirs", "parity:ours", "parity:planted"
SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def both(scene: Scene) -> Scene:
    """The engine has the image by BuildKit, and that of the embedded engine, which is also in `dist`."""
    for arguments, name in ((("--engine", "docker"), THEIRS), (("--load",), OURS)):
        ran = scene.kiln(*arguments)
        assert ran.returncode == 0, ran.stderr
        scene.docker("tag", NAME, name)
    return scene


def compared(scene: Scene, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The result of `diff --json --exit-code`, which exits with *code*."""
    ran = scene.command("diff", "--json", "--exit-code", *arguments)
    assert ran.returncode == code, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    assert result["same"] == (code == 0)
    return result


@pytest.mark.parametrize("ours", [f"docker:{OURS}", TAG], ids=["in the engine", "in the layout"])
def test_both_engines_give_the_same_image(both: Scene, ours: str) -> None:
    """Paths, attributes and settings are equal, except for the allow list, which has no unused entry."""
    result = both.parity(f"docker:{THEIRS}", ours)

    assert result.paths > 5_000
    assert result.left == result.idle == ()
    assert {Path(difference.at).name for difference in result.allowed} == {
        "INSTALLER",
        "REQUESTED",
        "RECORD",
    }


_CAPABILITY = "b'\\x01\\x00\\x00\\x02\\x00\\x20' + bytes(14)"
_SETXATTR = f"import os; os.setxattr('/opt/venv/bin/jinja2', 'security.capability', {_CAPABILITY})"
PLANTS = {
    "RUN chmod 0711 /opt/torchkiln": [("opt/torchkiln", "mode", "0755", "0711")],
    "RUN chown 7:8 /opt/venv/bin/torch": [("opt/venv/bin/torch", "owner", "0:0", "7:8")],
    "RUN echo >> /opt/venv/bin/triton": [("opt/venv/bin/triton", "content", ".*", ".*")],
    "RUN ln -sf python4 /opt/venv/bin/python": [("opt/venv/bin/python", "link", "python3", "python4")],
    "RUN rm /opt/venv/bin/sympy && mkdir -m 0755 /opt/venv/bin/sympy": [
        ("opt/venv/bin/sympy", "type", "file", "folder")
    ],
    "RUN rm /opt/venv/bin/networkx": [("opt/venv/bin/networkx", "only-in-a", "file 0755 0:0", "")],
    "RUN mknod -m 0600 /opt/more c 1 3": [("opt/more", "only-in-b", "", "device 0600 0:0")],
    f'RUN python3 -c "{_SETXATTR}"': [("opt/venv/bin/jinja2", "xattrs", "", "security.capability=.*")],
    f"RUN sed -i '/lib.so/d' /{SITE}/torch-1.0.dist-info/RECORD": [
        (f"{SITE}/torch-1.0.dist-info/RECORD", "line", "torch/lib.so,sha256=.*", "")
    ],
    f"RUN chmod 0600 /{SITE}/torch-1.0.dist-info/INSTALLER": [
        (f"{SITE}/torch-1.0.dist-info/INSTALLER", "mode", "0644", "0600")
    ],
    "ENV PATH=/bin": [("Env PATH", "setting", "/opt/venv/bin:.*", "/bin")],
    "LABEL a=b": [("Labels a", "setting", "", "b")],
    "EXPOSE 9": [("ExposedPorts 9/tcp", "setting", "", "yes")],
    'HEALTHCHECK --interval=9s CMD ["true"]': [("Healthcheck", "setting", ".*", ".*9000000000.*")],
    'CMD ["sleep", "1"]': [
        ("Cmd", "setting", "", re.escape('["sleep", "1"]')),
        ("ArgsEscaped", "setting", "", "true"),  # BuildKit adds it to every CMD
    ],
    "USER 7": [("User", "setting", ".*", "7")],
}


def test_planted_differences_are_found(both: Scene, tmp_path: Path) -> None:
    """A Dockerfile adds one difference of each kind to the image. Exactly these are found."""
    (tmp_path / "Dockerfile").write_text("\n".join([f"FROM {OURS}", *PLANTS, ""]))
    both.docker("buildx", "build", "--quiet", "--load", "--tag", PLANTED, str(tmp_path))

    result = both.parity(f"docker:{THEIRS}", f"docker:{PLANTED}")

    found = {(one.at, one.what): (one.a, one.b) for one in result.left}
    plants = [plant for plants in PLANTS.values() for plant in plants]
    for at, what, a, b in plants:
        assert (at, what) in found, found
        assert all(re.fullmatch(want, got) for want, got in zip((a, b), found[at, what], strict=True)), found
    assert len(result.left) == len(plants), found


def test_reading_an_engine_leaves_nothing_there(both: Scene) -> None:
    """No container and no volume is left."""

    def there() -> tuple[str, str]:
        of_image = ("--filter", f"ancestor={OURS}")
        unused = ("--filter", "dangling=true")  # other tests may also use the engine
        return both.docker("ps", "-aq", *of_image), both.docker("volume", "ls", "-q", *unused)

    before = there()
    compared(both, f"docker:{THEIRS}", f"docker:{OURS}", code=1)
    assert there() == before


def test_layers_uninstalled_packages_and_settings(both: Scene, tmp_path: Path) -> None:
    """`diff` of layout and engine: Python and OS packages, settings, shared layers and sizes."""
    changes = "RUN pip uninstall -qy sympy && dpkg --purge nano\nENV MORE=1\n"
    (tmp_path / "Dockerfile").write_text(f"FROM {OURS}\n{changes}")
    both.docker("buildx", "build", "--quiet", "--load", "--tag", "parity:less", str(tmp_path))

    result = compared(both, TAG, "docker:parity:less", code=1)

    (sympy, nano) = result["packages"]
    assert sympy == {
        "system": "python",
        "name": "sympy",
        "place": SITE.replace("3.11", "3"),
        "a": "1.0",
        "b": "",
    }
    assert (nano["system"], nano["name"], nano["b"]) == ("os", "nano", "")
    assert result["settings"] == [{"name": "Env MORE", "a": "", "b": "1"}]
    layers = result["layers"]
    assert (len(layers["shared"]), layers["only_in_a"], len(layers["only_in_b"])) == (5, [], 1)
    assert "pip uninstall" in layers["only_in_b"][0]["title"]
    assert result["a"]["files"] == sum(layer["files"] for layer in layers["shared"])
    assert result["b"]["content_bytes"] > result["a"]["content_bytes"] > 100_000_000

    text = both.command("diff", TAG, "docker:parity:less")
    assert text.returncode == 0
    assert re.search(r"^packages \(2\) +A +B\nsympy +1\.0 +–\nnano +\S+ +–$", text.stdout, re.MULTILINE)
    assert re.search(r"^only in A +0 ", text.stdout, re.MULTILINE) is None
    assert text.stdout.endswith("the images differ\n")


def test_an_image_is_the_same_as_itself_in_the_engine(both: Scene) -> None:
    result = compared(both, TAG, f"docker:{OURS}")

    assert result["packages"] == result["settings"] == []
    assert result["a"]["digest"] == result["b"]["digest"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("docker:nowhere:1", TAG), 2, "nowhere:1: no such image in the engine at"),
        ((TAG, "2.7.1-cuda12.1"), 2, "did you mean 2.7-cuda12.1-"),
    ],
)
def test_bad_usage_is_named(both: Scene, arguments: tuple[str, ...], code: int, words: str) -> None:
    ran = both.command("diff", *arguments)

    assert ran.returncode == code
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


PIP = """
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
pip list; pip check; echo "check: $?"
pip uninstall -y sympy; echo "uninstall: $?"
pip list; pip check; echo "check: $?"
pip uninstall -y sympy; echo "again: $?"
find /opt/venv | grep -v REQUESTED | sort | sha256sum
find /opt/venv -name '*sympy*'
"""


def test_pip_behaves_the_same_inside_both(both: Scene) -> None:
    """After `pip uninstall`, both images have the same files, and none of the package."""
    result = [
        both.docker("run", "--rm", "--entrypoint", "sh", name, "-c", f"exec 2>&1; {PIP}")
        for name in (THEIRS, OURS)
    ]

    assert result[0] == result[1]
    assert re.search(r"^sympy +1\.0$", result[1], re.MULTILINE)
    assert "check: 0\n" in result[1]
    assert "Successfully uninstalled sympy-1.0\nuninstall: 0\n" in result[1]
    assert "not installed" in result[1].partition("uninstall: 0")[2]
    assert re.search(r"[0-9a-f]{64}  -\n\Z", result[1])  # the last `find` found nothing
