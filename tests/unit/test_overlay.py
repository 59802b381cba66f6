"""rootfs/ as it goes into images."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.errors import ConfigError
from torchkiln.plan.rootfs import load
from torchkiln.util.places import ROOTFS


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


def test_what_tools_leave_beside_programs_stays_behind(tmp_path: Path) -> None:
    """Python's __pycache__, and folders that call themselves a cache; everything else goes in."""
    taken = {"a.py", ".hidden", "b/CACHEDIR", "b/pycache/x", "CACHEDIR.TAG"}
    left = {
        "__pycache__/a.pyc",
        "b/__pycache__/deep/a.pyc",
        "b/.tool_cache/CACHEDIR.TAG",
        "b/.tool_cache/3.11/x",
    }
    for name in taken | left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "b/.tool_cache/link").symlink_to("/etc")

    assert {file.path for file in load(tmp_path)} == taken


def test_all_of_our_own_rootfs_is_taken() -> None:
    """Each file of each folder that is no cache."""
    there = {path for path in ROOTFS.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    caches = {path.parent for path in there if path.name == "CACHEDIR.TAG"}
    kept = {path for path in there if not caches & set(path.parents)}

    assert {ROOTFS / file.path for file in load(ROOTFS)} == kept
