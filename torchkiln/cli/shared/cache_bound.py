"""Prints a line at the end of a build if the cache is larger than its bound."""

from __future__ import annotations

import os
import re
import shutil

import click

from torchkiln.cli.shared.options import variable
from torchkiln.errors import ConfigError
from torchkiln.store.store import Store
from torchkiln.util.sizes import size

VARIABLE = "TORCHKILN_CACHE_MAX_SIZE"


def _use_bound(ctx: click.Context, _: click.Parameter, text: str | None) -> None:
    """Set TORCHKILN_CACHE_MAX_SIZE for this command."""
    if text is not None:
        parse_bytes(text, "--max-size")
        ctx.with_resource(variable(VARIABLE, text))


max_size_option = click.option(
    "--max-size",
    metavar="SIZE",
    expose_value=False,
    callback=_use_bound,
    help="if the cache is larger than this afterwards, print how to make it smaller: 20GB  [default:"
    f" ${VARIABLE}, else half of the disk space that the cache could have]",
)


def excess(store: Store) -> str:
    """A line about a cache that is larger than its bound; empty if it is not.

    :raises ConfigError: TORCHKILN_CACHE_MAX_SIZE is not a size.
    """
    from torchkiln.cache.usage import bytes_held  # loads slowly

    if not store.root.is_dir():
        return ""
    held, given = bytes_held(store), os.environ.get(VARIABLE)
    if given:
        bound, text, why = parse_bytes(given, VARIABLE), given, "its bound"
    else:
        bound = (held + shutil.disk_usage(store.root).free) // 2
        text, why = f"{bound // 10**9}GB", "half of the disk space that it could have"
    if held <= bound:
        return ""
    return (
        f"the cache has {size(held)}, more than {size(bound)}, {why}; to delete what no image needs:"
        f" torchkiln cache prune --max-size {text}"
    )


def parse_bytes(text: str, option: str = "--max-size") -> int:
    """`"20GB"`, `"500M"`, `"1.5GiB"`, `"0"` as bytes; GB is 10⁹, GiB 2³⁰.

    :raises ConfigError: *text*, the value of *option*, is invalid.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?", text.strip().upper())
    if match is None:
        raise ConfigError(f"{option} {text}: not a valid size", hint="write 500MB, 20GB or 20GiB")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** (" KMGT".index(match[2]) if match[2] else 0))
