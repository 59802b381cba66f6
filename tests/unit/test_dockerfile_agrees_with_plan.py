"""An independent reading of the Dockerfile comes to the plan's config: the two engines' images agree."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.planned import PACKAGES, planned
from torchkiln.docker.dockerfile import load_templates, render
from torchkiln.model.plan import ImageConfig
from torchkiln.plan.plan import CONSTRAINTS
from torchkiln.util.places import TEMPLATES

Instructions = list[tuple[str, str]]


@pytest.fixture(scope="module")
def instructions() -> Instructions:
    """Keyword and arguments of each instruction of the last stage."""
    text = render(planned(), load_templates(TEMPLATES), PACKAGES)
    text = re.sub(r"(<<'EOF'.*)\n(?:.*\n)*?EOF\n", r"\1\n", text)  # without the heredocs' contents
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line]
    last = max(index for index, (keyword, _) in enumerate(found) if keyword == "FROM")
    return found[last:]


@pytest.fixture(scope="module")
def config() -> ImageConfig:
    return planned().config


def one(instructions: Instructions, keyword: str) -> str:
    (found,) = (arguments for name, arguments in instructions if name == keyword)
    return found


def pairs(arguments: str) -> tuple[tuple[str, str], ...]:
    """`A="b" C="d"` as pairs: in double quotes shlex undoes \\" and \\\\, but not \\$."""
    words = (word.partition("=") for word in shlex.split(arguments))
    return tuple((name, value.replace("\\$", "$")) for name, _, value in words)


def test_environment(instructions: Instructions, config: ImageConfig) -> None:
    assert pairs(one(instructions, "ENV")) == config.env


def test_labels(instructions: Instructions, config: ImageConfig) -> None:
    assert pairs(one(instructions, "LABEL")) == config.labels


def test_entrypoint_and_cmd(instructions: Instructions, config: ImageConfig) -> None:
    assert tuple(json.loads(one(instructions, "ENTRYPOINT"))) == config.entrypoint
    # ENTRYPOINT empties an inherited CMD by itself.
    assert config.cmd == ()
    assert "CMD" not in dict(instructions)


def test_ports_volumes_workdir_and_signal(instructions: Instructions, config: ImageConfig) -> None:
    assert tuple(one(instructions, "EXPOSE").split()) == config.ports
    assert tuple(json.loads(one(instructions, "VOLUME"))) == config.volumes
    assert one(instructions, "WORKDIR") == config.workdir
    assert one(instructions, "STOPSIGNAL") == config.stop_signal


def test_healthcheck(instructions: Instructions, config: ImageConfig) -> None:
    options, _, command = one(instructions, "HEALTHCHECK").partition("CMD ")
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


def test_the_constraints_stand_in_it_byte_for_byte() -> None:
    plan = planned()
    text = render(plan, load_templates(TEMPLATES), PACKAGES)

    (found,) = re.findall(r"<<'EOF' /etc/torchkiln/constraints.txt\n(.*?)EOF\n", text, re.DOTALL)
    (expected,) = (file.data for file in plan.overlay.files if file.path == CONSTRAINTS)
    assert found.encode() == expected
