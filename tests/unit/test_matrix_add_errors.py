"""Errors of `matrix add torch X`: unknown releases, broken wheels and metadata, a failing index."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.added_release import CU12, LIBRARY, Workspace, tag, workspace
from tests.unit.test_matrix_add import proposed
from torchkiln.errors import BuildFailed, ConfigError, Unresolvable
from torchkiln.matrix import add_release

__all__ = ["workspace"]


@pytest.mark.parametrize(
    "library", [b"", b"sm_75 sm_90", b"\0sm_75 sm_90\0sm_75 sm_80\0", b"\0sm_90\0", b"\0sm_7x sm_90\0"]
)
def test_a_library_that_does_not_name_its_gpu_code(workspace: Workspace, library: bytes) -> None:
    workspace.server.add(
        "default", "torch", "2.99.4", requires=CU12, tag=tag("cp311"), files={LIBRARY: library}
    )

    proposal = proposed(workspace.run("torch", "2.99.4")[1])
    assert proposal["variants"]["cu128"] == {"archs": ["TODO"], "source": "wheel"}


def test_a_library_that_is_too_large(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_release, "_LIBRARY_BYTES", 10)
    error = workspace.refused("torch", "2.99.0")

    assert isinstance(error, BuildFailed)
    assert "invalid wheel: libtorch_python.so has more than 10 bytes" in error.message


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.9", "not found on the index; nearest: 2.9.1, "),
        ("2.98.7", "not found on the index; nearest: 2.99.0, 2.99.1, "),
        ("two", "not found on the index; nearest: 2.99.3, 2.99.2, "),
        ("2.99.2", "requires neither a CUDA runtime nor cuda-toolkit"),
        ("2.99.3", "no wheel for Linux x86_64"),
    ],
)
def test_an_impossible_request_is_refused_with_the_available_ones(
    workspace: Workspace, version: str, why: str
) -> None:
    error = workspace.refused("torch", version)

    assert isinstance(error, ConfigError)
    assert why in error.message
    assert error.hint


def test_an_index_that_does_not_respond(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    workspace.server.faults.page_errors = [503] * 6

    assert isinstance(workspace.refused("torch", "2.9.1"), BuildFailed)


def test_an_index_without_torch(workspace: Workspace) -> None:
    workspace.environ["UV_DEFAULT_INDEX"] = workspace.server.url("empty")

    assert isinstance(workspace.refused("torch", "2.9.1"), Unresolvable)


@pytest.mark.parametrize(
    ("fault", "value", "why"),
    [
        ("no_ranges", True, "no support for range requests"),
        ("deleted", True, "HTTP 404"),
        ("extra", b"x" * 70_000, "invalid wheel"),
        ("short", [0, 10] * 20, "a different range than requested|connection (closed before|broke off)"),
    ],
)
def test_a_file_that_cannot_be_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str, value: object, why: str
) -> None:
    """The message contains the file's name or the path of its URL, but not the index's full URL."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    setattr(workspace.server.faults, fault, value)
    error = workspace.refused("torch", "2.9.1")

    assert isinstance(error, BuildFailed)
    assert re.search(why, error.message)
    assert "/files/" not in error.message


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"requires": ["!"]}, "invalid requirement '!'"),
        ({"requires": CU12, "python": '>=3.10"\x1b[2J'}, "invalid Requires-Python"),
    ],
)
def test_invalid_metadata_is_refused(workspace: Workspace, details: dict[str, Any], why: str) -> None:
    """Otherwise the metadata would be printed, and written into facts.yaml."""
    workspace.server.add("default", "torch", "2.99.9", tag=tag("cp311"), **details)
    error = workspace.refused("torch", "2.99.9")

    assert why in error.message
    assert "\x1b" not in error.message


def test_a_wheel_for_an_unknown_python_is_ignored(workspace: Workspace) -> None:
    workspace.server.add("default", "torch", "2.99.0", tag=tag("cp3x"))

    assert proposed(workspace.run("torch", "2.99.0")[1])["default"]["pythons"] == ["cp310"]


def test_only_the_end_of_a_large_wheel_is_downloaded(workspace: Workspace) -> None:
    workspace.server.add("default", "torch", "2.9.2", requires=CU12, tag=tag("cp311"))
    name = next(name for _, _, name in workspace.server.files if name.startswith("torch-2.9.2"))
    data = workspace.server.files["default", "torch", name]
    before = bytes(9 << 20)  # other data may precede a zip file
    workspace.server.files["default", "torch", name] = before + data
    error, _, _ = workspace.run("torch", "2.9.2")

    assert error is None
    assert sum(sent.count for sent in workspace.server.sent if name in sent.path) < 2 << 20
