"""The Dockerfile and its companions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.write import FOLDERS, files
from tests.planned import PACKAGES, planned, wheel
from torchkiln.docker.dockerfile import load_templates, quote, render, render_folder
from torchkiln.errors import ConfigError
from torchkiln.util.places import TEMPLATES

TEXTS = load_templates(TEMPLATES)


@pytest.mark.parametrize("name", sorted(files()))
@pytest.mark.parametrize("os_name", FOLDERS)
def test_rendered_files_are_as_committed(os_name: str, name: str) -> None:
    """Red after a wanted change: `make golden`, and read the difference."""
    assert files(os_name)[name].decode() == (FOLDERS[os_name] / name).read_text("utf-8")


def test_a_system_decides_base_and_python_and_no_more_of_a_dockerfile() -> None:
    debian, ubuntu = (files(os_name)["Dockerfile"].decode().splitlines() for os_name in FOLDERS)

    assert "ARG BASE=ubuntu:22.04" in ubuntu
    assert any("/opt/venv/lib/python3.10/site-packages" in line for line in ubuntu)
    assert len(debian) == len(ubuntu)
    assert not any("python3.11" in line or "debian" in line for line in ubuntu)


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(render(planned(), TEXTS, PACKAGES))
    hadolint = Path(sys.executable).with_name("hadolint")

    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("", 0)


def test_requirements_hold_every_wheel_once_with_its_hash() -> None:
    plan = planned()

    written = render_folder(plan, TEXTS, PACKAGES)
    lines = [
        line
        for name, data in written.items()
        if name.startswith("requirements/")
        for line in data.decode().splitlines()
    ]

    assert sorted(lines) == [f"{w.name}=={w.version} --hash=sha256:{w.sha256}" for w in plan.locked.wheels]


def test_every_layer_of_wheels_is_one_run_in_the_plans_order() -> None:
    plan = planned()

    told = [line[2:] for line in render(plan, TEXTS, PACKAGES).splitlines() if line.startswith("# ")]

    titles = [layer.title for layer in plan.layers if layer.kind == "wheels"]
    assert [line for line in told if line in titles] == titles


def test_no_host_and_no_frontend_stands_in_it() -> None:
    text = render(planned(), TEXTS, PACKAGES)

    assert "# syntax" not in text
    assert "://" not in text


def test_a_lock_without_pip_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no pip"):
        render(planned("2.7.1", wheel("torch", "2.7.1", megabytes=800)), TEXTS, PACKAGES)


def test_a_template_that_names_the_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        render(planned(), {**TEXTS, "parts/config.j2": "{{ nonsense }}"}, PACKAGES)


def test_missing_templates_are_told(tmp_path: Path) -> None:
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
