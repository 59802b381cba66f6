"""Raw values and bounds: the suite and the host judge them alike, and nothing unbounded passes."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.measure import Measure, fault, plain
from torchkiln.smoke.verdict import is_within

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
bounds = st.fixed_dictionaries(
    {}, optional={"equals": values, "at_least": st.integers(-5, 5), "at_most": st.floats(-5, 5)}
).filter(bool)


@given(value=values, bound=bounds)
def test_inside_and_outside_judge_alike(value: object, bound: dict[str, object]) -> None:
    value, bound = plain(value), plain(bound)
    assert (fault(value, bound) == "") == is_within(value, bound)


@given(values)
def test_plain_is_what_json_gives_back(value: object) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, "3", [3]])
def test_no_numeric_bound_lets_through_what_is_no_number(value: object) -> None:
    measure = Measure()
    measure("x", value, at_least=-9, at_most=9)
    assert measure.faults()


def test_every_fault_is_told_at_once() -> None:
    measure = Measure()
    measure("loss", 0.9, at_most=0.1)
    measure("free", 3)
    measure("wheels", {"a": "1", "b": "2"}, equals={"a": "2", "c": "3"})
    loss, wheels = measure.faults()
    assert loss == "loss: 0.9 is not at most 0.1"
    assert wheels == "wheels: c is missing (wanted '3'); b is not wanted (is '2'); a is '1', wanted '2'"


def test_a_check_that_bounded_nothing_is_a_fault() -> None:
    measure = Measure()
    measure("seconds", 1.0)
    assert measure.faults() == ["the check bounded nothing: it could not have failed"]


def test_a_name_is_measured_once() -> None:
    measure = Measure()
    measure("x", 1, equals=1)
    with pytest.raises(ValueError, match="twice"):
        measure("x", 2, equals=2)
