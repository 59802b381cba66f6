"""Resolution -> tags: the names people know, and the aliases that an image has earned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, Pair
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution, Status
from torchkiln.model.layer_format import NAMED_FORMATS, split_format, tag_suffix
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.util.versions import major_of, minor_of, numbers

_DAY = re.compile(r"[0-9]{8}[a-z0-9]*")
_SYSTEMS = "|".join(re.escape(name) for name in SYSTEMS)
_FORMATS = "|".join(NAMED_FORMATS)
_TAG = re.compile(
    r"(?P<torch>[0-9.]+)-cuda(?P<cuda>[0-9.]+)-cudnn[0-9]+-(?P<flavor>runtime|devel)"
    rf"(?P<suffixes>(?:-(?!(?:{_SYSTEMS})(?:-|$)|(?:{_FORMATS})(?:-|$))[a-z][a-z0-9]*)*)(?:-(?P<os>{_SYSTEMS}))?"
)

_LIKE = re.compile(r"v?[0-9]+(\.[0-9]+)+-cuda")  # what people take for an image's own tag


def tag_of(resolution: Resolution) -> str:
    """The image's own tag, ``2.7.1-cuda12.1-cudnn9-runtime``, with ``-ubuntu22.04`` behind it off debian12.

    What it has beside, by name, stands between the two: ``-runtime-conda-transformers-ubuntu22.04``.

    :raises ValueError: the cell is unavailable, and what cannot be had has no name.
    """
    cell, build = resolution.cell, resolution.build
    if build is None or build.cudnn is None:
        raise ValueError(f"no tag for an unavailable cell: torch {cell.torch} with CUDA {cell.cuda}")
    beside = "".join(f"-{component.suffix}" for component in resolution.components)
    return f"{cell.torch}-cuda{cell.cuda}-cudnn{major_of(build.cudnn)}-{cell.flavor}{beside}{_ending(cell)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """What an image's own tag says."""

    torch: str
    cuda: str
    flavor: str
    os: str
    suffixes: tuple[str, ...] = ()  # of components, "transformers"

    @property
    def ending(self) -> str:
        """Of every name but the default system's."""
        return "" if self.os == DEFAULT_OS else f"-{self.os}"


def parse_name(tag: str) -> Named | None:
    """The inverse of `tag_of`, as far as a tag tells; None: it is no image's own tag."""
    found = _TAG.fullmatch(tag)
    if found is None:
        return None
    return Named(
        torch=found["torch"],
        cuda=found["cuda"],
        flavor=found["flavor"],
        os=found["os"] or DEFAULT_OS,
        suffixes=tuple(found["suffixes"].split("-")[1:]),
    )


def names_of(named: Named, matrix: Matrix) -> tuple[str, ...]:
    """Every alias that an image with such a tag could bear by *matrix*'s rules, if it were the newest."""
    rules = matrix.aliases
    if named.suffixes:
        return ()
    names = [f"{_filled(rules.newest_patch, named)}{named.ending}"] if rules.newest_patch else []
    if named.flavor == "runtime" and named.os == DEFAULT_OS:
        names += [_filled(rule, named) for rule in (rules.newest_cuda, rules.newest_torch) if rule]
    return tuple(names)


def aliases_of(resolution: Resolution, matrix: Matrix, facts: Facts) -> tuple[str, ...]:
    """The moving tags that *resolution*'s image bears by *matrix*'s rules; none for an unavailable cell.

    An image with components has none: who asks for ``latest`` gets what everybody gets.

    Newest always means the newest that can be had: an unavailable cell of the matrix outranks nobody.
    """
    cell, rules = resolution.cell, matrix.aliases
    if resolution.build is None or cell.components:
        return ()
    of_minor = [pair for pair in matrix.pairs if minor_of(pair[0]) == minor_of(cell.torch)]
    names: list[str] = []
    if rules.newest_patch and _is_newest(
        cell, [pair for pair in of_minor if pair[1] == cell.cuda], matrix, facts
    ):
        names.append(_filled(rules.newest_patch, cell) + _ending(cell))
    if cell.flavor == "runtime" and cell.os == DEFAULT_OS:
        if rules.newest_cuda and _is_newest(cell, of_minor, matrix, facts):
            names.append(_filled(rules.newest_cuda, cell))
        if rules.newest_torch and _is_newest(cell, matrix.pairs, matrix, facts):
            names.append(_filled(rules.newest_torch, cell))
    return tuple(dict.fromkeys(names))


def dated(tag: str, day: str) -> str:
    """The form of *tag* that never moves: ``2.7.1-cuda12.1-cudnn9-runtime-20261121``.

    :raises ConfigError: *day* is none; letters may follow it, for a second one of that day.
    """
    if not _DAY.fullmatch(day):
        raise ConfigError(
            f"{day!r} is not a valid date", hint="write 20261122, or 20261122b for a second image of it"
        )
    return f"{tag}-{day}"


def undated(tag: str) -> tuple[str, str] | None:
    """The inverse of `dated`: the tag and the day; None: it is a tag that moves."""
    found = re.fullmatch(rf"(?P<tag>.+)-(?P<day>{_DAY.pattern})", tag)
    return (found["tag"], found["day"]) if found else None


def misfit(tag: str, own: str, matrix: Matrix) -> str | None:
    """Why *tag* would say something untrue of the image whose own tag is *own*; None: it would not.

    A name that no rule reads, "trial", says nothing, and so nothing untrue.

    :param own: with the suffix of its layer format.
    """
    if re.fullmatch(r"sha[0-9]+[-_:.].*", tag.lower()):
        return "such tags are for lists of what goes with an image"
    base, day = undated(tag) or (tag, None)
    if base == own:
        return None
    read = base.lower()  # "V2.7" is meant to be taken for v2.7
    if _named(read) or own in (read, base):
        return f"the image is {own}{_differing(read, own)}"
    if base in aliases_for(own, matrix):
        return f"only {own} has dated forms" if day else None
    if _LIKE.match(read):
        return f"the image is {own}, and only that may begin with a torch and a CUDA version"
    if any(pattern.fullmatch(split_format(read)[0]) for pattern in _alias_patterns(matrix)):
        return f"the image is {own}, of which that is no alias"
    return None


def aliases_for(own: str, matrix: Matrix) -> tuple[str, ...]:
    """Every alias that the image with the tag *own* could bear, in its own form of layers."""
    named, suffix = _named(own), tag_suffix(split_format(own)[1])
    return tuple(f"{name}{suffix}" for name in names_of(named, matrix)) if named else ()


def _named(tag: str) -> Named | None:
    return parse_name(split_format(tag)[0])


def _differing(tag: str, own: str) -> str:
    """In which parts."""
    theirs, ours = _named(tag), _named(own)
    if not theirs or not ours:
        return ""
    parts = [
        f"{name} {a or 'none'} instead of {b or 'none'}"
        for name, a, b in (
            ("torch", theirs.torch, ours.torch),
            ("CUDA", theirs.cuda, ours.cuda),
            ("flavor", theirs.flavor, ours.flavor),
            ("OS", theirs.os, ours.os),
            ("components", "-".join(theirs.suffixes), "-".join(ours.suffixes)),
            ("layers", split_format(tag)[1], split_format(own)[1]),
        )
        if a != b
    ]
    return f": the tag says {', '.join(parts)}" if parts else ""


def _alias_patterns(matrix: Matrix) -> list[re.Pattern[str]]:
    """What the aliases of any image look like by *matrix*'s rules."""
    fields = {"torch": "[0-9.]+", "minor": r"[0-9]+\.[0-9]+", "cuda": "[0-9.]+", "flavor": "[a-z]+"}
    rules = (matrix.aliases.newest_patch, matrix.aliases.newest_cuda, matrix.aliases.newest_torch)
    return [
        re.compile(
            "".join(
                re.escape(text.lower()) + (fields[name] if name else "")
                for text, name, _, _ in Formatter().parse(rule)
            )
            + f"(-(?:{_SYSTEMS}))?"
        )
        for rule in rules
        if rule
    ]


def _is_newest(cell: Cell, pairs: Iterable[Pair], matrix: Matrix, facts: Facts) -> bool:
    had = [pair for pair in pairs if _can_be_had(cell, *pair, matrix, facts)]
    return (cell.torch, cell.cuda) == max(had, key=lambda pair: (numbers(pair[0]), numbers(pair[1])))


def _can_be_had(cell: Cell, torch: str, cuda: str, matrix: Matrix, facts: Facts) -> bool:
    """Whether *cell* with another torch and CUDA can be had."""
    other = Cell(torch=torch, cuda=cuda, flavor=cell.flavor, os=cell.os, python=cell.python)
    return resolve(other, matrix, facts).status is not Status.UNAVAILABLE


def _filled(template: str, cell: Cell | Named) -> str:
    return template.format(torch=cell.torch, minor=minor_of(cell.torch), cuda=cell.cuda, flavor=cell.flavor)


def _ending(cell: Cell) -> str:
    return "" if cell.os == DEFAULT_OS else f"-{cell.os}"
