"""Lists of allowed differences: what they allow, what they leave, which entries are idle, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.compare import allowed
from torchkiln.compare.files import Difference
from torchkiln.errors import ConfigError
from torchkiln.util.places import ROOT

LIST = """\
- path: opt/[^/]+/INSTALLER
  what: content
  reason: names who installed
- path: opt/[^/]+/RECORD
  what: line
  line: .*[.]pyc,,
  reason: no byte-code on the other side
- setting: Env TZ
  what: setting
  reason: the zone of the builder
"""


def written(tmp_path: Path, text: str) -> tuple[allowed.AllowedDifference, ...]:
    """*text* as a list."""
    (tmp_path / "list.yaml").write_text(text)
    return allowed.read(tmp_path / "list.yaml")


INSTALLER = Difference(at="opt/x/INSTALLER", what="content", a="pip", b="kiln")
LINE = Difference(at="opt/x/RECORD", what="line", b="a.pyc,,")
ZONE = Difference(at="Env TZ", what="setting", a="UTC")


def test_what_an_entry_fits_is_allowed_by_it(tmp_path: Path) -> None:
    entries = written(tmp_path, LIST)

    sifted = allowed.sift([INSTALLER, LINE, ZONE], entries)

    assert sifted.allowed == tuple(zip((INSTALLER, LINE, ZONE), entries, strict=True))
    assert (sifted.left, sifted.idle) == ((), ())


@pytest.mark.parametrize(
    "other",
    [
        Difference(at="opt/x/INSTALLER", what="mode", a="0644", b="0600"),
        Difference(at="opt/x/y/INSTALLER", what="content", a="pip", b="kiln"),
        Difference(at="/opt/x/INSTALLER", what="content", a="pip", b="kiln"),
        Difference(at="opt/x/RECORD", what="line", a="a.py,,"),
        Difference(at="opt/x/RECORD", what="order", a="a.pyc,,", b="b.pyc,,"),
        Difference(at="Env TZ2", what="setting", a="UTC"),
    ],
)
def test_what_it_does_not_fit_whole_is_left(tmp_path: Path, other: Difference) -> None:
    sifted = allowed.sift([other, LINE], written(tmp_path, LIST))

    assert sifted.left == (other,)
    assert [entry.what for entry in sifted.idle] == ["content", "setting"]


def test_texts_are_wanted_of_files_whose_lines_are_spoken_of(tmp_path: Path) -> None:
    entries = written(tmp_path, LIST)

    assert allowed.compares_lines("opt/x/RECORD", entries)
    assert not allowed.compares_lines("opt/x/INSTALLER", entries)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path: x\n", "list.yaml:1: must be a list"),
        ("- path: x\n  what: content\n", "list.yaml:1: [0]: the key 'reason' is missing"),
        ("- path: x\n  what: contents\n  reason: because of it\n", "nearest valid: content"),
        ("- what: mode\n  reason: because of it\n", "one of path and setting"),
        ("- path: x\n  setting: y\n  what: mode\n  reason: because of it\n", "one of path and setting"),
        (
            "- setting: y\n  what: mode\n  reason: because of it\n",
            "`setting` and `what: setting` require",
        ),
        (
            "- path: y\n  what: setting\n  reason: because of it\n",
            "`setting` and `what: setting` require",
        ),
        (
            "- path: y\n  what: mode\n  line: z\n  reason: because of it\n",
            "list.yaml:3: [0].line: `line` requires",
        ),
        (
            "- path: '('\n  what: mode\n  reason: because of it\n",
            "list.yaml:1: [0].path: invalid regular expression",
        ),
        ("", "the file is empty"),
        ("- path: [\n", "not valid YAML"),
        ("\xff", ""),
    ],
)
def test_a_list_with_faults_is_refused_with_their_lines(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "list.yaml").write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigError) as caught:
        allowed.read(tmp_path / "list.yaml")

    assert told in caught.value.message
    assert "list.yaml:" in caught.value.message


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        allowed.read(tmp_path / "none.yaml")


def test_our_own_list_is_short_and_says_why() -> None:
    entries = allowed.read(ROOT / "torchkiln/data/parity.yaml")

    assert len(entries) == 4
    assert all(len(entry.reason) > 15 for entry in entries)
