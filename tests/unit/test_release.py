"""tools/release.py: the steps of each cell in their order, and one cell's failure stops no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.keys import P256, pem, public_pem
from tests.workflow_scene import TAG, Scene, scene
from tests.workflows import Runner

TO = "registry.example/team/pytorch-cuda"
OTHER = "2.8.0-cuda12.1-cudnn9-runtime"


@pytest.fixture
def place(tmp_path: Path) -> Scene:
    """With a key in its folder."""
    found = scene(tmp_path)
    (tmp_path / "key.pem").write_bytes(pem(P256))
    (tmp_path / "key.pem").chmod(0o600)
    return found


def released(place: Scene, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`tools/release.py` in a clone."""
    runner: Runner = place.runner(**environ)
    command = [sys.executable, "tools/release.py", "--to", TO, "--key", str(place.folder / "key.pem")]
    return subprocess.run(
        [*command, *arguments],
        cwd=runner.clone,
        env={"PATH": f"{runner.tools}:/usr/bin:/bin", **runner.environ},
        capture_output=True,
        text=True,
        check=False,
    )


def steps(place: Scene, tag: str) -> list[list[str]]:
    """What was asked for the image *tag*; paths by their last part."""
    cell = ["--torch", tag.partition("-")[0]]
    asked = place.asked("torchkiln")
    mine = [words for words in asked if any(tag in word for word in words) or words[1:3] == cell]
    return [[word.rpartition("/")[2] if word.startswith("/") else word for word in words] for words in mine]


def test_a_cell_is_built_proved_published_and_verified(place: Scene) -> None:
    done = released(place, "--since", place.first)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"release: {TAG}: published and verified")
    assert steps(place, TAG) == [
        [
            *(
                "build",
                "--torch",
                "2.7.1",
                "--cuda",
                "12.1",
                "--flavor",
                "runtime",
                "--os",
                "debian12",
                "--locked",
            )
        ],
        ["smoke", "run", TAG, "--tier", "2"],
        ["gate", TAG],
        ["publish", TAG, "--to", TO, "--key", "key.pem"],
        ["verify", f"{TO}:{TAG}", "--key", "public.pem"],
    ]
    assert steps(place, OTHER) == []


def test_reports_from_elsewhere_stand_for_the_run_here(place: Scene) -> None:
    done = released(
        place, "--since", place.first, "--reports", "proofs", "--trust", "lab.pub.pem", "--tier", "1"
    )
    given = ["--report", "proofs", "--trust", "public.pem", "--trust", "lab.pub.pem"]

    assert done.returncode == 0
    assert [words[0] for words in steps(place, TAG)] == ["build", "gate", "publish", "verify"]
    assert steps(place, TAG)[1:] == [
        ["gate", TAG, *given],
        ["publish", TAG, "--to", TO, *given, "--key", "key.pem"],
        ["verify", f"{TO}:{TAG}", "--key", "public.pem", "--key", "lab.pub.pem"],
    ]


@pytest.mark.parametrize(
    ("fails", "code", "last"), [("build --torch 2.7", 6, "build"), (f"gate {TAG}", 7, "gate")]
)
def test_what_fails_goes_no_further_and_stops_no_other(
    place: Scene, fails: str, code: int, last: str
) -> None:
    done = released(place, CI_TOOLS_FAIL=fails)

    assert done.returncode == code
    assert steps(place, TAG)[-1][0] == last
    assert steps(place, OTHER)[-1][0] == "verify"
    assert f"{TAG}: failed ({code})" in done.stderr
    assert f"{OTHER}: published and verified" in done.stderr


def test_nothing_changed_is_no_error(place: Scene) -> None:
    done = released(place, "--since", place.last)
    assert (done.returncode, done.stderr) == (0, "release: no cell to release\n")


def test_a_commit_that_is_not_there_is_an_error(place: Scene) -> None:
    assert released(place, "--since", "gone").returncode == 2


def test_the_public_key_is_the_private_ones(tmp_path: Path) -> None:
    """A key with a pass phrase too; the pass phrase stays for `publish`."""
    code = (
        "import sys, os, pathlib; sys.path.insert(0, 'tools'); import release;"
        "print(release.public_half(pathlib.Path(sys.argv[1])).decode(), end='');"
        "print(os.environ['TORCHKILN_KEY_PASSPHRASE'])"
    )
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    locked = P256.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a word"))
    (tmp_path / "key.pem").write_bytes(locked)
    (tmp_path / "key.pem").chmod(0o600)
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "key.pem")],
        cwd=Path(__file__).parents[2],
        env={"TORCHKILN_KEY_PASSPHRASE": "a word", "PATH": "/usr/bin:/bin", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{public_pem(P256).decode()}a word\n"


@pytest.mark.parametrize("key", ["missing.pem", "Makefile"])
def test_a_key_that_is_none_is_one_sentence(place: Scene, key: str) -> None:
    """Before anything is built."""
    done = released(place, "--key", key)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert place.asked("torchkiln", "build") == []
