"""Rendered files; an independent parser of Dockerfiles finds the plan's config in them."""

from __future__ import annotations

import json
import re
import shlex
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
from torchkiln.locks.file import requirements_txt
from torchkiln.locks.lock import load_locked
from torchkiln.model.cell import Source
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS, OperatingSystem
from torchkiln.model.plan import ImageConfig, ImagePlan, WheelLayer
from torchkiln.plan.plan import CONSTRAINTS
from torchkiln.util.places import ROOT, TEMPLATES

TEXTS = load_templates(TEMPLATES)


@pytest.mark.parametrize("name", sorted(files()))
@pytest.mark.parametrize("os_name", FOLDERS)
def test_rendered_files_are_as_committed(os_name: str, name: str) -> None:
    """If the change is intended, run `make golden` and review the diff."""
    assert files(os_name)[name].decode() == (FOLDERS[os_name] / name).read_text("utf-8")


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=str)
def test_a_system_changes_only_base_and_python_of_a_dockerfile(system: OperatingSystem) -> None:
    default, lines = (files(name)["Dockerfile"].decode().splitlines() for name in (DEFAULT_OS, system.name))
    user = [f"id {system.docker_user} " in line for line in lines] if system.docker_user else []
    assert f"ARG BASE={system.docker_base}" in lines
    assert any(f"/opt/venv/lib/python{system.python}/site-packages" in line for line in lines)
    assert len(lines) == len(default) + sum(user)
    assert sum(user) == bool(system.docker_user)
    if system.name != DEFAULT_OS:
        assert not any("python3.11" in line or "debian12" in line for line in lines)


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


def test_every_wheel_is_required_once_with_its_hash() -> None:
    """The requirement is in a RUN instruction, or in a line of requirements.txt that one selects."""
    for plan in (planned(), many()):
        dockerfile = render(plan, TEXTS, PACKAGES)
        lines = re.findall(r"^\S+==\S+ --hash=\S+$", dockerfile, re.M)
        picked = [
            name
            for names in re.findall(r"for name in (.*?); do .\n +grep", dockerfile, re.S)
            for name in names.split()
        ]
        of = {line.split("==")[0]: line for line in requirements_txt(plan.locked).decode().splitlines()}
        found = [*lines, *(of[name] for name in picked if name != "\\")]
        assert sorted(found) == sorted(
            f"{w.name}=={w.version} --hash=sha256:{w.sha256}" for w in plan.locked.wheels
        )


def test_a_step_mounts_its_own_wheels_and_pip_and_no_folder() -> None:
    plan = planned()
    layers = plan.of(WheelLayer)
    found = steps(render(plan, TEXTS, PACKAGES))
    assert len(found) == len(layers) > 5
    for step, layer in zip(found, layers, strict=True):
        mounts = re.findall(r"--mount=type=bind,from=wheels,source=(\S+),target=(\S+) ", step)
        assert mounts[0] == ("pip-25.3-py3-none-any.whl", "/pip-25.3-py3-none-any.whl")
        assert mounts[1:] == [(w.filename, f"/wheels/{w.filename}") for w in layer.wheels]
        assert step.count("--mount") == len(mounts)


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


def test_every_layer_of_wheels_is_one_run_in_the_plans_order() -> None:
    plan = planned()
    comments = [line[2:] for line in render(plan, TEXTS, PACKAGES).splitlines() if line.startswith("# ")]
    titles = [layer.title for layer in plan.layers if layer.kind == "wheels"]
    assert [line for line in comments if line in titles] == titles


def test_the_dockerfile_names_no_host_and_no_frontend() -> None:
    text = render(planned(), TEXTS, PACKAGES)
    assert "# syntax" not in text
    assert "://" not in text


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


Instructions = list[tuple[str, str]]


@pytest.fixture(scope="module")
def instructions() -> Instructions:
    """Keyword and arguments of each instruction in the last build stage."""
    text = render(planned(), load_templates(TEMPLATES), PACKAGES)
    text = re.sub(r"(<<'EOF'.*)\n(?:.*\n)*?EOF\n", r"\1\n", text)  # here-documents are removed
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]
    last = max(index for index, (keyword, _) in enumerate(found) if keyword == "FROM")
    return found[last:]


@pytest.fixture(scope="module")
def config() -> ImageConfig:
    return planned().config


def instruction(instructions: Instructions, keyword: str) -> str:
    (found,) = (arguments for name, arguments in instructions if name == keyword)
    return found


def pairs(arguments: str) -> tuple[tuple[str, str], ...]:
    r"""The pairs in `A="b" C="d"`. In double quotes, shlex replaces \" and \\, but not \$."""
    words = (word.partition("=") for word in shlex.split(arguments))
    return tuple((name, value.replace("\\$", "$")) for name, _, value in words)


def test_environment(instructions: Instructions, config: ImageConfig) -> None:
    assert pairs(instruction(instructions, "ENV")) == config.env


def test_labels(instructions: Instructions, config: ImageConfig) -> None:
    assert pairs(instruction(instructions, "LABEL")) == config.labels


def test_entrypoint_and_cmd(instructions: Instructions, config: ImageConfig) -> None:
    assert tuple(json.loads(instruction(instructions, "ENTRYPOINT"))) == config.entrypoint
    # ENTRYPOINT clears the CMD that is inherited from the base image.
    assert config.cmd == ()
    assert "CMD" not in dict(instructions)


def test_ports_volumes_workdir_and_signal(instructions: Instructions, config: ImageConfig) -> None:
    assert tuple(instruction(instructions, "EXPOSE").split()) == config.ports
    assert tuple(json.loads(instruction(instructions, "VOLUME"))) == config.volumes
    assert instruction(instructions, "WORKDIR") == config.workdir
    assert instruction(instructions, "STOPSIGNAL") == config.stop_signal


def test_healthcheck(instructions: Instructions, config: ImageConfig) -> None:
    options, _, command = instruction(instructions, "HEALTHCHECK").partition("CMD ")
    check = config.healthcheck
    assert check is not None
    assert dict(re.findall(r"--([a-z-]+)=(\S+)", options)) == {
        "interval": f"{check.interval}s",
        "timeout": f"{check.timeout}s",
        "start-period": f"{check.start_period}s",
        "retries": str(check.retries),
    }
    assert tuple(json.loads(command)) == check.command


def test_files_of_rootfs_are_copied_with_their_modes(instructions: Instructions) -> None:
    copied = {}
    for keyword, arguments in instructions:
        if keyword == "COPY":
            *sources, target = [word for word in arguments.split() if not word.startswith("--")]
            mode = re.search(r"--chmod=(\d+)", arguments)
            assert mode
            for source in sources:
                name = source.rsplit("/", maxsplit=1)[-1] if target.endswith("/") else ""
                copied[target + name] = int(mode[1], 8)
    assert copied == {f"/{file.path}": file.mode for file in planned().layers[-1].files}


def test_the_constraints_are_in_the_dockerfile_byte_for_byte() -> None:
    plan = planned()
    text = render(plan, load_templates(TEMPLATES), PACKAGES)
    (found,) = re.findall(r"<<'EOF' /etc/torchkiln/constraints.txt\n(.*?)EOF\n", text, re.DOTALL)
    (expected,) = (file.data for file in plan.overlay.files if file.path == CONSTRAINTS)
    assert found.encode() == expected
