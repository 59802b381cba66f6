"""What torch does on a GPU in a new interpreter in which nothing was set."""

import json

import torch

SIZE, WORK, BLOCK = 1024, 250_000_000, 64 << 20  # rows; clock cycles; bytes


def error(found, exact):
    """‖found - exact‖ / ‖exact‖"""
    return float((found.cpu().double() - exact).norm() / exact.norm())


def product_error():
    """The error of a product in FP32: about 1e-6, or 3e-4 by TF32."""
    torch.manual_seed(0)
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    return error(left.cuda() @ right.cuda(), left.double() @ right.double())


def convolution_error():
    """The error of a convolution in FP32, for which torch allows TF32 by default."""
    image, filters = torch.randn(4, 64, 16, 16), torch.randn(128, 64, 3, 3)
    convolve = torch.nn.functional.conv2d
    return error(convolve(image.cuda(), filters.cuda()), convolve(image.double(), filters.double()))


def attention_by():
    """The backward node of attention in FP16."""
    heads = (
        torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(3)
    )
    return torch.nn.functional.scaled_dot_product_attention(*heads).grad_fn.name()


def launch_returned_first():
    """Whether the call of a kernel returns before the kernel ends."""
    torch.cuda.synchronize()
    torch.cuda._sleep(WORK)
    ended = torch.cuda.Event()
    ended.record()
    first = not ended.query()
    torch.cuda.synchronize()
    return first


def cached():
    """Bytes that the allocator keeps of a block that was freed."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.empty(BLOCK, dtype=torch.uint8, device="cuda")
    return torch.cuda.memory_reserved() - before


def found():
    """All values; the device first, so that it is known if the others fail."""
    there = torch.empty(1, device="cuda")
    return {
        "device": there.device.type,
        "dtype": str(there.dtype),
        "product_error": product_error(),
        "convolution_error": convolution_error(),
        "attention_by": attention_by(),
        "allocator": torch.cuda.get_allocator_backend(),
        "launch_returned_first": launch_returned_first(),
        "cached": cached(),
    }


print(json.dumps(found()))
