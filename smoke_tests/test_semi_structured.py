"""semi-structured: products with 2:4 sparsity by cuSPARSELt agree with FP64."""

import pytest

from smoke_tests.closeness import relative_error

VALUES = {
    "semi-structured": {
        "device": {"equals": "cuda"},
        "library_loaded": {"equals": True},
        "stored_share": {"at_most": 0.6},  # half of the values, and two bits for the place of each
        # Sums of 128 products in FP32, rounded once.
        "float16_error": {"at_most": 2e-3},
        "bfloat16_error": {"at_most": 1.6e-2},
        "transposed_error": {"at_most": 2e-3},
        "linear_error": {"at_most": 2e-3},
    },
}


@pytest.mark.tier(1)
def test_semi_structured(measure):
    """Compress a matrix of which two in four values are 0, and multiply it."""
    import torch

    from smoke_tests.device_files import mapped

    torch.manual_seed(0)
    measure("device", torch.empty(1, device="cuda").device.type)
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        sparse, dense = _halved(torch, 128, 256).to(dtype), torch.randn(256, 128).to(dtype)
        there = _compressed(torch, sparse)
        if name == "float16":
            stored = sum(part.nbytes for part in (there.packed, there.meta) if part is not None)
            measure("stored_share", stored / sparse.nbytes)
            by_columns = dense.t().contiguous().t().cuda()
            exact = sparse.double() @ dense.double()
            measure("transposed_error", relative_error((there @ by_columns).cpu(), exact))
            rows, bias = torch.randn(64, 256).half(), torch.randn(128).half()
            found = torch.nn.functional.linear(rows.cuda(), there, bias.cuda()).cpu()
            exact = rows.double() @ sparse.double().t() + bias.double()
            measure("linear_error", relative_error(found, exact))
        found = (there @ dense.cuda()).cpu()
        measure(f"{name}_error", relative_error(found, sparse.double() @ dense.double()))
    measure("library_loaded", any("libcusparseLt" in path for path in mapped()))


def _halved(torch, *shape):
    """Random numbers of which the first or the second two of four are 0."""
    numbers = torch.randn(shape).view(-1, 2, 2)
    numbers[torch.arange(len(numbers)), torch.randint(0, 2, (len(numbers),))] = 0
    return numbers.view(shape)


def _compressed(torch, sparse):
    """*sparse* on the GPU, compressed by cuSPARSELt, never by CUTLASS."""
    return torch.sparse.SparseSemiStructuredTensorCUSPARSELT.from_dense(sparse.cuda())
