"""What an image's files say of its packages: read as it is meant, refused where it is broken or forged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import sboms
from tests.document_strategies import FEW, answer
from torchkiln.errors import VerificationFailed
from torchkiln.sbom.evidence import evidence_of, is_evidence, shortened

INSIDE = f"{sboms.SITE}/odd-1.0.dist-info/METADATA"
_PIECES = ["Name: odd\n", "Version: 1\n", "License", ":", "\n", " x\n", "\r", "Format: copyright-format/1.0"]
_PARAGRAPH = "Package: odd\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"


def test_what_is_said() -> None:
    found = sboms.evidence()
    debs = {one.name: one for one in found.packages}

    assert set(debs) == sboms.DEBS.keys()  # not the one that was removed
    assert debs["libstdc++6"].copyright == "usr/share/doc/gcc-12-base/copyright"
    assert (debs["tini"].source, debs["tini"].source_version) == ("tini", "0.19.0-1")
    assert debs["tzdata"].source_version == "2025b-0+deb12u2"
    assert [one.name for one in found.distributions if not one.of_a_wheel] == ["idna"]
    assert found.wheels["torch"][0] == "2.7.1"


def test_only_what_is_read_is_taken_from_a_layer() -> None:
    wanted = [sboms.STATUS, INSIDE, "usr/share/doc/tini/copyright", "usr/share/doc/libstdc++6"]
    left = ["usr/share/doc/tini/changelog", "opt/venv/lib/python3.11/site-packages/x.py", "etc/passwd"]

    assert [path for path in (*wanted, *left) if is_evidence(path)] == wanted


def test_a_description_says_nothing() -> None:
    """It may be anything, another package's METADATA too."""
    said = [licence.words for one in sboms.evidence().distributions for licence in one.licences]

    assert "not this one" not in said
    assert "BSD" in said


def test_a_description_may_be_of_any_length() -> None:
    """It is neither kept nor counted."""
    text = sboms.metadata("odd", "1.0") + "x" * (2 << 20)

    assert len(shortened(INSIDE, text)) < 100
    assert "odd" in {one.name for one in sboms.evidence(**{INSIDE: text}).distributions}
    assert shortened(sboms.STATUS, text) == text


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("gcc-12-base", True),
        ("../doc/gcc-12-base", True),
        ("/usr/share/doc/gcc-12-base", True),
        ("libstdc++6", False),  # to itself
        ("../../../../etc", False),
        ("", False),
    ],
)
def test_links_between_documents_lead_to_copyright_files_only(link: str, found: bool) -> None:
    said = sboms.texts(sboms.locked()) | {"etc/copyright": sboms.FORMAT}
    package = next(
        one
        for one in evidence_of(said, {"usr/share/doc/libstdc++6": link}).packages
        if one.name == "libstdc++6"
    )

    assert package.copyright == ("usr/share/doc/gcc-12-base/copyright" if found else "")


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        pytest.param(INSIDE, "", "invalid name", id="empty"),
        pytest.param(INSIDE, "Name: odd\n", "invalid name", id="no version"),
        pytest.param(INSIDE, "Version: 1\n", "invalid name", id="no name"),
        pytest.param(INSIDE, "Name: a b\nVersion: 1\n", "invalid name", id="no such name"),
        pytest.param(INSIDE, "Name: odd\nVersion: new\n", "invalid name", id="no such version"),
        pytest.param(INSIDE, "Name: odd\nName: even\nVersion: 1\n", "invalid name", id="two names"),
        pytest.param(INSIDE, "Name: o\x1b[31mdd\nVersion: 1\n", "invalid name", id="control"),
        pytest.param(INSIDE, f"Name: odd\nVersion: 1\nX: {'x' * (2 << 20)}\n", "2097", id="huge"),
        pytest.param(
            f"{sboms.SITE}/\x1b[2J/odd-1.dist-info/METADATA",
            "Name: odd\nVersion: 1\n",
            "unprintable",
            id="place",
        ),
        pytest.param(
            f"{sboms.SITE}/Torch-9.dist-info/METADATA",
            "Name: Torch\nVersion: 9\n",
            "torch is installed twice",
            id="twice",
        ),
        pytest.param(sboms.STATUS, _PARAGRAPH * 2, "duplicate field", id="fields twice"),
        pytest.param(
            sboms.STATUS, f"{_PARAGRAPH}\n{_PARAGRAPH}", "odd:all is installed twice", id="package twice"
        ),
        pytest.param(
            sboms.STATUS, _PARAGRAPH.replace("Version: 1\n", ""), "invalid name", id="status: no version"
        ),
        pytest.param(
            sboms.STATUS, _PARAGRAPH.replace("odd", "o\x1bdd"), "invalid name", id="status: control"
        ),
        pytest.param(
            sboms.STATUS,
            _PARAGRAPH.replace(": all", ": a l l"),
            "invalid architecture",
            id="status: architecture",
        ),
        pytest.param(sboms.STATUS, _PARAGRAPH + "Source: (1)\n", "invalid name", id="status: source"),
        pytest.param(sboms.STATUS, "\x00\x01\n", "not a field", id="status: bytes"),
        pytest.param(sboms.STATUS, " goes on\n", "without a field before it", id="status: goes on"),
        pytest.param("etc/torchkiln/image.json", "{}", "image.json: invalid", id="image.json"),
        pytest.param(
            "etc/torchkiln/image.json",
            '{"wheels": [{"name": "x", "version": "1", "sha256": "x"}]}',
            "invalid sha256 in wheels",
            id="image.json's hash",
        ),
    ],
)
def test_what_names_no_package_is_refused(path: str, text: str, told: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        sboms.evidence(**{path: text})
    assert told in caught.value.message
    assert len(caught.value.message) < 2000
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    "path",
    [
        INSIDE,
        f"{sboms.SITE}/odd-1.0.dist-info",
        f"{sboms.SITE}/odd.egg-info",
        sboms.STATUS,
        "var/lib/dpkg",
    ],
)
def test_what_is_installed_does_not_hide_behind_links(path: str) -> None:
    """Nobody who installs makes one there, and what it leads to may not be read."""
    assert is_evidence(path)
    with pytest.raises(VerificationFailed, match="must not be a link"):
        evidence_of(sboms.texts(sboms.locked()), {**sboms.LINKS, path: "elsewhere"})


def test_many_faults_are_counted() -> None:
    broken = {f"{sboms.SITE}/x{number}-1.dist-info/METADATA": "" for number in range(20)}

    with pytest.raises(VerificationFailed, match="and 12 more"):
        sboms.evidence(**broken)


@pytest.mark.parametrize(
    "text",
    [
        f"{sboms.FORMAT}\nFiles: *\nLicense: MIT\nComment: a\nComment: b\n",
        "Format: http://www.example.org/deps/dep5\nName: x\n\nFiles: *\nCopyright: me\nLicense: MIT\n",
        "format: http://www.example.org/deps/dep5/\nlicense: MIT\n",
        f"# a comment\n{sboms.FORMAT}\n# another\nFiles: *\nLicense: MIT\n",
    ],
    ids=["two comments", "older format", "small letters", "comments"],
)
def test_copyright_files_as_people_write_them(text: str) -> None:
    found = sboms.evidence(**{"usr/share/doc/tini/copyright": text})
    tini = next(one for one in found.packages if one.name == "tini")

    assert [one.expression for one in tini.licences] == ["MIT"]


@pytest.mark.parametrize(
    "text",
    [
        "License: MIT\n",  # not of that format
        "Format: of ours\nLicense: MIT\n",
        f"{sboms.FORMAT}no field\n",
        f"{sboms.FORMAT}\nFiles: *\nFiles: *\nLicense: MIT\n",
        sboms.FORMAT + "".join(f"\nFiles: {number}\nLicense: L{number}\n" for number in range(2000)),
        f"{sboms.FORMAT}\nFiles: *\nLicense: MIT\n {'x' * (2 << 20)}\n",
        "",
    ],
    ids=["other", "own format", "no field", "field twice", "thousands", "huge", "empty"],
)
def test_a_copyright_file_that_cannot_be_read_asserts_nothing(text: str) -> None:
    """And stops nobody: people write them."""
    found = sboms.evidence(**{"usr/share/doc/tini/copyright": text})
    tini = next(one for one in found.packages if one.name == "tini")

    assert tini.licences == ()
    assert tini.copyright == "usr/share/doc/tini/copyright"


@FEW
@given(
    st.sampled_from([INSIDE, sboms.STATUS, "usr/share/doc/tini/copyright", "etc/torchkiln/image.json"]),
    st.text() | st.lists(st.sampled_from(_PIECES)).map("".join),
)
def test_any_text_is_read_or_refused(path: str, text: str) -> None:
    """Never another kind of failure."""
    answer(lambda: sboms.evidence(**{path: text}))
