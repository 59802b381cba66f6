"""`torchkiln verify`: digest and name, or every fault."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.oci_samples import tar_of
from tests.validated import OWN, build
from torchkiln.cli.verify import split_target, verify
from torchkiln.errors import ConfigError, VerificationFailed


def test_verify_prints_digest_and_name(tmp_path: Path) -> None:
    """stdout is data: a line an image."""
    layout = build(tmp_path, tar_of(OWN))

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert (done.exit_code, done.stdout) == (0, f"{layout.image('a').manifest} a\n")


def test_verify_tells_every_fault(tmp_path: Path) -> None:
    """Exit 12 by its exception, the faults in the message and, for machines, on stdout."""
    layout = build(tmp_path, tar_of([*OWN, *OWN]))

    done = CliRunner().invoke(verify, [str(layout.path), "--json"])

    assert isinstance(done.exception, VerificationFailed)
    assert "1 fault\na layers[1]: opt/venv/x.py: duplicate entry" in done.exception.message
    assert json.loads(done.stdout) == {
        "layout": str(layout.path),
        "images": [],
        "faults": [{"where": "a layers[1]", "what": "opt/venv/x.py: duplicate entry"}],
    }


def test_verify_knows_a_slip_from_a_fault(tmp_path: Path) -> None:
    """An unknown name or folder is the user's, not the layout's."""
    layout = build(tmp_path)
    for target in (f"{layout.path}:b", str(tmp_path / "nowhere"), f"{tmp_path}/nowhere:a"):
        assert isinstance(CliRunner().invoke(verify, [target]).exception, ConfigError)


def test_verify_of_a_name_in_a_broken_layout_tells_the_faults(tmp_path: Path) -> None:
    """Not the first that the reader meets: all, as the oracle lists them."""
    layout = build(tmp_path)
    (layout.path / "index.json").write_text('{"manifests": 1}')

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert isinstance(done.exception, VerificationFailed)
    assert "schemaVersion is None" in done.exception.message
    assert "manifests is not a list" in done.exception.message


def test_a_target_may_hold_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder wins over a split; digests have a colon too."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("a:b")

    assert split_target("a:b") == (Path("a:b"), None)
    assert split_target("a:b:sha256:12") == (Path("a:b"), "sha256:12")
    assert split_target("c") == (Path("c"), None)
