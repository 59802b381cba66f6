"""OS packages of a project: settings, apt's output, forbidden changes, the lock and the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.planned import locked as locked_cell
from tests.planned import planned, tools_on
from tests.projects import bench
from tests.unit.test_project_file import LOCK
from torchkiln.base.mmdebstrap import ExistingBase, command, scratch
from torchkiln.base.recipe import APT_CLEANING, recipe, snapshot_of, sources_of
from torchkiln.cli.shared.project_output import project_json, show_project
from torchkiln.errors import ConfigError, Stale, Unresolvable
from torchkiln.locks.file import lock_digest
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.digest import Digest
from torchkiln.model.lock import DebFile, OsPackage
from torchkiln.model.plan import ArtefactLayer
from torchkiln.projects.apt import apt_get
from torchkiln.projects.apt.apt_get import AptPlan, plan_of, reasons
from torchkiln.projects.apt.os_packages import own_paths
from torchkiln.projects.asked import Asked, ProjectNeeds
from torchkiln.projects.code import ProjectCode
from torchkiln.projects.effect import Effect
from torchkiln.projects.file import from_json, to_json
from torchkiln.projects.freshness import inputs_digest, outdated
from torchkiln.projects.lock import LockedProject
from torchkiln.projects.locking import kept_packages
from torchkiln.projects.plan import Parent, plan_project
from torchkiln.projects.settings import settings_of

FILE = "torchkiln.toml"
DEBS = tuple(
    DebFile(name=name, version="1:1.0-2", architecture="amd64", source=name, size=9, sha256=digit * 64)
    for name, digit in (("ffmpeg", "a"), ("libavcodec59", "b"))
)
APT = LockedApt(
    os="debian12",
    requested=("curl", "ffmpeg"),
    base=Digest("sha256:" + "4" * 64),
    debs=DEBS,
    digest=Digest("sha256:" + "5" * 64),
    diff_id=Digest("sha256:" + "6" * 64),
    size=1_500_000,
    unpacked=30,
    encoder="e",
    dates={"bookworm-security": "20261128T083012Z"},
)
WITH_APT = replace(LOCK, apt=APT)
NEEDS = ProjectNeeds(name="trial", source="pyproject.toml", requirements=(Asked(text="a", where="x"),))


# --- settings ---------------------------------------------------------------------------------------


def test_names_of_packages() -> None:
    names = ["ffmpeg", "g++", "libglib2.0-0", "git-lfs=3.3.0-1+deb12u1", "tool=1:2.0~rc1", "7zip"]
    assert settings_of(FILE, {"apt": names}).apt == tuple(names)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a", "FFmpeg", "ffmpeg-", "libc6:i386", "ffmpeg/sid", "-y", "--download-only", "a b", "a,b"),
        *(
            "ffmpeg=",
            "ffmpeg=1-",
            "ffmpeg=1+",
            "^lib",
            "lib.*",
            "task^",
            "xy\n",
            "../x",
            "a;b",
            "$(x)",
            "a'b",
        ),
    ],
)
def test_words_with_another_meaning_for_apt_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(FILE, {"apt": [name]})
    message = caught.value.message
    assert message.startswith("torchkiln.toml: apt[0]: ")
    assert "is not the name of an OS package" in message, message


def test_a_package_is_named_once() -> None:
    with pytest.raises(ConfigError, match="apt: ffmpeg is listed twice"):
        settings_of(FILE, {"apt": ["ffmpeg", "git", "ffmpeg=1"]})


# --- apt's output ----------------------------------------------------------------------------------

PLAN = """\
Reading package lists...
The following NEW packages will be installed:
  libxcb1
Remv mawk [1.3.4]
Inst libssl3 [3.0.17-1] (3.0.18-1 Debian-Security:12/oldstable-security [amd64])
Inst libxcb1 (1.15-1 Debian:12.12/oldstable [amd64])
Inst libxau6:amd64 (1:1.0.9-1 Debian:12.12/oldstable [amd64]) []
Conf libxcb1 (1.15-1 Debian:12.12/oldstable [amd64])
"""
ERRORS = """\
Package editor is a virtual package provided by:
  vim 2:9.0 (= 2:9.0)
  nano 7.2
You should explicitly select one to install.

E: Package 'editor' has no installation candidate
E: Unable to locate package ffmpegg
E: Version '9' for 'git' was not found
E: Package 'old' has no installation candidate
"""
UNMET = """\
The following packages have unmet dependencies:
 new : Depends: libssl3 (>= 4) but 3 is to be installed
E: Unable to correct problems, you have held broken packages.
"""


def test_a_plan_has_what_is_added_and_changed() -> None:
    assert plan_of(PLAN.splitlines()) == AptPlan(
        added=(OsPackage(name="libxau6", version="1:1.0.9-1"), OsPackage(name="libxcb1", version="1.15-1")),
        changes=("libssl3 3.0.17-1 → 3.0.18-1", "mawk 1.3.4 → (removed)"),
    )


def test_the_reasons_are_those_of_apt() -> None:
    assert reasons(ERRORS.splitlines()) == (
        "Package editor is a virtual package provided by:",
        "vim 2:9.0 (= 2:9.0)",
        "nano 7.2",
        "E: Package 'editor' has no installation candidate",
        "E: Unable to locate package ffmpegg",
    )
    assert reasons(UNMET.splitlines()) == (
        "new : Depends: libssl3 (>= 4) but 3 is to be installed",
        "E: Unable to correct problems, you have held broken packages.",
    )
    assert reasons(["E: http://u:p@m/x is odd"]) == ("E: http://m/x is odd",)
    assert reasons([]) == ("(apt names no packages)",)


@pytest.mark.parametrize(("count", "more"), [(8, []), (9, ["  and 1 more"])])
def test_eight_changes_of_the_image_are_named(tmp_path: Path, count: int, more: list[str]) -> None:
    plan = tmp_path / "plan"
    plan.write_text("".join(f"Inst p{number} [1] (2 Debian:12 [amd64])\n" for number in range(1, count + 1)))
    with pytest.raises(Unresolvable, match="apt: new: would change packages") as caught:
        apt_get._demanded(("new",), OsLayers(base=locked_cell().base), plan, plan)
    assert caught.value.message.splitlines()[8:] == ["  p8 1 → 2", *more]


def argv(tmp_path: Path, onto: ExistingBase) -> list[str]:
    with scratch(recipe("debian12"), {"TORCHKILN_DEBIAN_KEYRING": __file__}) as made:
        place = replace(made, lists=tmp_path / "lists", debs=tmp_path / "debs", keyring=tmp_path / "keys.gpg")
    return command(recipe("debian12"), {}, unprivileged=False, place=place, onto=onto)


def test_packages_are_installed_from_the_files_without_a_network(tmp_path: Path) -> None:
    onto = ExistingBase(
        layers=(tmp_path / "0", tmp_path / "1"),
        pins=tmp_path / "pins",
        packages=("ffmpeg",),
        debs=tmp_path / "de bs",
    )
    words = argv(tmp_path, onto)

    assert words[:3] == ["unshare", "--mount", "--net"]
    setup = [word for word in words if word.startswith("--setup-hook=")]
    assert [f"--file={tmp_path}/{number} " in setup[number] for number in (0, 1)] == [True, True]
    assert f"deb [trusted=yes] copy://{tmp_path}/de%20bs ./" in setup[-1]
    plain = argv(tmp_path, replace(onto, debs=None))
    assert "--net" not in plain
    assert not [word for word in plain if "trusted" in word]


def test_a_question_has_no_result_and_keeps_the_mirrors(tmp_path: Path) -> None:
    onto = ExistingBase(layers=(), pins=tmp_path / "pins", queries=("ask",))
    environ = {"TORCHKILN_DEBIAN_MIRROR": "file:///archive/20260101T000000Z"}
    words = command(recipe("debian12"), environ, unprivileged=False, onto=onto)

    assert "--format=null" in words
    hooks = [word for word in words if word.startswith("--customize-hook=")]
    assert hooks == ["--customize-hook=ask", f"--customize-hook={APT_CLEANING}"]
    assert [word for word in words if "copy:///archive" in word]
    assert snapshot_of(sources_of(recipe("debian12"), environ)) == "20260101T000000Z"
    assert snapshot_of(sources_of(recipe("debian12"), {})) == ""


# --- lock -------------------------------------------------------------------------------------------


def test_the_lock_has_a_line_for_each_file() -> None:
    data = to_json(WITH_APT)

    assert from_json(data) == WITH_APT
    assert sum(line.startswith('      {"name": ') for line in data.decode().splitlines()) == len(DEBS)
    assert "apt" not in json.loads(to_json(LOCK))  # the seals of older locks stay valid
    with pytest.raises(Stale, match="debs: must be sorted by name"):
        from_json(to_json(replace(WITH_APT, apt=replace(APT, debs=DEBS[::-1]))))
    with pytest.raises(Stale, match="edited or merged incorrectly"):
        from_json(data.replace(b'"size": 9', b'"size": 8', 1))
    for changed in (b'"name": "FFmpeg"', b'"name": "../x"', b'"name": ""'):
        with pytest.raises(Stale, match="the name of a Debian package"):
            from_json(data.replace(b'"name": "ffmpeg"', changed))


def test_a_lock_is_stale_if_other_packages_are_required() -> None:
    cell = locked_cell()
    needs = replace(NEEDS, apt=APT.requested)
    lock = replace(
        LOCK, parent_lock=lock_digest(cell), inputs=inputs_digest(needs, cell), apt=APT, wheels=(), removed=()
    )
    assert outdated(lock, needs, cell) == ""
    told = "made for other OS packages than the setting apt has now"
    assert outdated(lock, NEEDS, cell) == told
    assert outdated(lock, replace(needs, apt=("curl",)), cell) == told
    assert outdated(replace(lock, apt=None), needs, cell) == told
    assert outdated(lock, replace(needs, requires_python=">=3"), cell).startswith("made from other requirem")


def test_present_packages_are_kept_until_they_are_upgraded() -> None:
    assert kept_packages(APT, ()) is APT
    assert kept_packages(APT, ("numpy",)) is APT
    assert kept_packages(APT, ("*",)) is None
    assert kept_packages(APT, ("libavcodec59",)) is None
    assert kept_packages(None, ()) is None


def test_a_layer_fits_its_base_and_tools() -> None:
    base = locked_cell().base
    tools = tools_on(base)
    fitting = replace(APT, base=base.digest)

    assert OsLayers(base=base).fits(fitting)
    assert not OsLayers(base=base).fits(APT)
    assert not OsLayers(base=base, tools=tools).fits(fitting)
    assert OsLayers(base=base, tools=tools).fits(replace(fitting, tools=tools.digest))
    assert OsLayers(base=base, tools=tools).artefacts == (base, tools)


def test_what_lock_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = LockedProject(lock=WITH_APT, source="requirements.txt", moves=(), notes=("a note",))
    show_project(found)

    printed = capsys.readouterr().err
    assert (
        "lock: OS packages: ffmpeg 1:1.0-2, and 1 that they need, and in the image already: curl (1.5 MB)\n"
        in printed
    )
    assert "lock: warning: a note\n" in printed
    assert json.loads(project_json(found))["apt"] == [
        {"name": "ffmpeg", "version": "1:1.0-2"},
        {"name": "libavcodec59", "version": "1:1.0-2"},
    ]


# --- plan -------------------------------------------------------------------------------------------


def test_the_layer_is_above_the_image_and_below_the_projects_packages() -> None:
    below = planned()
    parent = Parent(plan=below, manifest=Digest("sha256:" + "7" * 64))
    code = ProjectCode(files=(), links=(), notes=())
    effect = Effect(removed=("opt/venv/x",))
    plan = plan_project(parent, WITH_APT, code, effect)

    assert plan.layers[: len(below.layers)] == below.layers
    kinds = [layer.kind for layer in plan.layers[len(below.layers) :]]
    assert kinds == ["apt", "removal", "wheels", "overlay"]
    layer = plan.layers[len(below.layers)]
    assert isinstance(layer, ArtefactLayer)
    assert (layer.title, layer.blob.digest) == ("debian12 packages: curl, ffmpeg (2 packages)", APT.digest)
    facts = json.loads(plan.overlay.files[-1].data)
    assert facts["apt"]["packages"][0] == {
        "name": "ffmpeg",
        "version": "1:1.0-2",
        "architecture": "amd64",
        "sha256": "a" * 64,
    }
    without = plan_project(parent, LOCK, code, effect)
    assert [layer.kind for layer in without.layers[len(below.layers) :]] == ["removal", "wheels", "overlay"]
    assert "apt" not in json.loads(without.overlay.files[-1].data)
    assert {"etc/torchkiln/image.json", "etc/torchkiln/constraints.txt"} <= own_paths(below)


def test_the_settings_of_the_folder_are_required(tmp_path: Path) -> None:
    from torchkiln.projects.source import needs_of

    small = bench(tmp_path)
    (small.project / "requirements.txt").write_text("fsspec\n")
    (small.project / FILE).write_text('apt = ["git-lfs", "ffmpeg"]\n')
    assert needs_of(small.project, small.cell, small.store).apt == ("ffmpeg", "git-lfs")
