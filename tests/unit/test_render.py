"""Rendered files; an independent parser of Dockerfiles finds the plan's config in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging import tags
from packaging.utils import parse_wheel_filename

from tests.golden.write import FOLDERS, files
from tests.planned import PACKAGES, planned, wheel
from torchkiln.docker.dockerfile import load_templates, pip_options, quote, render
from torchkiln.errors import ConfigError
from torchkiln.locks.lock import load_locked
from torchkiln.model.cell import Source
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.util.places import ROOT, TEMPLATES

TEXTS = load_templates(TEMPLATES)


@pytest.mark.parametrize("name", sorted(files()))
@pytest.mark.parametrize("os_name", FOLDERS)
def test_rendered_files_are_as_committed(os_name: str, name: str) -> None:
    """If the change is intended, run `make golden` and review the diff."""
    assert files(os_name)[name].decode() == (FOLDERS[os_name] / name).read_text("utf-8")


@pytest.mark.proof
def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    """The first and last Dockerfile of each kind are checked: others differ only in versions and hashes."""
    made = []
    for name, plan in {"few": planned(), "many": many()}.items():
        made.append(tmp_path / name)
        made[-1].write_text(render(plan, TEXTS, PACKAGES))
    hadolint = Path(sys.executable).with_name("hadolint")
    paths = sorted(ROOT.glob("images/*/Dockerfile"))
    committed = {
        (end, re.sub(r"[0-9.]+", "0", path.parent.name)): path
        for end, ordered in (("last", paths), ("first", paths[::-1]))
        for path in ordered
    }
    assert len(committed) >= 6
    done = subprocess.run([hadolint, *made, *committed.values()], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def many(count: int = 9) -> ImagePlan:
    """A plan with so many dependencies that the Dockerfile does not mount each of them separately."""
    small = (wheel(f"small-{number}", "1.0", megabytes=1) for number in range(count))
    return planned("2.7.1", wheel("pip", "25.3", megabytes=2), wheel("torch", "2.7.1", megabytes=821), *small)


def steps(dockerfile: str) -> list[str]:
    """The RUN instructions that install wheels."""
    return [
        step for step in re.findall(r"^RUN .*?(?=^#|\Z)", dockerfile, re.M | re.S) if "pip install" in step
    ]


def test_many_wheels_use_a_separate_stage() -> None:
    plan = many()
    dockerfile = render(plan, TEXTS, PACKAGES)
    (layer,) = (layer for layer in plan.of(WheelLayer) if len(layer.wheels) > 8)
    (stage,) = re.findall(r"FROM \$\{BASE\} AS wheels-2\n(.*?)\n\n", dockerfile, re.S)
    copied = stage.partition("/wheels/")[0].replace("\\", "").split()
    assert copied == ["COPY", "--from=wheels", *(wheel.filename for wheel in layer.wheels)]
    (step,) = (step for step in steps(dockerfile) if "from=wheels-2" in step)
    assert step.count("--mount") == 2
    assert "-r /wheels/requirements.txt" in step


def test_the_wheels_of_every_lock_fit_the_printed_options() -> None:
    """pip derives the tags from `--python-version`, `--abi` and `--platform`, whatever the host is."""
    locks = sorted(
        place for place in ROOT.glob("images/*/lock.json") if place.with_name("Dockerfile").exists()
    )
    assert len(locks) >= 25
    for place in locks:
        locked = load_locked(ROOT / "images", place.parent.name)
        words = pip_options(locked)
        options = {
            name: [b for a, b in pairwise(words) if a == f"--{name}"]
            for name in ("python-version", "abi", "platform")
        }
        python = tuple(int(part) for part in options["python-version"][0].split(".")[:2])
        known = {
            *tags.cpython_tags(python, options["abi"], options["platform"]),
            *tags.compatible_tags(python, f"cp{python[0]}{python[1]}", options["platform"]),
        }
        glibc = SYSTEMS[locked.resolution.cell.os].glibc
        legacy = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17), "linux": (0, 0)}
        for platform in options["platform"]:
            name, _, minor = platform.removesuffix("_x86_64").partition("_2_")
            assert (legacy[name] if not minor else (2, int(minor))) <= glibc
        assert [w.filename for w in locked.wheels if not known & parse_wheel_filename(w.filename)[3]] == []
        assert " ".join(words) in (place.parent / "Dockerfile").read_text()


def test_the_header_names_the_image_and_the_indexes_that_it_needs() -> None:
    plan = planned()
    assert f" -t pytorch-cuda:{plan.tag} " in render(plan, TEXTS, PACKAGES)
    assert "PIP_EXTRA_INDEX_URL" not in render(plan, TEXTS, PACKAGES)
    pytorch_wheel = replace(wheel("torch", "2.7.1", megabytes=800), index=Source.PYTORCH)
    text = render(planned("2.7.1", wheel("pip", "25.3", megabytes=2), pytorch_wheel), TEXTS, PACKAGES)
    assert (
        "# Not on the default index: torch. Name theirs in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS.\n" in text
    )


def test_a_lock_without_pip_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no pip"):
        render(planned("2.7.1", wheel("torch", "2.7.1", megabytes=800)), TEXTS, PACKAGES)


def test_a_template_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        render(planned(), {**TEXTS, "parts/config.j2": "{{ nonsense }}"}, PACKAGES)


def test_missing_templates_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Dockerfile\.j2: no such file"):
        load_templates(tmp_path)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n", exclude_categories=["C"])))
def test_a_quoted_word_is_one_word_and_expands_nothing(value: str) -> None:
    quoted = quote(value)
    inner = quoted[1:-1]
    plain = inner.replace("\\\\", "").replace('\\"', "").replace("\\$", "")
    assert not set(plain) & set('"$\\')
    assert inner.replace("\\$", "$").replace('\\"', '"').replace("\\\\", "\\") == value


def test_a_line_break_in_a_label_is_refused() -> None:
    with pytest.raises(ConfigError, match="line break"):
        quote("two\nlines")


def test_the_shell_scripts_of_rootfs_parse() -> None:
    shell = shutil.which("sh")
    assert shell
    for name in ("opt/torchkiln/entrypoint", "opt/torchkiln/healthcheck", "etc/profile.d/torchkiln.sh"):
        subprocess.run([shell, "-n", TEMPLATES.parent / "rootfs" / name], check=True)


# --- the Dockerfile has the plan's config ----------------------------------------------------------
