"""What packages say of their licences, oddly too: an SPDX expression, or the words; never a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from torchkiln.sbom.licences import joined, of_debian, of_expression, of_words


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
        ("М" + "IT", None),  # a Cyrillic letter
    ],
)
def test_words_that_are_an_expression(words: str, expression: str | None) -> None:
    found = of_expression(words)

    assert (found.expression if found else None) == expression


def test_a_reference_within_an_expression_is_explained() -> None:
    found = of_expression("MIT OR LicenseRef-Own-1")
    assert found is not None
    (reference,) = found.references

    assert reference.id == "LicenseRef-Own-1"
    assert "LicenseRef-Own-1" in reference.text


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

    assert (found.expression, found.references) == (expression, ())
    assert canonicalize_license_expression(expression) == expression


@pytest.mark.parametrize(
    "synopsis",
    ["GPL", "Artistic", "public-domain", "GPL-2+ with OpenSSL exception", "GPL-2+, and BSD", "GPL-9", "Perl"],
)
def test_debians_names_that_no_table_knows(synopsis: str) -> None:
    """Each is a reference with the text that the file has for it, or with its name."""
    bare, told = of_debian(synopsis, {}), of_debian(synopsis, {synopsis: "The text."})

    assert bare.expression == bare.references[0].id != told.expression
    assert synopsis in bare.references[0].text
    assert told.references[0].text == "The text."
    assert canonicalize_license_expression(told.expression) == told.expression


def test_two_texts_by_one_name_are_two_licences() -> None:
    one, other = (of_debian("permissive", {"permissive": text}) for text in ("A", "B"))

    assert one.expression != other.expression
    assert one == of_debian("permissive", {"permissive": "A"})


def test_all_licences_hold_together() -> None:
    parts = [of_debian(one, {}) for one in ("Expat", "GPL-2 or ISC", "Expat")]

    assert joined(parts) == "MIT AND (GPL-2.0-only OR ISC)"
    assert joined(parts[1:2]) == "GPL-2.0-only OR ISC"
    assert joined([]) == ""


def test_a_text_in_a_names_place_is_known_by_how_it_begins() -> None:
    found = of_words("\n\n   BSD 3-Clause License\n        \n        Redistribution\x1b[31m\n")

    assert found.words == "BSD 3-Clause License"
    assert found.references[0].text == "BSD 3-Clause License\n\nRedistribution\\x1b[31m"
    assert len(of_words("x" * 100_000).words) == 80


@given(st.text(max_size=60))
def test_any_words_make_an_expression(words: str) -> None:
    """That another reader takes, whatever they are."""
    for found in (of_words(words), of_debian(words, {words: words}), of_expression(words)):
        if found is not None:
            assert found.words
            assert canonicalize_license_expression(found.expression)
            assert all(reference.name and reference.id in found.expression for reference in found.references)
