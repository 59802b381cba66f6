"""A bundle of a project: a host with only Python runs its checks, the suite and a command in its image."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.bundles import started
from tests.docker.scene import TAG, Scene
from tests.engine.root import NoEngine
from tests.engine.slurm import slurm_cluster
from tests.keys import ED, pem, public_pem
from tests.needs import give_up, nightly
from tests.unpublished import locked_wheel
from tests.wheels import make_wheel
from torchkiln.locks.file import lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.model.cell import Source
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.oci.layout import open_layout
from torchkiln.projects.file import save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import needs_of
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # pip's wheel, the bundle's packages, and where the cache has none, the base

PYPROJECT = """
[project]
name = "small"
dependencies = ["own==1.0", "optional==9; python_version < '3'"]
"""
# Its console script replaces torchrun, which the fake torch lacks.
OWN = b"""
import os, sys
VALUE = 7
def main():
    import small
    print("ran", small.VALUE, os.getcwd(), *sys.argv[5:], flush=True)
"""
SETTINGS = """
wheels = "wheels"
test = ["python", "-m", "small.selftest"]
"""


@dataclass(frozen=True)
class Built:
    """A project that is built in the layout of the scene."""

    scene: Scene
    folder: Path
    bundle: Path
    output: str  # of the command that made the bundle

    def kiln(self, *words: str) -> str:
        """The output of `project` *words*."""
        command, *rest = words
        ran = self.scene.command(
            "project", command, str(self.folder), "--images", str(self.scene.images), *rest
        )
        assert ran.returncode == 0, ran.stderr
        return f"{ran.stdout}{ran.stderr}"


@pytest.fixture(scope="module")
def project(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The project `small`, with a wheel, code and a test; the bundle has a folder for itself."""
    folder = tmp_path_factory.mktemp("project")
    files = {"own/__init__.py": OWN}
    wheel = make_wheel(folder / "wheels", "own", "1.0", files, console=(("torchrun", "own:main"),))
    (folder / "small").mkdir()
    (folder / "small/__init__.py").write_text("import own\nVALUE = own.VALUE\n")
    (folder / "small/selftest.py").write_text("import small, sys\nsys.exit(small.VALUE != 7)\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "torchkiln.toml").write_text(SETTINGS)
    built = Built(scene, folder, tmp_path_factory.mktemp("host") / "a bundle's", "")
    cell = load_locked(scene.images, TAG)
    needs = needs_of(folder, cell, Store(scene.cache))
    lock = ProjectLock(
        name="small",
        parent=TAG,
        parent_lock=lock_digest(cell),
        as_of="2026-11-25",
        inputs=inputs_digest(needs, cell),
        requirements=tuple(asked.text for asked in needs.requirements),
        wheels=(replace(locked_wheel(wheel), index=Source.PROJECT),),
        origins=(Origin(name="own", path=f"wheels/{wheel.name}"),),
    )
    save_project(folder, lock)
    built.kiln("build", "--no-smoke")
    limits = ("--nonce", "nonce-of-ours", "--allow-missing", "own")
    output = built.kiln("smoke", "--bundle", str(built.bundle), *limits)
    return Built(scene, folder, built.bundle, output)


def test_it_says_what_to_do(project: Built) -> None:
    digest = open_layout(project.scene.images.parent / "dist").image("small").manifest
    assert f"smoke: bundle of small ({digest[:19]}), " in project.output
    assert f"\n  python3 {project.bundle.name}/run.py\n" in project.output
    assert "gate small --report report.json\n" in project.output


def test_its_report_is_that_of_a_local_run_and_is_signed(project: Built, tmp_path: Path) -> None:
    """pip check fails in both: the image's packages are fakes."""
    key, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    key.write_bytes(pem(ED))
    key.chmod(0o600)
    public.write_bytes(public_pem(ED))
    away = started(project.bundle, "--key", str(key), "--report", str(tmp_path / "away.json"))
    words = ("smoke", str(project.folder), "--images", str(project.scene.images), "--allow-missing", "own")
    here = project.scene.command("project", *words, "--json")
    report, expected = json.loads((tmp_path / "away.json").read_bytes()), json.loads(here.stdout)

    assert (away.returncode, away.stdout) == (here.returncode, f"{expected['verdict']}\n"), away.stderr
    assert report["image"] == open_layout(project.scene.images.parent / "dist").image("small").manifest
    assert report["nonce"] == "nonce-of-ours"
    for same in ("image", "tag", "suite", "runtime", "verdict", "project"):
        assert report[same] == expected[same]
    assert report["project"]["named"] == ["own"]
    found = [(one["id"], one["outcome"], one["message"]) for one in report["checks"]]
    assert found == [(one["id"], one["outcome"], one["message"]) for one in expected["checks"]]
    outcomes = {check: outcome for check, outcome, _ in found}
    assert outcomes.keys() == {"import", "pip-check", "linkage", "test"}
    assert (outcomes["import"], outcomes["test"]) == ("passed", "passed")
    shown = project.scene.command("smoke", "show", str(tmp_path / "away.json"), "--trust", str(public))
    assert "signed by" in shown.stdout
    gate = project.scene.command(
        *("gate", "small", "--images", str(project.scene.images), "--nonce", "nonce-of-ours", "--json"),
        *("--report", str(tmp_path / "away.dsse.json"), "--trust", f"laboratory={public}"),
    )
    judged = {one["check"]: one for one in json.loads(gate.stdout)["checks"]}
    assert [judged[check]["lacks"] for check in ("import", "test")] == [[], []], gate.stderr


def test_the_suite_runs_in_the_image_of_the_project(project: Built, tmp_path: Path) -> None:
    """As `torchkiln smoke small` does; its report is beside that of the project, and names the same image."""
    ran = started(project.bundle, "smoke", "--only", "cpu-train", "--nonce", "another-nonce")
    report = json.loads((project.bundle / "suite.json").read_bytes())

    assert (ran.returncode, ran.stdout) == (10, "fail\n"), ran.stderr  # a fake torch
    assert report["image"] == open_layout(project.scene.images.parent / "dist").image("small").manifest
    assert (report["tag"], report["nonce"]) == (TAG, "another-nonce")
    assert [check["id"] for check in report["checks"]] == ["cpu-train"]
    assert "project" not in report


def test_a_command_runs_with_the_projects_code(project: Built, tmp_path: Path) -> None:
    script = "import small, os, sys; print(small.VALUE, os.getcwd(), os.environ['MINE']); sys.exit(7)"
    ran = started(project.bundle, "run", "-e", "MINE=1", "--", "python", "-c", script)
    assert (ran.returncode, ran.stdout) == (7, "7 /app 1\n"), ran.stderr


def test_the_bundle_of_its_suite(project: Built, tmp_path: Path) -> None:
    """`smoke small --bundle` makes one that runs only the suite; here in parts, without the host's layers."""
    have = tmp_path / "have.txt"
    have.write_text(started(project.bundle, "--have").stdout)
    words = (
        "smoke",
        "small",
        "--images",
        str(project.scene.images),
        "--only",
        "cpu-train",
        "--have",
        str(have),
    )
    place = tmp_path / "parts"
    made = project.scene.command(*words, "--bundle", str(place), "--part-size", "5m")
    assert made.returncode == 0, made.stderr
    count = len(open_layout(project.scene.images.parent / "dist").image("small").layers)
    assert f"; without {count} of {count} layers, " in made.stderr

    folder = tmp_path / "joined"
    folder.mkdir()
    whole = tmp_path / "bundle.tar"
    whole.write_bytes(b"".join(part.read_bytes() for part in sorted(place.glob("bundle.tar.*"))))
    shutil.unpack_archive(whole, folder)
    ran = started(folder, "--from", str(project.bundle))
    report = json.loads((folder / "report.json").read_bytes())
    assert (ran.returncode, ran.stdout) == (10, "fail\n"), ran.stderr
    assert [check["id"] for check in report["checks"]] == ["cpu-train"]
    assert not (folder / "checkout/project").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--runtime", "docker"), 2, "a bundle does not run in an engine"),
        (("--report", "r.json"), 2, "there is no report to write"),
        (("--part-size", "3"), 2, "--part-size 3: too small"),
        (("--allow-missing", "nothing"), 2, "nothing"),
        (("--only", "archs"), 2, "no check of a project named archs"),
    ],
)
def test_what_makes_no_sense_is_refused(
    project: Built, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    place = tmp_path / "b"
    named = ("smoke", str(project.folder), "--images", str(project.scene.images), "--bundle", str(place))
    ran = project.scene.command("project", *named, *arguments)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert words in ran.stderr
    assert not place.exists()


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_damaged_project_is_refused(project: Built, tmp_path: Path, harm: str) -> None:
    ignored = shutil.ignore_patterns("rootfs", "launch", "*.json.part")
    copy = shutil.copytree(project.bundle, tmp_path / "copy", ignore=ignored)
    victim = copy / "checkout/project/torchkiln.lock.json"
    if harm == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes().replace(b"own", b"owx"))
    ran = started(copy)
    assert (ran.returncode, ran.stdout) == (12, "")
    assert "the bundle is damaged: checkout/project/torchkiln.lock.json" in ran.stderr


@nightly
def test_slurm_runs_it(project: Built, tmp_path: Path) -> None:
    """Each node runs the image's code; the checks write their report beside the bundle."""
    for script in ("deploy/slurm/train.sbatch", "docs/gpu-hosts/slurm.sbatch"):
        shutil.copy(ROOT / script, tmp_path)
    shutil.copytree(project.bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns("rootfs", "launch"))
    try:
        with slurm_cluster(tmp_path) as cluster:
            ran = cluster.sbatch("--gres=none", "--nodes=2", "train.sbatch", "bundle", "/app/train.py", "-x")
            checked = cluster.sbatch("--gres=none", "slurm.sbatch", "/srv/bundle", "--only", "test")
    except NoEngine as error:
        give_up(str(error))
    report = json.loads((tmp_path / "bundle.report.json").read_bytes())

    assert (ran[0], len(re.findall("^ran 7 /workspace .*/app/train.py -x$", ran[1], re.M))) == (0, 2), ran[1]
    assert (checked[0], report["verdict"], report["tag"]) == (0, "pass", "small"), checked[1]
