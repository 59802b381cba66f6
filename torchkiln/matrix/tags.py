"""Names images: their tags, aliases and dated tags; finds the cell that has a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from string import Formatter

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, Pair, ordered
from torchkiln.matrix.pick import OWN_USE, ascending, gpus_in, suffix_of
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.model.cell import Cell, Resolution, Status
from torchkiln.model.device_code import Gpus
from torchkiln.model.layer import split_format, tag_suffix
from torchkiln.model.operating_system import DEFAULT_OS, NAMES
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.util.versions import major_of, minor_of

_PLATFORMS = {platform.suffix: name for name, platform in PLATFORMS.items()}  # by the suffix in tags
_DAY = re.compile(r"[0-9]{8}[a-z0-9]*")
_SUFFIX = "|".join(map(re.escape, sorted(_PLATFORMS, reverse=True)))
_TAG = re.compile(
    r"(?P<torch>[0-9.]+)-cuda(?P<cuda>[0-9.]+)-cudnn[0-9]+-(?P<flavor>runtime|devel)"
    rf"(?P<gpus>(?:-sm[1-9][0-9]{{1,2}})+(?P<own_use>-{OWN_USE})?)?(?P<suffix>{_SUFFIX})(?:-(?P<os>{NAMES}))?"
)

_LIKE = re.compile(r"v?[0-9]+(\.[0-9]+)+-cuda")  # such a name looks like an image's own tag


def tag_of(resolution: Resolution) -> str:
    """The image's own tag, ``2.7.1-cuda12.1-cudnn9-runtime``.

    The GPUs of a thin image, any platform but linux/amd64 and any OS but debian12 follow:
    ``-runtime-sm90-ubuntu22.04``, ``-runtime-arm64``, ``-runtime-python312-debian12``.

    :raises ValueError: the cell is unavailable.
    """
    cell, build = resolution.cell, resolution.build
    if build is None or build.cudnn is None:
        raise ValueError(f"no tag for an unavailable cell: torch {cell.torch} with CUDA {cell.cuda}")
    suffix = f"{suffix_of(cell)}{_suffix(cell)}"
    return f"{cell.torch}-cuda{cell.cuda}-cudnn{major_of(build.cudnn)}-{cell.flavor}{suffix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedTag:
    """The parts of an image's own tag."""

    torch: str
    cuda: str
    flavor: str
    os: str
    gpus: Gpus = ()  # of a thin image, ("8.0", "9.0")
    own_use: bool = False
    platform: str = DEFAULT_PLATFORM


def parse_name(tag: str) -> ParsedTag | None:
    """Parse a result of `tag_of`; None: it is not an image's own tag."""
    found = _TAG.fullmatch(tag)
    gpus = gpus_in(found["gpus"] or "") if found else ()
    if found is None or gpus != ascending(gpus):
        return None
    return ParsedTag(
        torch=found["torch"],
        cuda=found["cuda"],
        flavor=found["flavor"],
        os=found["os"] or DEFAULT_OS,
        gpus=gpus,
        own_use=found["own_use"] is not None,
        platform=_PLATFORMS[found["suffix"]],
    )


def preferred_name(names: Sequence[str]) -> str | None:
    """Of the *names* of one image, the shortest own tag, else the shortest name; None: no names."""
    tags = [name for name in names if parse_name(split_format(name)[0])]
    return min(tags or names, key=len, default=None)


def names_of(named: ParsedTag, matrix: Matrix) -> tuple[str, ...]:
    """The aliases that the image with the tag *named* gets by the rules of *matrix* if it is the newest."""
    return () if named.gpus else tuple(_aliases(named, matrix).values())


def aliases_of(resolution: Resolution, matrix: Matrix, facts: Facts) -> tuple[str, ...]:
    """The aliases of *resolution*'s image by the rules of *matrix*; empty for an unavailable cell.

    A thin image has none, so that ``latest`` is always an image for all GPUs. Unavailable cells are
    ignored when the newest is determined.
    """
    cell = resolution.cell
    if resolution.build is None or cell.gpus:
        return ()
    of_minor = [pair for pair in matrix.pairs if minor_of(pair[0]) == minor_of(cell.torch)]
    rivals = {
        "newest_patch": [pair for pair in of_minor if pair[1] == cell.cuda],
        "newest_cuda": of_minor,
        "newest_torch": matrix.pairs,
    }
    found = _aliases(cell, matrix).items()
    return tuple(dict.fromkeys(name for rule, name in found if _is_newest(cell, rivals[rule], matrix, facts)))


def _aliases(image: Cell | ParsedTag, matrix: Matrix) -> dict[str, str]:
    """The aliases of an *image* for all GPUs by rule, if it is the newest."""
    templates = {"newest_patch": matrix.aliases.newest_patch}
    if image.flavor == "runtime" and image.os == DEFAULT_OS:
        templates["newest_cuda"] = matrix.aliases.newest_cuda
        templates["newest_torch"] = matrix.aliases.newest_torch
    values = {"torch": image.torch, "minor": minor_of(image.torch), "cuda": image.cuda}
    return {
        rule: template.format(**values, flavor=image.flavor) + _suffix(image)
        for rule, template in templates.items()
        if template
    }


def cell_named(name: str, matrix: Matrix, facts: Facts) -> Cell:
    """The cell whose image has *name* as its tag or as an alias.

    :raises ConfigError: there is none.
    """
    found = find_cell(name, matrix, facts)
    if found is None:
        resolutions = [resolve(cell, matrix, facts) for cell in all_cells(matrix)]
        tags = [tag_of(resolution) for resolution in resolutions if resolution.build]
        near = difflib.get_close_matches(name[:200], tags, 3)
        raise ConfigError(
            f"{name}: no cell of the matrix has this tag or alias",
            hint=f"nearest: {', '.join(near)}" if near else "`torchkiln list --all` shows the tags",
        )
    return found


def find_cell(name: str, matrix: Matrix, facts: Facts) -> Cell | None:
    """Like `cell_named`, but None if there is no such cell."""
    parsed = parse_name(name)
    if parsed is not None:
        return _by_tag(name, parsed, matrix, facts)
    for cell in all_cells(matrix):
        named = ParsedTag(
            torch=cell.torch, cuda=cell.cuda, flavor=cell.flavor, os=cell.os, platform=cell.platform
        )
        # The first test is fast, and false for nearly every cell.
        if name in names_of(named, matrix) and name in aliases_of(
            resolve(cell, matrix, facts), matrix, facts
        ):
            return cell
    return None


def _by_tag(tag: str, parsed: ParsedTag, matrix: Matrix, facts: Facts) -> Cell | None:
    named = (parsed.torch, parsed.cuda, parsed.flavor, parsed.os, parsed.platform)
    for plain in all_cells(matrix):
        if (plain.torch, plain.cuda, plain.flavor, plain.os, plain.platform) == named:
            cell = replace(plain, gpus=parsed.gpus, own_use=parsed.own_use)
            resolution = resolve(cell, matrix, facts)
            return cell if resolution.build and tag_of(resolution) == tag else None
    return None


def dated(tag: str, day: str) -> str:
    """The immutable form of *tag*: ``2.7.1-cuda12.1-cudnn9-runtime-20261121``.

    :raises ConfigError: *day* is not a date; letters may follow it, for a second image of that day.
    """
    if not _DAY.fullmatch(day):
        raise ConfigError(
            f"{day!r} is not a valid date", hint="write 20261122, or 20261122b for a second image of that day"
        )
    return f"{tag}-{day}"


def undated(tag: str) -> tuple[str, str] | None:
    """The inverse of `dated`: the tag and the day; None: *tag* has no date."""
    found = re.fullmatch(rf"(?P<tag>.+)-(?P<day>{_DAY.pattern})", tag)
    return (found["tag"], found["day"]) if found else None


def misfit(tag: str, own: str, matrix: Matrix) -> str | None:
    """Why *tag* would be misleading for the image whose own tag is *own*; None: it would not.

    A name that matches no rule, such as "trial", is never misleading.

    :param own: the tag with the suffix of its layer format.
    """
    if re.fullmatch(r"sha[0-9]+[-_:.].*", tag.lower()):
        return "such tags are reserved for referrers of an image"
    base, day = undated(tag) or (tag, None)
    if base == own:
        return None
    read = base.lower()  # "V2.7" would be mistaken for v2.7
    if _parsed(read) or own in (read, base):
        return f"the image is {own}"
    if base in aliases_for(own, matrix):
        return f"only {own} can have a date" if day else None
    if _LIKE.match(read):
        return f"the image is {own}, and no other tag of it may begin with a torch and a CUDA version"
    if any(pattern.fullmatch(split_format(read)[0]) for pattern in _alias_patterns(matrix)):
        return f"the image is {own}, and this is not an alias of it"
    return None


def aliases_for(own: str, matrix: Matrix) -> tuple[str, ...]:
    """Every alias, with format suffix, that the image with the tag *own* has if it is the newest."""
    parsed, suffix = _parsed(own), tag_suffix(split_format(own)[1])
    return tuple(f"{name}{suffix}" for name in names_of(parsed, matrix)) if parsed else ()


def _parsed(tag: str) -> ParsedTag | None:
    return parse_name(split_format(tag)[0])


def _alias_patterns(matrix: Matrix) -> list[re.Pattern[str]]:
    """Patterns that match every alias that *matrix*'s rules can produce."""
    fields = {"torch": "[0-9.]+", "minor": r"[0-9]+\.[0-9]+", "cuda": "[0-9.]+", "flavor": "[a-z]+"}
    rules = (matrix.aliases.newest_patch, matrix.aliases.newest_cuda, matrix.aliases.newest_torch)
    return [
        re.compile(
            "".join(
                re.escape(text.lower()) + (fields[name] if name else "")
                for text, name, _, _ in Formatter().parse(rule)
            )
            + f"({_SUFFIX})(-(?:{NAMES}))?"
        )
        for rule in rules
        if rule
    ]


def _is_newest(cell: Cell, pairs: Collection[Pair], matrix: Matrix, facts: Facts) -> bool:
    """Whether *cell*, which is available, is the newest available cell of *pairs*."""
    own = (cell.torch, cell.cuda)
    newer = sorted((pair for pair in pairs if ordered(pair) > ordered(own)), key=ordered, reverse=True)
    return own in pairs and not any(_is_available(cell, *pair, matrix, facts) for pair in newer)


def _is_available(cell: Cell, torch: str, cuda: str, matrix: Matrix, facts: Facts) -> bool:
    """Whether *cell* with another torch and CUDA is available."""
    other = replace(cell, torch=torch, cuda=cuda)
    return resolve(other, matrix, facts).status is not Status.UNAVAILABLE


def _suffix(image: Cell | ParsedTag) -> str:
    of_os = "" if image.os == DEFAULT_OS else f"-{image.os}"
    return f"{PLATFORMS[image.platform].suffix}{of_os}"
