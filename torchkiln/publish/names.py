"""The tags under which an image is published, from its lock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_of, dated, misfit, parse_name, tag_of, undated
from torchkiln.model.layer_format import split_format, tag_suffix
from torchkiln.model.lock import LockedCell
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.reference import parse_tag
from torchkiln.registry.referrers import LIST


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What an image is to be called."""

    dated: str | None  # set once and never moved
    moving: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """In the order in which they are set."""
        return tuple(filter(None, (self.dated, *self.moving)))


def names_of(
    image: ImageOnDisk,
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    day: str,
    asked: Sequence[str] = (),
) -> Names:
    """As they follow from the lock; of those that were *asked* for, none that is another image's.

    :raises ConfigError: one is not a tag, must not move, or reads as another image's.
    """
    form = tag_suffix(image.layer_format)
    own = f"{tag_of(locked.resolution)}{form}"
    if asked:
        found = Names(dated=None, moving=tuple(asked))
    else:
        aliases = (f"{name}{form}" for name in aliases_of(locked.resolution, matrix, facts))
        found = Names(dated=dated(own, day), moving=(own, *aliases))
    demand_movable(found)
    for name in found.moving:
        if why := misfit(name, own, matrix):
            raise ConfigError(
                f"{name} is another image's name: {why}",
                hint="choose one that reads as no other image's: --tag trial",
            )
    return found


def demand_movable(names: Names) -> None:
    """That each of *names* is a tag, and that those which move are none that must not.

    :raises ConfigError: one is none, is dated, or lists what goes with an image.
    """
    for tag in names.all:
        parse_tag(tag)
    for tag in names.moving:
        if undated(tag):
            raise ConfigError(
                f"{tag} ends in a day: a dated tag is set once and never moves",
                hint="publish without --tag: the dated tag is set with the others; --dated names the day",
            )
        if LIST.fullmatch(tag):
            raise ConfigError(f"{tag}: such tags are for lists of what goes with an image")


def demand_same(ref: str, tag: str, locked: LockedCell) -> None:
    """That the image is what it was asked for by, and its lock is of the same cell.

    :raises ConfigError: the layout, or the folder of locks, has another one under that name.
    """
    asked, _ = split_format(ref)
    if parse_name(asked) and asked != tag:
        raise ConfigError(f"{ref}: the layout has {tag} under this name", hint="build the image again")
    if (cell := tag_of(locked.resolution)) != tag:
        raise ConfigError(f"{tag}: its lock is of {cell}", hint="git checkout -- images; or lock it again")
