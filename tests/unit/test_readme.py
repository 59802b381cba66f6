"""The generated parts of the documents: what makes them, and that a stale one is named and written anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import readme

PART = "before\n<!-- generated: switches -->\n{}<!-- end -->\nbehind\n"


def test_the_switches_are_those_of_the_image() -> None:
    """Made where the marks are; what stands around stays, and a second time nothing changes."""
    once = readme.filled(PART.format("stale\n"))

    assert once.startswith("before\n<!-- generated: switches -->\n| variable |")
    assert "| `TENSORBOARD_LOGDIR` |" in once
    assert once.endswith("<!-- end -->\nbehind\n")
    assert readme.filled(once) == once


def test_a_part_that_nothing_makes() -> None:
    with pytest.raises(SystemExit, match="'swiches'"):
        readme.filled("<!-- generated: swiches -->\n<!-- end -->\n")


def test_a_stale_page_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --check it is left as it is; a page that is fresh is never touched."""
    fresh, stale = tmp_path / "fresh.md", tmp_path / "stale.md"
    fresh.write_text(readme.filled(PART.format("")))
    stale.write_text(PART.format("stale\n"))
    before = fresh.stat().st_ino
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "PAGES", (fresh, stale))

    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])
    assert readme.main() == 5
    assert capsys.readouterr().err.startswith("stale.md: generated parts are stale\nhint: ")
    assert stale.read_text() == PART.format("stale\n")

    monkeypatch.setattr("sys.argv", ["readme.py"])
    assert readme.main() == 0
    assert stale.read_text() == fresh.read_text()
    assert fresh.stat().st_ino == before
    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])
    assert readme.main() == 0
