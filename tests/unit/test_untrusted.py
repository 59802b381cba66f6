"""The lock records that a source is untrusted; torch's wheel must match the public record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reports
from tests.planned import FACTS, answer
from torchkiln.base import artefact
from torchkiln.base.recipe import edits, recipe, sources_of, variables
from torchkiln.errors import BuildFailed, ConfigError, GateRefused
from torchkiln.gate.gate import clear, judge, override
from torchkiln.index.settings import index_settings
from torchkiln.locks.file import from_json, to_json
from torchkiln.locks.lock import PublicRecord, System, Versions, load_locked, lock, save
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.public_record import recorded
from torchkiln.model.cell import Limit, Source
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedBase, LockedCell, LockedWheel
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
def test_the_prefix_is_removed_once(address: str) -> None:
    assert declared(f" untrusted+{address} ") == (address, True)
    if not address.startswith(("untrusted+", "stand-in+")):
        assert declared(address) == (address, False)
        assert declared(f"x{address}untrusted+") == (f"x{address}untrusted+", False)


def test_the_prefix_of_earlier_versions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stand-in\+, which is no longer supported"):
        declared("stand-in+http://127.0.0.1:8/")


def test_an_index_is_untrusted_by_the_prefix_of_its_url() -> None:
    settings_read = index_settings({INDEX: "untrusted+http://127.0.0.1:8/whl/cu118/"}, pip_config="")
    assert (settings_read.pytorch_url, settings_read.untrusted) == (
        "http://127.0.0.1:8/whl/cu118",
        (Source.PYTORCH,),
    )
    assert index_settings({INDEX: "http://127.0.0.1:8/whl"}, pip_config="").untrusted == ()
    assert index_settings({}, pip_config="").untrusted == ()


def test_each_distribution_has_its_own_variables() -> None:
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
def test_invalid_urls_and_paths_are_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        sources_of(UBUNTU, {name: value})


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE, OF_TOOLS], ids=["index", "base", "tools"])
def test_the_lock_records_an_untrusted_source(locked: LockedCell, tmp_path: Path) -> None:
    assert is_untrusted(locked)
    assert from_json(to_json(locked)) == locked
    assert load_locked(tmp_path, save(tmp_path, locked).name) == locked
    assert artefact.from_json(artefact.to_json(locked.base), LockedBase) == locked.base


def test_a_lock_of_trusted_sources_has_no_mark() -> None:
    """Committed locks therefore keep their bytes."""
    for locked in (reports.LOCKED, DEVEL):
        assert b"untrusted" not in to_json(locked)
        assert not is_untrusted(locked)


TOOLKIT = replace(
    reports.LOCKED,
    resolution=replace(reports.LOCKED.resolution, limits=(Limit(fact="rules.untrusted-toolkit"),)),
)


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE, TOOLKIT], ids=["index", "base", "toolkit"])
def test_the_image_has_a_label(locked: LockedCell) -> None:
    assert is_untrusted(locked)
    made = plan(locked, (), aliases=(), lock_digest=reports.OTHER)
    assert dict(made.config.labels)["torchkiln.untrusted"] == "true"
    facts = next(file for file in made.layers[-1].files if file.path.endswith("image.json"))
    assert json.loads(facts.data)["untrusted"] is True


@pytest.mark.parametrize("locked", [OF_INDEX, OF_BASE], ids=["index", "base"])
def test_the_gate_refuses_an_untrusted_image_without_an_override(locked: LockedCell) -> None:
    decision = judge([], Policy(accept_unsigned=True), locked, reports.SUITE, image=reports.IMAGE)
    [settings_read] = [why for what, why in decision.missing if what == "lock"]

    assert settings_read.startswith(USES)
    with pytest.raises(GateRefused):
        clear(decision)
    assert override(decision, "for a demonstration").override == "for a demonstration"
    real = judge([], Policy(accept_unsigned=True), reports.LOCKED, reports.SUITE, image=reports.IMAGE)
    assert "lock" not in dict(real.missing)


def test_an_unused_untrusted_index_does_not_count() -> None:
    wheels = reports.LOCKED.wheels
    shelf = type("Given", (), {"wheels": lambda self, request: wheels})()
    settings_read = lock(reports.LOCKED.resolution, shelf, ON, TODAY, untrusted=[Source.PYTORCH])
    assert not settings_read.untrusted


# --- torch's wheel by public record ---------------------------------------------------------------


class Shelf:
    """A fake index that has torch with the hash *torch*, and numpy as from the default index."""

    def __init__(self, sha256: str) -> None:
        self._sha256 = sha256

    def wheels(self, request: IndexRequest) -> tuple[LockedWheel, ...]:
        def one(name: str, version: str, sha256: str, index: Source) -> LockedWheel:
            filename = f"{name}-{version}-cp311-cp311-linux_x86_64.whl"
            return LockedWheel(
                name=name, version=version, filename=filename, sha256=sha256, size=1, index=index
            )

        torch = one("torch", "2.2.2+cu118", self._sha256, Source.PYTORCH)
        return (torch, one("numpy", "1.26.4", "0" * 64, Source.DEFAULT))


def test_the_record_is_for_pytorchs_index_and_one_python() -> None:
    assert CU118.build
    known = {python: recorded(FACTS, CU118.build, python) for python in ("3.10", "3.11", "3.12")}
    settings_read = {
        (one, tag): sha for one, tag, name, sha in FACTS.releases["2.2.2"].index_sha256 if name == "torch"
    }

    assert known == {
        "3.10": settings_read["cu118", "cp310"],
        "3.11": settings_read["cu118", "cp311"],
        "3.12": settings_read.get(("cu118", "cp312")),
    }
    default = answer(
        "2.1.2", "12.1"
    ).build  # cu121, PyTorch's index has other bytes, which are also on record
    assert default
    assert recorded(FACTS, default, "3.11") is None


def test_a_wheel_that_differs_from_the_record_is_refused_unless_untrusted() -> None:
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
