"""A plan -> the same with every wheel's size: what a lock by public record leaves out, the index tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchkiln.engines.observer import Fetcher
from torchkiln.nouns import ImagePlan, LockedWheel
from torchkiln.store import Store


def measured(plan: ImagePlan, store: Store, fetcher: Fetcher) -> ImagePlan:
    """*plan*, whose lock and digest stay as they are.

    :raises BuildFailed: the index does not have a wheel of that hash.
    """
    if all(wheel.size for layer in plan.layers for wheel in layer.wheels):
        return plan
    layers = (replace(one, wheels=tuple(_measured(one.wheels, store, fetcher))) for one in plan.layers)
    return replace(plan, layers=tuple(layers))


def _measured(wheels: Iterable[LockedWheel], store: Store, fetcher: Fetcher) -> Iterable[LockedWheel]:
    for wheel in wheels:
        if wheel.size:
            yield wheel
        elif store.has_wheel(wheel):
            yield replace(wheel, size=store.wheel(wheel).stat().st_size)
        else:
            yield replace(wheel, size=fetcher.size(wheel))
