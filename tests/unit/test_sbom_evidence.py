"""Package metadata and licences are read from an image's files, and refused if broken or forged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from tests import sboms
from tests.document_strategies import FEW, VALUES, answer, json_bytes, mutated
from torchkiln.errors import VerificationFailed
from torchkiln.sbom.evidence import evidence_of, is_evidence, shortened
from torchkiln.sbom.licences import joined, of_debian, of_expression, of_words

INSIDE = f"{sboms.SITE}/odd-1.0.dist-info/METADATA"
_PIECES = ["Name: odd\n", "Version: 1\n", "License", ":", "\n", " x\n", "\r", "Format: copyright-format/1.0"]
_ROW = {"name": "torch", "version": "2.7.1", "sha256": "0" * 64}
_PARAGRAPH = "Package: odd\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"


def test_the_metadata_is_read() -> None:
    found = sboms.evidence()
    debs = {package.name: package for package in found.packages}

    assert set(debs) == sboms.DEBS.keys()  # without the package that dpkg's status lists as removed
    assert debs["libstdc++6"].copyright == "usr/share/doc/gcc-12-base/copyright"
    assert (debs["tini"].source, debs["tini"].source_version) == ("tini", "0.19.0-1")
    assert debs["tzdata"].source_version == "2025b-0+deb12u2"
    assert [distribution.name for distribution in found.distributions if not distribution.of_a_wheel] == [
        "idna"
    ]
    assert found.wheels["torch"][0] == "2.7.1"


def test_only_needed_files_are_read_from_a_layer() -> None:
    needed = [sboms.STATUS, INSIDE, "usr/share/doc/tini/copyright", "usr/share/doc/libstdc++6"]
    left = ["usr/share/doc/tini/changelog", "opt/venv/lib/python3.11/site-packages/x.py", "etc/passwd"]

    assert [path for path in (*needed, *left) if is_evidence(path)] == needed


def test_a_description_is_ignored() -> None:
    """A description may be any text, even another package's METADATA."""
    licence_names = [
        licence.words for distribution in sboms.evidence().distributions for licence in distribution.licences
    ]

    assert "not this one" not in licence_names
    assert "BSD" in licence_names


def test_a_description_may_be_of_any_length() -> None:
    """A description is not stored, and its length does not count for the limit."""
    text = sboms.metadata("odd", "1.0") + "x" * (2 << 20)

    assert len(shortened(INSIDE, text)) < 100
    assert "odd" in {distribution.name for distribution in sboms.evidence(**{INSIDE: text}).distributions}
    assert shortened(sboms.STATUS, text) == text


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("gcc-12-base", True),
        ("../doc/gcc-12-base", True),
        ("/usr/share/doc/gcc-12-base", True),
        ("libstdc++6", False),  # a link to itself
        ("../../../../etc", False),
        ("", False),
    ],
)
def test_links_between_documents_lead_to_copyright_files_only(link: str, found: bool) -> None:
    licence_names = sboms.texts(sboms.locked()) | {"etc/copyright": sboms.FORMAT}
    package = next(
        item
        for item in evidence_of(licence_names, {"usr/share/doc/libstdc++6": link}).packages
        if item.name == "libstdc++6"
    )

    assert package.copyright == ("usr/share/doc/gcc-12-base/copyright" if found else "")


STATUS, JSON = sboms.STATUS, "etc/torchkiln/image.json"
INVALID: dict[str, tuple[str, str, str]] = {
    "empty": (INSIDE, "", "invalid name"),
    "no version": (INSIDE, "Name: odd\n", "invalid name"),
    "no name": (INSIDE, "Version: 1\n", "invalid name"),
    "no such name": (INSIDE, "Name: a b\nVersion: 1\n", "invalid name"),
    "no such version": (INSIDE, "Name: odd\nVersion: new\n", "invalid name"),
    "two names": (INSIDE, "Name: odd\nName: even\nVersion: 1\n", "invalid name"),
    "control": (INSIDE, "Name: o\x1b[31mdd\nVersion: 1\n", "invalid name"),
    "huge": (INSIDE, f"Name: odd\nVersion: 1\nX: {'x' * (2 << 20)}\n", "2097"),
    "place": (f"{sboms.SITE}/\x1b[2J/odd-1.dist-info/METADATA", "Name: odd\nVersion: 1\n", "unprintable"),
    "twice": (
        f"{sboms.SITE}/Torch-9.dist-info/METADATA",
        "Name: Torch\nVersion: 9\n",
        "torch is installed twice",
    ),
    "fields twice": (STATUS, _PARAGRAPH * 2, "duplicate field"),
    "package twice": (STATUS, f"{_PARAGRAPH}\n{_PARAGRAPH}", "odd:all is installed twice"),
    "status: no version": (STATUS, _PARAGRAPH.replace("Version: 1\n", ""), "invalid name"),
    "status: control": (STATUS, _PARAGRAPH.replace("odd", "o\x1bdd"), "invalid name"),
    "status: architecture": (STATUS, _PARAGRAPH.replace(": all", ": a l l"), "invalid architecture"),
    "status: source": (STATUS, _PARAGRAPH + "Source: (1)\n", "invalid name"),
    "status: bytes": (STATUS, "\x00\x01\n", "not a field"),
    "status: goes on": (STATUS, " goes on\n", "without a field before it"),
    "image.json": (JSON, "{}", "image.json: invalid"),
    "a number": (JSON, "0", "image.json: invalid: Expected `object`, got `int`"),
    "a hash": (JSON, json.dumps({"wheels": [_ROW | {"sha256": "x"}]}), "- at `$.wheels[0].sha256`"),
    "a hash with a line break": (
        JSON,
        json.dumps({"wheels": [_ROW | {"sha256": "0" * 64 + "\n"}]}),
        "- at `$.wheels[0].sha256`",
    ),
    "a version that is a number": (
        JSON,
        json.dumps({"wheels": [_ROW], "archives": [_ROW | {"version": 5}]}),
        "Expected `str`, got `int` - at `$.archives[0].version`",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_metadata_is_refused(case: str) -> None:
    path, text, message = INVALID[case]
    with pytest.raises(VerificationFailed) as caught:
        sboms.evidence(**{path: text})
    assert message in caught.value.message
    assert len(caught.value.message) < 2000
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    "path",
    [INSIDE, f"{sboms.SITE}/odd-1.0.dist-info", f"{sboms.SITE}/odd.egg-info", sboms.STATUS, "var/lib/dpkg"],
)
def test_metadata_that_is_a_link_is_refused(path: str) -> None:
    """No installer makes such a link, and its target must not be read."""
    assert is_evidence(path)
    with pytest.raises(VerificationFailed, match="must not be a link"):
        evidence_of(sboms.texts(sboms.locked()), {**sboms.LINKS, path: "elsewhere"})


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
def test_real_copyright_files(text: str) -> None:
    found = sboms.evidence(**{"usr/share/doc/tini/copyright": text})
    tini = next(package for package in found.packages if package.name == "tini")

    assert [licence.expression for licence in tini.licences] == ["MIT"]


@pytest.mark.parametrize(
    "text",
    [
        "License: MIT\n",  # without the field Format
        "Format: of ours\nLicense: MIT\n",
        f"{sboms.FORMAT}no field\n",
        f"{sboms.FORMAT}\nFiles: *\nFiles: *\nLicense: MIT\n",
        sboms.FORMAT + "".join(f"\nFiles: {number}\nLicense: L{number}\n" for number in range(2000)),
        f"{sboms.FORMAT}\nFiles: *\nLicense: MIT\n {'x' * (2 << 20)}\n",
        "",
    ],
    ids=["other", "own format", "no field", "field twice", "thousands", "huge", "empty"],
)
def test_an_unreadable_copyright_file_has_no_licences(text: str) -> None:
    """Debian's maintainers write these files by hand, so a fault in one is no error."""
    found = sboms.evidence(**{"usr/share/doc/tini/copyright": text})
    tini = next(package for package in found.packages if package.name == "tini")

    assert tini.licences == ()
    assert tini.copyright == "usr/share/doc/tini/copyright"


@FEW
@given(
    st.sampled_from([INSIDE, sboms.STATUS, "usr/share/doc/tini/copyright", "etc/torchkiln/image.json"]),
    st.text() | st.lists(st.sampled_from(_PIECES)).map("".join),
)
def test_any_text_is_read_or_refused(path: str, text: str) -> None:
    answer(lambda: sboms.evidence(**{path: text}))


@FEW
@given(
    st.sampled_from(["etc/torchkiln/image.json", "etc/torchkiln/project.json"]),
    VALUES | mutated({"wheels": [_ROW, _ROW | {"name": "numpy"}], "archives": [_ROW]}),
)
def test_any_json_is_read_or_refused(path: str, document: Any) -> None:
    answer(lambda: sboms.evidence(**{path: json_bytes(document).decode("utf-8", "replace")}))


# --- licences: an SPDX expression, or the original text --------------------------------------------


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        ("MIT", "MIT"),
        ("mit", "MIT"),
        ("apache-2.0 or (BSD-3-clause and isc)", "Apache-2.0 OR (BSD-3-Clause AND ISC)"),
        ("GPL-2.0-or-later WITH Classpath-exception-2.0", "GPL-2.0-or-later WITH Classpath-exception-2.0"),
        ("LicenseRef-NVIDIA", "LicenseRef-NVIDIA"),
        ("Apache 2.0", None),
        ("BSD", None),
        ("MIT License", None),
        ("MIT OR ", None),
        ("(MIT", None),
        ("", None),
        ("MIT" + " AND MIT" * 1000, None),
        ("М" + "IT", None),  # the first letter is Cyrillic
    ],
)
def test_texts_that_are_an_expression(words: str, expression: str | None) -> None:
    found = of_expression(words)

    assert (found.words if found else None) == expression


def test_a_reference_in_an_expression_is_explained() -> None:
    found = of_expression("MIT OR LicenseRef-Own-1")
    assert found is not None
    (text,) = found.texts

    assert (found.words, found.expression) == ("MIT OR LicenseRef-Own-1", "")
    assert "LicenseRef-Own-1" in text


@pytest.mark.parametrize(
    ("synopsis", "expression"),
    [
        ("Expat", "MIT"),
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-2", "GPL-2.0-only"),
        ("LGPL-2.1+", "LGPL-2.1-or-later"),
        ("GFDL-NIV-1.3+", "GFDL-1.3-no-invariants-or-later"),
        ("GFDL-1.3", "GFDL-1.3-only"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("Apache-2", "Apache-2.0"),
        ("zlib and Expat", "Zlib AND MIT"),
        ("GPL-2+ or  LGPL-3+ and ISC", "GPL-2.0-or-later OR LGPL-3.0-or-later AND ISC"),
    ],
)
def test_debians_names_by_the_table_of_their_specification(synopsis: str, expression: str) -> None:
    found = of_debian(synopsis, {})

    assert (found.expression, found.texts) == (expression, ())
    assert canonicalize_license_expression(expression) == expression


@pytest.mark.parametrize(
    "synopsis",
    ["GPL", "Artistic", "public-domain", "GPL-2+ with OpenSSL exception", "GPL-2+, and BSD", "GPL-9", "Perl"],
)
def test_debians_names_that_are_not_in_the_table(synopsis: str) -> None:
    """Each name is kept, with the licence text of the file, or else with its name as text."""
    bare, with_text = of_debian(synopsis, {}), of_debian(synopsis, {synopsis: "The text."})

    assert (bare.words, bare.expression) == (with_text.words, with_text.expression) == (synopsis, "")
    assert synopsis in bare.texts[0]
    assert with_text.texts == ("The text.",)


def test_two_texts_with_the_same_name_are_two_licences() -> None:
    first, second = (of_debian("permissive", {"permissive": text}) for text in ("A", "B"))

    assert first != second
    assert first == of_debian("permissive", {"permissive": "A"})


def test_all_licences_are_combined() -> None:
    parts = [of_debian(first, {}) for first in ("Expat", "GPL-2 or ISC", "Expat")]

    assert joined(parts) == "MIT AND (GPL-2.0-only OR ISC)"
    assert joined(parts[1:2]) == "GPL-2.0-only OR ISC"
    assert joined([]) == ""


def test_a_text_instead_of_a_name_is_identified_by_its_start() -> None:
    found = of_words("\n\n   BSD 3-Clause License\n        \n        Redistribution\x1b[31m\n")

    assert found.words == "BSD 3-Clause License"
    assert found.texts[0] == "BSD 3-Clause License\n\nRedistribution\\x1b[31m"
    assert len(of_words("x" * 100_000).words) == 80


@given(st.text(max_size=60))
def test_any_text_is_a_valid_expression_or_has_texts(words: str) -> None:
    """Another reader of SPDX expressions accepts each expression."""
    for found in (of_words(words), of_debian(words, {words: words}), of_expression(words)):
        if found is not None:
            assert found.words
            assert found.texts or canonicalize_license_expression(found.expression)
            assert not (found.texts and found.expression)
