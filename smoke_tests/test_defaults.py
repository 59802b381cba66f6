"""defaults, gpu-defaults: a new interpreter has torch's own settings, and a GPU behaves by them."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from smoke_tests.expected import is_setting
from smoke_tests.probe import probe

VALUES = {
    "defaults": {
        # Settings that are the same in every torch from 2.0 on, by their repr.
        "declared": {
            "equals": {
                "torch.are_deterministic_algorithms_enabled": "False",
                "torch.backends.cuda.flash_sdp_enabled": "True",
                "torch.backends.cuda.math_sdp_enabled": "True",
                "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "True",
                "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "True",
                "torch.backends.cuda.matmul.allow_tf32": "False",
                "torch.backends.cuda.mem_efficient_sdp_enabled": "True",
                "torch.backends.cudnn.allow_tf32": "True",
                "torch.backends.cudnn.benchmark": "False",
                "torch.backends.cudnn.deterministic": "False",
                "torch.backends.cudnn.enabled": "True",
                "torch.empty(0).device": "'cpu'",
                "torch.empty(0).requires_grad": "False",
                "torch.get_autocast_gpu_dtype": "torch.float16",
                "torch.get_default_dtype": "torch.float32",
                "torch.get_float32_matmul_precision": "'highest'",
                "torch.is_anomaly_enabled": "False",
                "torch.is_autocast_cache_enabled": "True",
                "torch.is_autocast_enabled": "False",
                "torch.is_grad_enabled": "True",
                "torch.is_inference_mode_enabled": "False",
                "torch.is_warn_always_enabled": "False",
            }
        },
        "settings": {"at_least": 1800},
        # [without start-up code and variables, with them] by setting
        "changed_at_start": {"equals": {}},
        "seeded": {"equals": []},  # generators that give two interpreters the same number
        "variables": {"expected": "set_variables"},
    },
    "gpu-defaults": {
        "device": {"equals": "cuda"},
        "dtype": {"equals": "torch.float32"},
        "product_error": {"at_most": 1e-5},  # TF32's is 3e-4
        "convolution_error": {"at_most": 1e-3},  # torch allows TF32 for convolutions
        "attention_by": {"type": "string"},
        "fused_attention": {"equals": True},
        "allocator": {"equals": "native"},
        "launch_returned_first": {"equals": True},
        "cached": {"at_least": 67108864},
    },
}
_FUSED = ("Flash", "Efficient", "Cudnn")


@pytest.mark.tier(0)
def test_defaults(measure):
    """Compare torch's settings in an interpreter that starts as for users with those in one without start-up
    code and variables, and with the declared ones."""
    env = {name: value for name, value in os.environ.items() if not is_setting(name)}
    path = json.dumps(sys.path)  # without start-up code, Python does not know the folders of packages
    with ThreadPoolExecutor() as pool:
        bare = pool.submit(probe, "defaults", path, flags=("-I", "-S", "-B"), env=env)
        again = pool.submit(probe, "defaults", "[]", "draws")
        as_users_do = probe("defaults", "[]")
        found, clean = as_users_do["settings"], bare.result()["settings"]
        draws = again.result()["draws"]
    measure("declared", {name: found.get(name) for name in VALUES["defaults"]["declared"]["equals"]})
    measure("settings", len(found))
    changed = {name for name in found.keys() | clean.keys() if found.get(name) != clean.get(name)}
    measure("changed_at_start", {name: [clean.get(name), found.get(name)] for name in sorted(changed)})
    measure("seeded", [name for name, number in draws.items() if number == as_users_do["draws"][name]])
    # Of the new interpreter, because start-up code can set variables, too.
    variables = as_users_do["variables"].items()
    measure("variables", {name: value for name, value in variables if is_setting(name)})


@pytest.mark.tier(1)
def test_gpu_defaults(measure):
    """Products in FP32 are exact to its rounding, attention is one kernel, launches do not wait, and freed
    memory stays with the allocator."""
    found = probe("gpu_defaults")
    for name, value in found.items():
        measure(name, value)
    measure("fused_attention", any(kernel in found["attention_by"] for kernel in _FUSED))
