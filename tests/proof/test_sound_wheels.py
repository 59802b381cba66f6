"""Wheels of the real index on the image of 2.7.1: compatible wheels are accepted, others refused.

tools/sound-wheels.csv lists the compatible wheels. The test downloads about 9 GB. It deletes each wheel after
the check.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.needs import nightly
from tools.sound_wheels import OnTheImage, listed, on_the_image
from torchkiln.model.lock import LockedWheel

pytestmark = [pytest.mark.proof, nightly]

_AT_ONCE = 20
PARTS = [listed()[start : start + _AT_ONCE] for start in range(0, len(listed()), _AT_ONCE)]
OLD_ABI = "built with the pre-C++11 ABI, torch has the C++11 ABI"
OTHER = "it has this function with other parameters, so this was built for another torch"
# Wheels that were compiled for torch 2.3, 2.5, 2.6 and 2.8, with the other C++ ABI, or for another CUDA.
FOR_OTHERS = {
    "torchtext==0.18.0": OLD_ABI,
    "xformers==0.0.28.post3": OLD_ABI,
    "torchvision==0.21.0": OLD_ABI,
    "torchaudio==2.6.0": OLD_ABI,
    "torchvision==0.23.0": OTHER,
    "torchaudio==2.8.0": OTHER,
    "torchopt==0.7.3": OLD_ABI,
    "implicit==0.7.3": "built for CUDA 13",
}


@pytest.fixture(scope="module")
def image() -> Iterator[OnTheImage]:
    """The image, with its wheels and its base in the cache."""
    with on_the_image() as found:
        yield found


def test_there_are_enough() -> None:
    assert len({wheel.filename for wheel in listed()}) == len(listed()) >= 200


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part[0].name)
def test_no_sound_wheel_is_refused(part: tuple[LockedWheel, ...], image: OnTheImage) -> None:
    """Each wheel is checked alone: together, one might provide the libraries that another needs."""
    found = list(image.checks(part))

    assert [checked.wheel for checked in found] == list(part)
    assert [line for checked in found for line in (*checked.faults, *checked.unread)] == []
    assert all(checked.libraries for checked in found)


@pytest.mark.parametrize("wanted", FOR_OTHERS)
def test_a_wheel_for_others_is_refused(wanted: str, image: OnTheImage) -> None:
    wheel = image.wheel_of(wanted)
    assert wheel

    [checked] = image.checks([wheel])
    assert any(FOR_OTHERS[wanted] in fault for fault in checked.faults), checked.faults
