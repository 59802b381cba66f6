"""Mutants of autocast-regions: regions that autocast does not see, and operations that stay in FP16."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.pretended import anywhere, broken_by

_CLASS = """
import torch
class Region(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **{options})
torch.autocast = Region
"""
NEVER_OFF = _CLASS.format(options="(options | ({'enabled': True} if device == 'cuda' else {}))")
ONE_TYPE = _CLASS.format(options="(options | ({'dtype': torch.float16} if options.get('dtype') else {}))")
OLDER_NAME_NEVER_OFF = """
import torch
real = torch.cuda.amp.autocast
class Region(real):
    def __init__(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        super().__init__(True, dtype, cache_enabled)
torch.cuda.amp.autocast = Region
"""
FUNCTION_NEVER_OFF = """
import torch
real = torch.set_autocast_enabled
torch.set_autocast_enabled = lambda *options: real(*options) if options[1:] else None
"""
NEVER_OFF_IN_BFLOAT16 = """
import torch
class Region(torch.autocast):
    inside = 0
    def __init__(self, device, **options):
        self.half = options.get('dtype') == torch.bfloat16
        super().__init__(device, **(options | ({'enabled': True} if Region.inside else {})))
    def __enter__(self):
        Region.inside += self.half
        return super().__enter__()
    def __exit__(self, *error):
        Region.inside -= self.half
        return super().__exit__(*error)
torch.autocast = Region
"""
STAYS_ON = """
import torch
class Region(torch.autocast):
    def __exit__(self, *error):
        return super().__exit__(*error) if error[0] is None else False
torch.autocast = Region
"""
NO_CUSTOM_CASTS = """
import torch
amp = torch.amp if hasattr(torch.amp, "custom_fwd") else torch.cuda.amp
def custom_fwd(function=None, **options):
    def noted(context, *inputs):
        context._fwd_used_autocast, context._dtype = torch.is_autocast_enabled(), torch.float16
        return function(context, *inputs)
    return noted if function else lambda function: custom_fwd(function)
amp.custom_fwd = custom_fwd
"""
EXP_IN_HALF = """
import torch
real = torch.exp
torch.exp = lambda rows: real(rows).to(rows.dtype)
"""
OFF = ["dtypes", "unrounded_part_if_off", "enabled_if_off", "weights_cached_over_off"]
MUTANTS = {
    "sound": ("", []),
    "a region that cannot turn it off": (NEVER_OFF, ["enabled_if_off", "unrounded_part_if_off", *OFF[::3]]),
    "torch.cuda.amp's region that cannot turn it off": (OLDER_NAME_NEVER_OFF, ["dtypes"]),
    "a function that cannot turn it off": (FUNCTION_NEVER_OFF, ["dtypes"]),
    "a region that cannot turn BF16 off": (NEVER_OFF_IN_BFLOAT16, ["dtypes"]),
    "a region that ignores its type": (ONE_TYPE, ["dtypes"]),
    "a region that stays on after an error": (STAYS_ON, OFF[::3]),
    "a custom function under autocast": (NO_CUSTOM_CASTS, ["dtypes"]),
    "an operation in FP16": (EXP_IN_HALF, ["not_in_float32"]),
}


@anywhere
@pytest.mark.parametrize("name", MUTANTS)
def test_autocast_regions_and_its_mutants(name: str, pretend: bool, tmp_path: Path) -> None:
    mutant, values = MUTANTS[name]
    assert broken_by(mutant, "autocast-regions", tmp_path, pretend=pretend) == values
