"""autocast-regions: autocast is on only where the program turned it on, and keeps FP32 operations in FP32."""

import threading

import pytest

VALUES = {
    "autocast-regions": {
        "device": {"equals": "cuda"},
        # The dtype of a product by region; further regions only if their dtype is wrong.
        "dtypes": {
            "equals": {
                "on": "torch.float16",
                "off inside": "torch.float32",
                "on inside off": "torch.float16",
                "bfloat16 inside": "torch.bfloat16",
                "on again": "torch.float16",
                "off by a decorator": "torch.float32",
                "off in a custom function": "torch.float32",
                "backward of a custom function": "torch.float32",
                "off for the CPU": "torch.float16",
                "another thread": "torch.float32",
                "after an error": "torch.float32",
                "after": "torch.float32",
            }
        },
        # 2**-12, which the rounding of a factor to FP16 or BF16 removes.
        "unrounded_part_if_off": {"equals": 0.000244140625},
        "enabled_if_off": {"equals": False},
        "weights_cached_over_off": {"equals": 0},
        # Operations that return FP32 for FP16 inputs, by the list of autocast for CUDA.
        "float32_operations": {"at_least": 29},
        "not_in_float32": {"equals": {}},
    },
}


@pytest.mark.tier(1)
def test_autocast_regions(measure):
    """Products have the dtype of the innermost region; operations of autocast's FP32 list return FP32."""
    import torch

    ones = torch.ones(16, 16, device="cuda")
    measure("device", ones.device.type)
    dtypes = {}

    def note(name):
        dtypes[name] = str((ones @ ones).dtype)

    def note_unless(dtype, name):
        found = (ones @ ones).dtype
        if found != dtype:
            dtypes[name] = str(found)

    _nested(torch, note, measure)
    _other_names(torch, note_unless)
    _in_bfloat16(torch, note_unless)
    _by_functions(torch, ones, dtypes, note)
    with torch.autocast("cuda", dtype=torch.float16):
        other = threading.Thread(target=note, args=("another thread",))
        other.start()
        other.join()
    try:
        with torch.autocast("cuda", dtype=torch.float16):
            raise LookupError
    except LookupError:
        note("after an error")
    note("after")
    measure("dtypes", dtypes)
    _weights(torch, measure)
    _in_float32(torch, measure)


def _nested(torch, note, measure):
    with torch.autocast("cuda", dtype=torch.float16):
        note("on")
        with torch.autocast("cuda", enabled=False):
            note("off inside")
            measure("enabled_if_off", torch.is_autocast_enabled())
            left = torch.tensor([[1 + 2**-12, -1.0]], device="cuda")
            measure("unrounded_part_if_off", float(left @ torch.ones(2, 1, device="cuda")))
            with torch.autocast("cuda", dtype=torch.float16):
                note("on inside off")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            note("bfloat16 inside")
        note("on again")
        with torch.autocast("cpu", enabled=False):
            note("off for the CPU")


def _other_names(torch, note_unless):
    """The same regions by the names that older programs use, and by the function below all of them."""
    half, single = torch.float16, torch.float32
    with torch.autocast("cuda", dtype=half):
        with torch.amp.autocast("cuda", enabled=False):
            note_unless(single, "off by torch.amp")
        with torch.cuda.amp.autocast(enabled=False):
            note_unless(single, "off by torch.cuda.amp")
            with torch.cuda.amp.autocast():
                note_unless(half, "on by torch.cuda.amp")
        torch.cuda.amp.autocast(enabled=False)(note_unless)(single, "off by torch.cuda.amp's decorator")
        torch.set_autocast_enabled(False)  # the end of the region sets it back
        note_unless(single, "off by a function")


def _in_bfloat16(torch, note_unless):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        note_unless(torch.bfloat16, "bfloat16")
        with torch.autocast("cuda", enabled=False):
            note_unless(torch.float32, "off inside bfloat16")
        with torch.autocast("cuda", dtype=torch.float16):
            note_unless(torch.float16, "float16 inside bfloat16")
        note_unless(torch.bfloat16, "bfloat16 again")


def _by_functions(torch, ones, dtypes, note):
    """Regions by decorators: autocast, and custom_fwd, which casts the inputs and turns autocast off."""
    from smoke_tests.torch_api import custom_autocast

    of_forward, of_backward = custom_autocast()

    class Product(torch.autograd.Function):
        @staticmethod
        @of_forward
        def forward(ctx, left):
            found = left @ left
            dtypes["off in a custom function"] = str(found.dtype)
            return found

        @staticmethod
        @of_backward
        def backward(ctx, gradient):
            found = gradient @ gradient
            dtypes["backward of a custom function"] = str(found.dtype)
            return found

    with torch.autocast("cuda", dtype=torch.float16):
        torch.autocast("cuda", enabled=False)(note)("off by a decorator")
        leaf = ones.clone().requires_grad_()
        made = Product.apply(leaf)
    made.sum().backward()


def _weights(torch, measure):
    """A weight that was cast before a region without autocast is used there in FP32."""
    torch.manual_seed(0)
    layer, rows = torch.nn.Linear(64, 64).cuda(), torch.randn(64, 64, device="cuda")
    expected = layer(rows)
    with torch.autocast("cuda", dtype=torch.float16):
        layer(rows)
        with torch.autocast("cuda", enabled=False):
            found = layer(rows)
    measure("weights_cached_over_off", int((found != expected).sum()))


def _in_float32(torch, measure):
    from torch.nn import functional

    torch.manual_seed(0)
    rows = torch.rand(8, 16, device="cuda").half() + 1
    target, classes = torch.rand_like(rows), torch.arange(8, device="cuda")
    unary = "exp expm1 log log2 log10 log1p reciprocal rsqrt sinh tan prod sum norm"
    calls = {name: lambda name=name: getattr(torch, name)(rows) for name in unary.split()}
    calls |= {
        name: lambda name=name: getattr(torch, name)(rows, 1) for name in ("cumsum", "cumprod", "logsumexp")
    }
    calls |= {
        name: lambda name=name: getattr(functional, name)(rows, target)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "kl_div",
            "cosine_similarity",
            "poisson_nll_loss",
        )
    }
    calls |= {
        "pow": lambda: rows**2.5,
        "softmax": lambda: functional.softmax(rows, -1),
        "log_softmax": lambda: functional.log_softmax(rows, -1),
        "softplus": lambda: functional.softplus(rows),
        "layer_norm": lambda: functional.layer_norm(rows, (16,)),
        "group_norm": lambda: functional.group_norm(rows, 4),
        "cross_entropy": lambda: functional.cross_entropy(rows, classes),
        "with_logits": lambda: functional.binary_cross_entropy_with_logits(rows, target),
        "cdist": lambda: torch.cdist(rows, target),
    }
    with torch.autocast("cuda", dtype=torch.float16):
        found = {name: str(call().dtype) for name, call in calls.items()}
    measure("float32_operations", len(found))
    measure("not_in_float32", {name: dtype for name, dtype in found.items() if dtype != "torch.float32"})
