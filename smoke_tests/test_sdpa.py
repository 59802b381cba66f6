"""sdpa: attention with the flash backend uses FlashAttention, and agrees with the math backend."""

import functools
import math

import pytest

from smoke_tests.closeness import relative_error

SHAPE = (2, 4, 256, 64)  # batch, heads, length, width
RESULTS = ("output", "q", "k", "v")  # the output, and the gradients of the inputs

VALUES = {
    "sdpa": {
        "float32_by_flash": {"equals": "refused"},
        # The backward node of FlashAttention's kernel.
        "flash_full_made_by": {"equals": "ScaledDotProductFlashAttentionBackward0"},
        "flash_causal_made_by": {"equals": "ScaledDotProductFlashAttentionBackward0"},
        "math_full_made_by": {"type": "string"},
        "math_causal_made_by": {"type": "string"},
        # FP16 has eleven bits, so each backend's error is below 1e-3; with a wrong mask or scale it is 1e-1.
        "flash_full_output": {"at_most": 5e-3},
        "flash_full_q": {"at_most": 1e-2},
        "flash_full_k": {"at_most": 1e-2},
        "flash_full_v": {"at_most": 1e-2},
        "flash_causal_output": {"at_most": 5e-3},
        "flash_causal_q": {"at_most": 1e-2},
        "flash_causal_k": {"at_most": 1e-2},
        "flash_causal_v": {"at_most": 1e-2},
        "math_full_output": {"at_most": 5e-3},
        "math_full_q": {"at_most": 1e-2},
        "math_full_k": {"at_most": 1e-2},
        "math_full_v": {"at_most": 1e-2},
        "math_causal_output": {"at_most": 5e-3},
        "math_causal_q": {"at_most": 1e-2},
        "math_causal_k": {"at_most": 1e-2},
        "math_causal_v": {"at_most": 1e-2},
        "flash_against_math_full": {"at_most": 5e-3},
        "flash_against_math_causal": {"at_most": 5e-3},
    },
}


@pytest.mark.tier(1)
def test_sdpa(measure):
    """Flash and math agree with FP64 and each other, causal or not, with gradients; flash refuses FP32."""
    import torch

    torch.manual_seed(0)
    inputs = [torch.randn(SHAPE, device="cuda", dtype=torch.float16) for _ in range(4)]
    measure("float32_by_flash", _float32_by_flash(torch, inputs))
    for causal in (False, True):
        kind = "causal" if causal else "full"
        by_definition = functools.partial(_by_definition, torch, causal)
        exact, _ = _trained(by_definition, inputs, torch.float64)
        outputs = {}
        for backend in ("flash", "math"):
            found, made_by = _attended(torch, backend, inputs, causal)
            measure(f"{backend}_{kind}_made_by", made_by)
            for name in RESULTS:
                measure(f"{backend}_{kind}_{name}", relative_error(found[name], exact[name]))
            outputs[backend] = found["output"]
        apart = relative_error(outputs["flash"], outputs["math"])
        measure(f"flash_against_math_{kind}", apart)


def _attended(torch, backend, inputs, causal):
    """Output, gradients, and the autograd node of the output, by *backend* only."""
    from smoke_tests.torch_api import only_sdpa

    attention = torch.nn.functional.scaled_dot_product_attention
    with only_sdpa(backend):
        return _trained(lambda *heads: attention(*heads, is_causal=causal), inputs, torch.float16)


def _trained(attention, inputs, dtype):
    """Output, the gradients of q, k and v, and the name of the autograd node of the output."""
    *heads, gradient = (tensor.to(dtype, copy=True) for tensor in inputs)
    for head in heads:
        head.requires_grad_()
    output = attention(*heads)
    output.backward(gradient)
    found = dict(zip(RESULTS, (output.detach(), *(head.grad for head in heads)), strict=True))
    return found, output.grad_fn.name()


def _by_definition(torch, causal, q, k, v):
    """Attention by its definition."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v


def _float32_by_flash(torch, inputs):
    """FlashAttention does not support FP32, so torch must refuse if the backend is really forced."""
    from smoke_tests.torch_api import only_sdpa

    q, k, v = (tensor.float() for tensor in inputs[:3])
    try:
        with only_sdpa("flash"):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    except RuntimeError as error:
        # "No available kernel", in 2.0 "No viable backend"; any other error is not a refusal.
        return "refused" if "No available" in str(error) or "No viable" in str(error) else str(error)
    return "computed"
