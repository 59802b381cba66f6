"""Determines the tags under which an image is published, from its lock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_for, aliases_of, dated, misfit, parse_name, tag_of, undated
from torchkiln.model.layer import split_format, tag_suffix
from torchkiln.model.lock import LockedCell
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.reference import parse_tag
from torchkiln.registry.referrers import LIST


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageTags:
    dated: str | None  # set once and never moved
    moving: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """All tags, in the order in which they are set."""
        return tuple(filter(None, (self.dated, *self.moving)))


def names_of(
    image: ImageOnDisk,
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    day: str,
    requested: Sequence[str] = (),
) -> ImageTags:
    """The tags that follow from the lock, or only those *requested*.

    :raises ConfigError: a tag is invalid, must not move, or is that of another image.
    """
    form = tag_suffix(image.layer_format)
    own = f"{tag_of(locked.resolution)}{form}"
    aliases = (f"{alias}{form}" for alias in aliases_of(locked.resolution, matrix, facts))
    tags = _tags(own, aliases, day, requested)
    for tag in tags.moving:
        if why := misfit(tag, own, matrix):
            raise ConfigError(
                f"{tag} is another image's name: {why}",
                hint="choose a name without versions, for example --tag trial",
            )
    return tags


def names_of_project(
    image: ImageOnDisk, name: str, below: str, matrix: Matrix, *, day: str, requested: Sequence[str] = ()
) -> ImageTags:
    """The tags of the image of the project *name* on the image *below*, or only those *requested*.

    :raises ConfigError: a tag is invalid, must not move, or is that of another image.
    """
    own = f"{name}{tag_suffix(image.layer_format)}"
    tags = _tags(own, (), day, requested)
    for tag in tags.moving:
        of_below = split_format(tag)[0] in (below, *aliases_for(below, matrix))
        if why := f"it is a tag of {below}" if of_below else misfit(tag, below, matrix):
            raise ConfigError(
                f"{tag} is not a name for the project's image: {why}",
                hint="choose a name without versions, for example --tag main",
            )
    return tags


def _tags(own: str, aliases: Iterable[str], day: str, requested: Sequence[str]) -> ImageTags:
    """*own* with its dated form and its *aliases*, or only the *requested* tags."""
    tags = ImageTags(dated=dated(own, day), moving=(own, *aliases))
    if requested:
        tags = ImageTags(dated=None, moving=tuple(requested))
    demand_movable(tags)
    return tags


def demand_movable(tags: ImageTags) -> None:
    """Check that all *tags* are valid, and that the moving ones may move.

    :raises ConfigError: a tag is invalid; a moving tag ends in a date, or is reserved for a referrer list.
    """
    for tag in tags.all:
        parse_tag(tag)
    for tag in tags.moving:
        if undated(tag):
            raise ConfigError(
                f"{tag} is a dated tag: it is set once and never moves",
                hint="publish without --tag: it also sets a dated tag; --dated DAY chooses its suffix",
            )
        if LIST.fullmatch(tag):
            raise ConfigError(f"{tag}: reserved for the list of an image's referrers")


def demand_same(ref: str, tag: str, locked: LockedCell) -> None:
    """Check that the image *ref* and its lock are of the cell *tag*.

    :raises ConfigError: the layout or the folder of locks has another cell under that name.
    """
    name, _ = split_format(ref)
    if parse_name(name) and name != tag:
        raise ConfigError(
            f"{ref}: the image with this name in the layout is {tag}", hint="build the image again"
        )
    if (cell := tag_of(locked.resolution)) != tag:
        raise ConfigError(
            f"{tag}: its lock is for {cell}", hint="run: git checkout -- images; or lock it again"
        )
