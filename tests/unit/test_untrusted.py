"""A lock keeps that it uses an untrusted source; torch's wheel is the one on public record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reports
from tests.gridcase import FACTS, answer
from torchkiln.base import artefact
from torchkiln.base.recipe import recipe
from torchkiln.base.sources import edits, sources_of, variables
from torchkiln.errors import BuildFailed, ConfigError, GateRefused
from torchkiln.gate.gate import clear, judge, override
from torchkiln.index.settings import index_settings
from torchkiln.lock.lock import from_json, load_locked, lock, save, to_json
from torchkiln.lock.request import PublicRecord, System, Versions
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.public_record import recorded
from torchkiln.model.cell import Limit, Source
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.untrusted import USES, declared, is_untrusted
from torchkiln.plan.plan import plan
from torchkiln.util.places import ROOT

DEBIAN, UBUNTU = recipe("debian12"), recipe("ubuntu22.04")
INDEX = "TORCHKILN_INDEX_PYTORCH"
CU118 = answer("2.2.2", "11.8")
OF_INDEX = replace(reports.LOCKED, untrusted=True)
DEVEL = load_locked(ROOT / "images", "2.11.0-cuda13.0-cudnn9-devel")
assert DEVEL.tools
OF_TOOLS = replace(DEVEL, tools=replace(DEVEL.tools, untrusted=True))
OF_BASE = replace(reports.LOCKED, base=replace(reports.LOCKED.base, untrusted=True))
ON, TODAY = System(base=reports.LOCKED.base), Versions(as_of="2026-11-21")


@given(st.text(alphabet=st.characters(exclude_categories=["Z", "C"])))
def test_the_word_is_taken_off_once_and_nothing_else_is(address: str) -> None:
    assert declared(f" untrusted+{address} ") == (address, True)
    if not address.startswith(("untrusted+", "stand-in+")):
        assert declared(address) == (address, False)
        assert declared(f"x{address}untrusted+") == (f"x{address}untrusted+", False)


def test_the_prefix_of_earlier_versions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stand-in\+, which is no longer supported"):
        declared("stand-in+http://127.0.0.1:8/")


def test_the_index_says_so_in_its_address() -> None:
    told = index_settings({INDEX: "untrusted+http://127.0.0.1:8/whl/cu118/"}, pip_config="")
    assert (told.pytorch_url, told.untrusted) == ("http://127.0.0.1:8/whl/cu118", (Source.PYTORCH,))
    assert index_settings({INDEX: "http://127.0.0.1:8/whl"}, pip_config="").untrusted == ()
    assert index_settings({}, pip_config="").untrusted == ()


def test_each_distribution_has_variables_of_its_own() -> None:
    assert variables(DEBIAN)[0] == "TORCHKILN_DEBIAN_MIRROR"
    environ = {
        "TORCHKILN_DEBIAN_MIRROR": "http://mirror.test/debian",
        "TORCHKILN_UBUNTU_SECURITY_MIRROR": "untrusted+copy:///srv/ubuntu",
        "TORCHKILN_UBUNTU_KEYRING": "/srv/keys.gpg",
    }
    debian, ubuntu = sources_of(DEBIAN, environ), sources_of(UBUNTU, environ)

    assert (debian.mirror, debian.security_mirror, debian.untrusted) == (
        "http://mirror.test/debian",
        "",
        False,
    )
    assert (ubuntu.mirror, ubuntu.security_mirror, ubuntu.untrusted) == ("", "copy:///srv/ubuntu", True)
    assert (str(debian.keyring), str(ubuntu.keyring)) == (str(DEBIAN.keyring), "/srv/keys.gpg")
    assert edits(ubuntu) == ("/-security /s|^deb [^ ]*|deb copy:///srv/ubuntu|",)
    assert edits(sources_of(UBUNTU, {})) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHKILN_UBUNTU_MIRROR", "untrusted+"[:-1] + "http://x"),
        ("TORCHKILN_UBUNTU_MIRROR", "untrusted+/srv/ubuntu"),
        ("TORCHKILN_UBUNTU_SECURITY_MIRROR", "http://x|evil"),
        ("TORCHKILN_UBUNTU_KEYRING", "keys.gpg"),
        ("TORCHKILN_UBUNTU_KEYRING", "/srv/keys gpg"),
    ],
)
def test_what_is_no_address_or_no_path_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        sources_of(UBUNTU, {name: value})


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE, OF_TOOLS], ids=["index", "base", "tools"])
def test_a_lock_keeps_it(locked: LockedCell, tmp_path: Path) -> None:
    assert is_untrusted(locked)
    assert from_json(to_json(locked)) == locked
    assert load_locked(tmp_path, save(tmp_path, locked).name) == locked
    assert artefact.from_json(artefact.to_json(locked.base)) == locked.base


def test_a_lock_of_other_sources_says_nothing() -> None:
    """So the committed ones keep their bytes."""
    for locked in (reports.LOCKED, DEVEL):
        assert b"untrusted" not in to_json(locked)
        assert not is_untrusted(locked)


TOOLKIT = replace(
    reports.LOCKED,
    resolution=replace(reports.LOCKED.resolution, limits=(Limit(fact="rules.untrusted-toolkit"),)),
)


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE, TOOLKIT], ids=["index", "base", "toolkit"])
def test_the_image_says_so(locked: LockedCell) -> None:
    assert is_untrusted(locked)
    made = plan(locked, (), aliases=(), lock_digest=reports.OTHER)
    assert dict(made.config.labels)["torchkiln.untrusted"] == "true"
    facts = next(file for file in made.layers[-1].files if file.path.endswith("image.json"))
    assert json.loads(facts.data)["untrusted"] is True


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE], ids=["index", "base"])
def test_the_gate_refuses_whatever_passed_unless_it_is_told_why(locked: LockedCell) -> None:
    judged = judge([], Policy(strangers=True), locked, reports.SUITE, image=reports.IMAGE)
    [told] = [why for what, why in judged.missing if what == "lock"]

    assert told.startswith(USES)
    with pytest.raises(GateRefused):
        clear(judged)
    assert override(judged, "for a talk").override == "for a talk"
    real = judge([], Policy(strangers=True), reports.LOCKED, reports.SUITE, image=reports.IMAGE)
    assert "lock" not in dict(real.missing)


def test_an_untrusted_index_that_gave_nothing_does_not_count() -> None:
    wheels = reports.LOCKED.wheels
    shelf = type("Given", (), {"wheels": lambda self, wanted: wheels})()
    told = lock(reports.LOCKED.resolution, shelf, ON, TODAY, untrusted=[Source.PYTORCH])
    assert not told.untrusted


# --- torch's wheel by public record ---------------------------------------------------------------


class Shelf:
    """An index that gives torch with that hash, and a companion of the default index."""

    def __init__(self, sha256: str) -> None:
        self._sha256 = sha256

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        def one(name: str, version: str, sha256: str, index: Source) -> LockedWheel:
            filename = f"{name}-{version}-cp311-cp311-linux_x86_64.whl"
            return LockedWheel(
                name=name, version=version, filename=filename, sha256=sha256, size=1, index=index
            )

        torch = one("torch", "2.2.2+cu118", self._sha256, Source.PYTORCH)
        return (torch, one("numpy", "1.26.4", "0" * 64, Source.DEFAULT))


def test_the_record_is_of_pytorchs_index_and_one_python() -> None:
    assert CU118.build
    known = {python: recorded(FACTS, CU118.build, python) for python in ("3.10", "3.11", "3.12")}
    told = {
        (one, tag): sha for one, tag, name, sha in FACTS.releases["2.2.2"].index_sha256 if name == "torch"
    }

    assert known == {
        "3.10": told["cu118", "cp310"],
        "3.11": told["cu118", "cp311"],
        "3.12": told.get(("cu118", "cp312")),
    }
    default = answer("2.1.2", "12.1").build  # cu121, of which PyTorch's index has other bytes, on record too
    assert default
    assert recorded(FACTS, default, "3.11") is None


def test_a_wheel_that_is_not_the_recorded_one_is_refused_but_of_an_untrusted_index() -> None:
    assert CU118.build
    known = recorded(FACTS, CU118.build, "3.11")
    assert known

    def locked(sha256: str, *of: Source, record: str | None = known) -> LockedCell:
        return lock(CU118, Shelf(sha256), ON, TODAY, untrusted=of, record=PublicRecord(torch=record))

    assert not locked(known).untrusted
    assert locked("1" * 64, record=None).untrusted is False
    assert locked("1" * 64, Source.PYTORCH).untrusted
    assert locked(known, *Source).untrusted
    with pytest.raises(BuildFailed, match=f"{known} on public record") as caught:
        locked("1" * 64)
    assert caught.value.exit_code == 6
    assert "untrusted+" in caught.value.hint
