"""A bundle of checks runs on any host with Python, without tar, network or packages."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.bundles import made, started
from tests.docker.scene import TAG, Scene
from tests.programs import run_program
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # pip's wheel, the bundle's packages, and where the cache has none, the base


@pytest.fixture(scope="module")
def bundle(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for one check, as a folder whose name needs quotes."""
    assert scene.kiln("--quiet").returncode == 0
    place = tmp_path_factory.mktemp("bundle") / "a bundle's"
    made(scene, place, "--only", "lock", "--only", "import", "--nonce", "nonce-of-ours")
    return place


@pytest.mark.proof
def test_its_report_equals_that_of_a_local_run_and_is_signed(
    bundle: Path, scene: Scene, tmp_path: Path
) -> None:
    """Findings, suite and digest are equal. Checks fail in both runs, because the image has a fake torch."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "pub.pem").write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    away = started(bundle, "--key", str(tmp_path / "key.pem"))
    here = scene.command(
        *("smoke", TAG, "--images", str(scene.images), "--only", "lock", "--only", "import", "--json")
    )
    report, expected = json.loads((bundle / "report.json").read_bytes()), json.loads(here.stdout)

    assert (away.returncode, away.stdout) == (10, "fail\n"), away.stderr
    assert report["nonce"] == "nonce-of-ours"
    for same in ("image", "tag", "suite", "runtime", "verdict"):
        assert report[same] == expected[same]
    for one, other in zip(report["checks"], expected["checks"], strict=True):
        for same in ("id", "outcome", "message"):
            assert one[same] == other[same]
    shown = scene.command("smoke", "show", str(bundle / "report.json"), "--trust", str(tmp_path / "pub.pem"))
    assert "signed by" in shown.stdout


def test_layers_in_zstd_are_bundled_and_run(scene: Scene, tmp_path: Path) -> None:
    """The base's blob has another digest than in the lock; its DiffID is the same."""
    layout, place = tmp_path / "dist", tmp_path / "bundle"
    built = scene.kiln("--quiet", "--layer-format", "zstd", "--output", str(layout))
    assert built.returncode == 0, built.stderr
    made(scene, place, "--output", str(layout))

    ran = started(place, "run", "--", "sh", "-c", "echo $VIRTUAL_ENV")
    assert (ran.returncode, ran.stdout) == (0, "/opt/venv\n"), ran.stderr


def test_options_of_the_bundle_and_of_its_run_are_combined(bundle: Path, tmp_path: Path) -> None:
    ran = started(bundle, "--only", "elf", "--report", str(tmp_path / "r.json"))
    assert ran.returncode == 2  # the suite reports that no such check exists
    assert "no check named elf" in ran.stderr


def test_a_command_runs_in_the_image(bundle: Path, tmp_path: Path) -> None:
    """With the options of `torchkiln run`, its output and its exit code; also when it is run again."""
    words = ("run", "-e", "MINE=1", "--bind", f"{tmp_path}:/mnt", "--", "sh", "-c")
    for code in (7, 0):
        script = f"echo $MINE $VIRTUAL_ENV; touch /mnt/{code}; exit {code}"
        ran = started(bundle, *words, script)
        assert (ran.returncode, ran.stdout) == (code, "1 /opt/venv\n"), ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "7"]

    wrong = started(bundle, "run", "--nothing")
    assert (wrong.returncode, "no such option '--nothing'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("harm", ["changed", "cut", "missing", "layer", "index"])
def test_a_damaged_bundle_is_refused(bundle: Path, tmp_path: Path, harm: str) -> None:
    """No program of a damaged bundle runs, and the message names the damaged file."""
    copy = tmp_path / "copy"
    shutil.copytree(
        bundle, copy, ignore=shutil.ignore_patterns("rootfs", "launch", "report.json", "report.dsse.json")
    )
    victim = copy / "checkout/smoke_tests/test_import.py"
    if harm == "changed":
        assert (
            started(copy, "--only", "nothing").returncode == 2
        )  # without damage, the suite starts and refuses the unknown check
        victim.write_text(victim.read_text() + "#")
    elif harm == "cut":
        victim = copy / "packages/click/core.py"
        victim.write_bytes(victim.read_bytes()[:-1])
    elif harm == "missing":
        victim.unlink()
    elif harm == "index":
        victim = copy / "bundle.json"
        victim.write_text(victim.read_text()[:100])
    else:
        victim = max((copy / "layout/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    ran = started(copy)

    assert ran.returncode == 12, ran.stderr
    assert victim.name[:12] in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (copy / "report.json").exists()


def test_parts_give_the_tar_and_the_tar_the_folder(bundle: Path, scene: Scene, tmp_path: Path) -> None:
    """The joined parts equal the tar, which has the bundle's files. SHA256SUMS has the sums of the parts."""
    options = ("--only", "lock", "--only", "import", "--nonce", "nonce-of-ours")
    output = made(scene, tmp_path / "parts", "--part-size", "5m", *options)
    made(scene, tmp_path / "one.tar", *options)
    parts = sorted((tmp_path / "parts").glob("bundle.tar.*"))
    whole = b"".join(part.read_bytes() for part in parts)

    assert len(parts) > 2
    assert {part.stat().st_size for part in parts[:-1]} == {5 << 20}
    assert whole == (tmp_path / "one.tar").read_bytes()
    sums = dict(line.split("  ")[::-1] for line in (tmp_path / "parts/SHA256SUMS").read_text().splitlines())
    assert sums == {part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in parts}
    line = next(line for line in output.splitlines() if line.startswith("  cat "))
    (tmp_path / "FOLDER").mkdir()
    subprocess.run(["sh", "-c", line.partition(";")[0]], cwd=tmp_path, check=True)
    names = [path.relative_to(tmp_path / "FOLDER") for path in (tmp_path / "FOLDER").rglob("*")]
    files = [name for name in names if (tmp_path / "FOLDER" / name).is_file()]
    assert len(files) > 500
    assert all((bundle / name).read_bytes() == (tmp_path / "FOLDER" / name).read_bytes() for name in files)


def test_an_existing_file_is_not_replaced(scene: Scene, tmp_path: Path) -> None:
    """If the folder exists, its files remain. If the disk is too small, the command leaves no file."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine").write_text("mine")
    options = ("smoke", TAG, "--images", str(scene.images), "--bundle")
    ran = scene.command(*options, str(tmp_path / "there"))
    assert (ran.returncode, [path.name for path in (tmp_path / "there").iterdir()]) == (2, ["mine"])
    assert "already exists" in ran.stderr

    script = (
        'mount -t tmpfs -o size=9m tmpfs "$1" && at=$1 && shift && "$@"; code=$?; ls -A "$at"; exit $code'
    )
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path / "there")]
    argv += scene.argv(*options, str(tmp_path / "there/small"))
    full = run_program(argv, env=scene.settings(), cwd=scene.images.parent)
    assert (full.returncode, full.stdout) == (6, ""), full.stderr
    assert "No space left" in full.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--runtime", "docker"), "a bundle does not run in an engine"),
        (("--report", "r.json"), "there is no report to write"),
        (("--part-size", "3"), "--part-size 3: too small"),
        (("--part-size", "much"), "not a valid size"),
    ],
)
def test_what_makes_no_sense_is_refused(
    scene: Scene, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    place = tmp_path / "b"
    ran = scene.command("smoke", TAG, "--images", str(scene.images), "--bundle", str(place), *arguments)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert not place.exists()


def test_what_starts_it_needs_no_package_and_only_python_3_8(tmp_path: Path) -> None:
    """Here it is alone in a folder, and finds that the bundle is damaged."""
    run = Path(shutil.copy(ROOT / "torchkiln/cli/bundle_run.py", tmp_path / "run.py"))
    ast.parse(run.read_text(), feature_version=(3, 8))
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass", feature_version=(3, 8))

    alone = run_program([sys.executable, "-I", "-S", run])
    assert (alone.returncode, alone.stderr[:30]) == (12, "error: the bundle is damaged: ")
