"""sdpa: attention with the flash backend uses FlashAttention, and agrees with the math backend."""

import functools
import math

import pytest

from smoke_tests.closeness import relative_error

SHAPE = (2, 4, 256, 64)  # batch, heads, length, width
# FP16 has eleven bits, so each back end errs by less than 1e-3; a wrong mask or scale errs by 1e-1 and more.
BOUNDS = {"output": 5e-3, "q": 1e-2, "k": 1e-2, "v": 1e-2}
FLASH = "ScaledDotProductFlashAttentionBackward0"  # the node that FlashAttention's kernel leaves for backward


@pytest.mark.tier(1)
def test_sdpa(measure):
    """Flash and math against FP64 and each other, causal and not, with gradients; flash refuses FP32."""
    import torch

    torch.manual_seed(0)
    inputs = [torch.randn(SHAPE, device="cuda", dtype=torch.float16) for _ in range(4)]
    measure("float32_by_flash", _float32_by_flash(torch, inputs), equals="refused")
    for causal in (False, True):
        kind = "causal" if causal else "full"
        by_hand = functools.partial(_by_hand, torch, causal)
        exact, _ = _trained(by_hand, inputs, torch.float64)
        outputs = {}
        for backend in ("flash", "math"):
            found, made_by = _attended(torch, backend, inputs, causal)
            wanted = {"equals": FLASH} if backend == "flash" else {}
            measure(f"{backend}_{kind}_made_by", made_by, **wanted)
            for name, bound in BOUNDS.items():
                measure(f"{backend}_{kind}_{name}", relative_error(found[name], exact[name]), at_most=bound)
            outputs[backend] = found["output"]
        apart = relative_error(outputs["flash"], outputs["math"])
        measure(f"flash_against_math_{kind}", apart, at_most=BOUNDS["output"])


def _attended(torch, backend, inputs, causal):
    """Output, gradients, and what made the output, by *backend* alone."""
    from smoke_tests.torch_api import only_sdpa

    attention = torch.nn.functional.scaled_dot_product_attention
    with only_sdpa(backend):
        return _trained(lambda *heads: attention(*heads, is_causal=causal), inputs, torch.float16)


def _trained(attention, inputs, dtype):
    """Output and the gradients of q, k and v; and the name of what made the output."""
    *heads, gradient = (tensor.to(dtype, copy=True) for tensor in inputs)
    for head in heads:
        head.requires_grad_()
    output = attention(*heads)
    output.backward(gradient)
    found = dict(zip(BOUNDS, (output.detach(), *(head.grad for head in heads)), strict=True))
    return found, output.grad_fn.name()


def _by_hand(torch, causal, q, k, v):
    """Attention by its definition."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v


def _float32_by_flash(torch, inputs):
    """FlashAttention does not support FP32: if it is really forced, torch must refuse."""
    from smoke_tests.torch_api import only_sdpa

    q, k, v = (tensor.float() for tensor in inputs[:3])
    try:
        with only_sdpa("flash"):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    except RuntimeError as error:
        # "No available kernel", in 2.0 "No viable backend"; what else went wrong is not a refusal.
        return "refused" if "No available" in str(error) or "No viable" in str(error) else str(error)
    return "computed"
