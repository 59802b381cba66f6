"""What a container lets pip and uv do: torch stays as it was proved, a user's packages go where they can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.place import shared
from tests.outward import outward
from tests.workplace import Workplace
from torchkiln.util.places import ROOTFS

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

REFUSED = "torchkiln: if this conflicts with torch"
FREE = ("-e", "PIP_CONSTRAINT=", "-e", "UV_CONSTRAINT=")
PROGRAMS = {"pip": ["pip", "install", "--dry-run"], "uv": ["uv", "pip", "install", "--dry-run"]}


@pytest.fixture
def options(workplace: Workplace, shared: Path) -> list[str]:
    """The slim image has no torch to guard, so numpy, as it is there, takes its place; and a way outward."""
    ran = workplace.run(command=["python", "-c", "import numpy; print(numpy.__version__)"])
    (shared / "constraints.txt").write_text(f"numpy=={ran.stdout.strip()}\n")
    return [*outward(shared), "--volume", f"{shared / 'constraints.txt'}:/etc/torchkiln/constraints.txt:ro"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_proved_is_not_replaced(workplace: Workplace, options: list[str], program: str) -> None:
    """Neither asked for nor dragged along; and the message names the way out, which is one."""
    command = [*PROGRAMS[program], "numpy==2.3.0"]
    refused = workplace.run(*options, command=command)
    assert refused.returncode != 0
    assert REFUSED in refused.stderr
    assert "PIP_CONSTRAINT= UV_CONSTRAINT= pip install" in refused.stderr

    free = workplace.run(*options, *FREE, command=command)
    assert free.returncode == 0, free.stderr
    assert "2.3.0" in free.stdout + free.stderr


def test_the_advice_leaves_the_images_own_alone(workplace: Workplace, options: list[str]) -> None:
    """An environment beside it has the other version; here nothing has changed."""
    advice = "python -m venv ~/other && PIP_CONSTRAINT= ~/other/bin/pip install"
    assert f"{advice} ...\n" in (ROOTFS / "opt/torchkiln/guard").read_text()
    other = f"{advice} -q numpy==2.3.0"
    shown = "-c 'import numpy; print(numpy.__version__)'"
    ran = workplace.run(
        *options, command=["sh", "-c", f"{other} && ~/other/bin/python {shown}; python {shown}"]
    )

    theirs, ours = ran.stdout.split()
    assert (theirs, ours != theirs) == ("2.3.0", True)


def test_an_interactive_shell_explains_it_too(workplace: Workplace, options: list[str]) -> None:
    """And a package that asks for nothing of torch is installed."""
    installed = "pip install -q iniconfig; python -c 'import iniconfig'; exit $?"
    lines = f"pip install -q numpy==2.3.0; echo code $?; {installed}\n"
    with workplace.started(*options, command=["sleep", "600"]) as container:
        done = container.docker(
            "exec", "--interactive", container.name, "bash", "-i", text=lines, check=False
        )

    assert (done.returncode, "code 1\n" in done.stdout) == (0, True), done.stderr
    assert done.stderr.count(REFUSED) == 1


def test_who_may_not_write_to_the_venv_installs_for_himself(workplace: Workplace, options: list[str]) -> None:
    """Into his own site, and finds his programs; what the image has cannot be shadowed from there."""
    shown = "python -c 'import tabulate; print(tabulate.__file__)'"
    script = (
        f"pip install -q tabulate && command -v tabulate && {shown};"
        "pip install -q --force-reinstall --no-deps pygments || echo refused"
    )
    ran = workplace.run(*options, "--user", "12345:12345", command=["sh", "-c", script])

    assert ran.stdout.splitlines() == [
        "/tmp/home-12345/.local/bin/tabulate",
        "/tmp/home-12345/.local/lib/python3.11/site-packages/tabulate/__init__.py",
        "refused",
    ], ran.stderr
