"""rootfs/ as it goes into images."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.errors import ConfigError
from torchkiln.overlay import load
from torchkiln.places import ROOTFS


def test_modes_are_normalised_and_files_sorted(tmp_path: Path) -> None:
    """A checkout's umask must not reach an image."""
    for name, mode in (("b/run", 0o770), ("b/data", 0o660), ("a", 0o600)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        path.chmod(mode)

    assert [(file.path, file.mode, file.data) for file in load(tmp_path)] == [
        ("a", 0o644, b"a"),
        ("b/data", 0o644, b"b/data"),
        ("b/run", 0o755, b"b/run"),
    ]


def test_links_are_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "to-file").symlink_to("/etc/passwd")
    (tmp_path / "to-folder").symlink_to("/etc")

    with pytest.raises(ConfigError) as caught:
        load(tmp_path)

    assert "to-file" in caught.value.message
    assert "to-folder" in caught.value.message


def test_a_missing_rootfs_is_told() -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load(Path("/nonexistent/rootfs"))


def test_our_own_rootfs_brings_what_the_config_starts() -> None:
    executable = {file.path for file in load(ROOTFS) if file.mode == 0o755}

    assert executable == {"opt/torchkiln/entrypoint", "opt/torchkiln/healthcheck"}
