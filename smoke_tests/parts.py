"""The parts of a training step: functions with their inputs, compared in value and gradients with FP64.

Imports torch; import it inside a check.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten

Make = Callable[[], torch.Tensor]


class Part(NamedTuple):
    """A function or a layer, and functions that make its inputs."""

    name: str
    compute: Callable[..., Any]
    inputs: tuple[Make, ...]  # these, and the weights of a layer, get a gradient
    fixed: tuple[Make, ...] = ()  # further inputs, without a gradient
    under_autocast: bool = True


class _Called(nn.Module):
    """*layer*, called with the arguments that *arrange* returns."""

    def __init__(self, layer: nn.Module, arrange: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__()
        self.layer, self.arrange = layer, arrange

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The layer's result."""
        return self.layer(*self.arrange(*inputs))


def x(*shape: int) -> Make:
    """Normally distributed numbers."""
    return lambda: torch.randn(shape)


def share(*shape: int) -> Make:
    """Numbers between 0.1 and 0.9."""
    return lambda: 0.1 + 0.8 * torch.rand(shape)


def whole(high: int, *shape: int) -> Make:
    """Integers from 0 to *high* - 1."""
    return lambda: torch.randint(0, high, shape)


def sign(*shape: int) -> Make:
    """1 or -1."""
    return lambda: 2.0 * torch.randint(0, 2, shape) - 1


def parts() -> list[Part]:
    """All parts, in the same order each time."""
    groups = (_products, _attention, _norms, _embeddings, _losses, _activations, _pools, _moves, _layers)
    return [part for group in groups for part in group()]


def _products() -> Iterator[Part]:
    for dims, size in ((1, (20,)), (2, (9, 10)), (3, (5, 6, 7))):
        plain, back = (getattr(functional, f"conv{kind}{dims}d") for kind in ("", "_transpose"))
        image, taps = x(4, 16, *size), (3,) * dims
        yield Part(f"conv{dims}d", partial(plain, padding=1), (image, x(24, 16, *taps), x(24)))
        yield Part(
            f"conv{dims}d strided, dilated, in groups",
            partial(plain, padding=2, stride=2, dilation=2, groups=4),
            (image, x(24, 4, *taps), x(24)),
        )
        yield Part(
            f"conv{dims}d depthwise", partial(plain, padding=1, groups=16), (image, x(16, 1, *taps), x(16))
        )
        yield Part(f"conv_transpose{dims}d", partial(back, stride=2), (image, x(16, 24, *taps), x(24)))
    yield Part(
        "conv2d, channels last",
        lambda image, weight, bias: functional.conv2d(_last(image), _last(weight), bias, padding=1),
        (x(4, 16, 9, 10), x(24, 16, 3, 3), x(24)),
    )
    yield Part("linear", functional.linear, (x(8, 40, 64), x(48, 64), x(48)))
    yield Part("bilinear", functional.bilinear, (x(8, 20), x(8, 30), x(12, 20, 30), x(12)))
    yield Part("matmul", torch.matmul, (x(4, 30, 64), x(64, 20)))
    yield Part("mv", torch.mv, (x(30, 64), x(64)))
    yield Part("bmm", torch.bmm, (x(4, 30, 64), x(4, 64, 20)))
    yield Part("addmm", torch.addmm, (x(30, 20), x(30, 64), x(64, 20)))
    yield Part("baddbmm", torch.baddbmm, (x(4, 30, 20), x(4, 30, 64), x(4, 64, 20)))
    yield Part("einsum", partial(torch.einsum, "bik,bjk->bij"), (x(4, 30, 64), x(4, 20, 64)))


def _last(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)


def _attention() -> Iterator[Part]:
    attend = functional.scaled_dot_product_attention
    heads = (x(2, 4, 48, 32), x(2, 4, 64, 32), x(2, 4, 64, 32))

    def seen() -> torch.Tensor:
        """Each query sees about half of the keys, and always the first."""
        mask = torch.rand(2, 1, 48, 64) < 0.5
        mask[..., 0] = True
        return mask

    def padded() -> torch.Tensor:
        """The last keys of the second sequence are padding."""
        mask = torch.zeros(2, 24, dtype=torch.bool)
        mask[1, 16:] = True
        return mask

    yield Part("attention", attend, heads)
    yield Part("causal attention", partial(attend, is_causal=True), (*[x(2, 4, 64, 32)] * 3,))
    yield Part("attention with a mask", attend, heads, (seen,))
    yield Part("attention with a bias", attend, (*heads, x(2, 4, 48, 64)))
    torch.manual_seed(1)
    many = nn.MultiheadAttention(64, 4, batch_first=True)
    many = _Called(
        nn.MultiheadAttention(64, 4, batch_first=True),
        lambda rows, mask: (rows, rows, rows, mask, False),  # False: by the kernels of plain attention
    )
    yield Part("multi-head attention with padding", many, (x(2, 24, 64),), (padded,))
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu", batch_first=True)
    whole_layer = _Called(layer, lambda rows, mask: (rows, None, mask))
    yield Part("transformer layer with padding", whole_layer, (x(2, 24, 64),), (padded,))


def _norms() -> Iterator[Part]:
    image = x(8, 12, 6, 7)
    yield Part(
        "batch_norm",
        lambda rows, weight, bias: functional.batch_norm(rows, None, None, weight, bias, training=True),
        (image, x(12), x(12)),
    )
    yield Part(
        "batch_norm, channels last",
        lambda rows, weight, bias: functional.batch_norm(_last(rows), None, None, weight, bias, True),
        (image, x(12), x(12)),
    )
    yield Part(
        "batch_norm's running statistics",
        _running_statistics,
        (),
        (image,),
    )
    yield Part(
        "batch_norm in evaluation",
        lambda rows, weight, bias, mean, variance: functional.batch_norm(rows, mean, variance, weight, bias),
        (image, x(12), x(12)),
        (x(12), share(12)),
    )
    yield Part(
        "layer_norm",
        lambda rows, weight, bias: functional.layer_norm(rows, (96,), weight, bias),
        (x(40, 96), x(96), x(96)),
    )
    yield Part(
        "group_norm",
        lambda rows, weight, bias: functional.group_norm(rows, 4, weight, bias),
        (image, x(12), x(12)),
    )
    yield Part(
        "instance_norm",
        lambda rows, weight, bias: functional.instance_norm(rows, weight=weight, bias=bias),
        (image, x(12), x(12)),
    )
    if hasattr(functional, "rms_norm"):  # from 2.4 on
        yield Part(
            "rms_norm", lambda rows, weight: functional.rms_norm(rows, (96,), weight), (x(40, 96), x(96))
        )
    yield Part("local_response_norm", partial(functional.local_response_norm, size=3), (image,))
    yield Part("normalize", functional.normalize, (x(40, 96),))


def _running_statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = rows.new_zeros(12), rows.new_ones(12)
    functional.batch_norm(rows, mean, variance, training=True, momentum=0.3)
    return mean, variance


def _embeddings() -> Iterator[Part]:
    yield Part(
        "embedding",
        lambda table, words: functional.embedding(words, table, padding_idx=3),
        (x(50, 24),),
        (whole(50, 8, 30),),
    )
    for mode in ("sum", "mean", "max"):
        yield Part(
            f"embedding_bag, {mode}",
            lambda table, words, mode=mode: functional.embedding_bag(words, table, mode=mode),
            (x(50, 24),),
            (whole(50, 8, 30),),
        )


def _losses() -> Iterator[Part]:
    rows, classes = x(40, 10), whole(10, 40)
    yield Part("cross_entropy", functional.cross_entropy, (rows,), (classes,))
    yield Part(
        "cross_entropy with weights, smoothed",
        lambda scores, chosen, weight: functional.cross_entropy(
            scores, chosen, weight, ignore_index=3, label_smoothing=0.1
        ),
        (rows,),
        (classes, share(10)),
    )
    yield Part(
        "cross_entropy of an image", functional.cross_entropy, (x(4, 10, 5, 6),), (whole(10, 4, 5, 6),)
    )
    yield Part(
        "cross_entropy with probabilities",
        functional.cross_entropy,
        (rows,),
        (lambda: torch.rand(40, 10).softmax(1),),
    )
    yield Part("nll_loss", functional.nll_loss, (rows,), (classes,))
    yield Part(
        "binary_cross_entropy",
        functional.binary_cross_entropy,
        (share(40, 10),),
        (share(40, 10),),
        under_autocast=False,
    )
    yield Part(
        "binary_cross_entropy_with_logits",
        lambda scores, targets, weight: functional.binary_cross_entropy_with_logits(
            scores, targets, pos_weight=weight
        ),
        (rows,),
        (share(40, 10), share(10)),
    )
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
        yield Part(name, getattr(functional, name), (rows,), (sign(40, 10),))
    yield Part(
        "kl_div",
        lambda scores, targets: functional.kl_div(scores, targets, reduction="batchmean"),
        (rows,),
        (share(40, 10),),
    )
    yield Part("poisson_nll_loss", functional.poisson_nll_loss, (rows,), (share(40, 10),))
    yield Part("gaussian_nll_loss", functional.gaussian_nll_loss, (rows, x(40, 10), share(40, 10)))
    yield Part("hinge_embedding_loss", functional.hinge_embedding_loss, (rows,), (sign(40, 10),))
    yield Part("margin_ranking_loss", functional.margin_ranking_loss, (x(40), x(40)), (sign(40),))
    yield Part("multi_margin_loss", functional.multi_margin_loss, (rows,), (classes,))
    yield Part("multilabel_margin_loss", functional.multilabel_margin_loss, (rows,), (whole(10, 40, 10),))
    yield Part(
        "multilabel_soft_margin_loss",
        functional.multilabel_soft_margin_loss,
        (rows,),
        (whole(2, 40, 10),),
    )
    yield Part("triplet_margin_loss", functional.triplet_margin_loss, (rows, rows, rows))
    yield Part("cosine_embedding_loss", functional.cosine_embedding_loss, (rows, rows), (sign(40),))
    yield Part(
        "ctc_loss",
        lambda scores, targets: functional.ctc_loss(
            scores.log_softmax(2), 1 + targets, torch.tensor([30] * 4), torch.tensor([9, 5, 7, 3])
        ),
        (x(30, 4, 12),),
        (whole(11, 4, 9),),
    )
    yield Part("cosine_similarity", functional.cosine_similarity, (rows, rows))
    yield Part("pairwise_distance", functional.pairwise_distance, (rows, rows))
    yield Part("cdist", torch.cdist, (rows, x(30, 10)))


def _activations() -> Iterator[Part]:
    plain = "relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign tanh sigmoid logsigmoid"
    plain += " hardtanh hardswish hardsigmoid hardshrink softshrink tanhshrink glu rrelu"
    for name in plain.split():
        yield Part(name, getattr(functional, name), (lambda: 3 * torch.randn(40, 96),))
    yield Part("gelu, tanh", partial(functional.gelu, approximate="tanh"), (x(40, 96),))
    yield Part("prelu", functional.prelu, (x(8, 12, 7), x(12)))
    yield Part("threshold", partial(functional.threshold, threshold=0.2, value=-1.0), (x(40, 96),))
    for name in ("softmax", "log_softmax", "softmin"):
        yield Part(name, partial(getattr(functional, name), dim=-1), (x(40, 96),))
    yield Part("softmax of an image", partial(functional.softmax, dim=1), (x(4, 12, 5, 6),))


def _pools() -> Iterator[Part]:
    for dims, size in ((1, (20,)), (2, (9, 10)), (3, (5, 6, 7))):
        image = x(4, 6, *size)
        for kind in ("max", "avg"):
            yield Part(
                f"{kind}_pool{dims}d",
                partial(getattr(functional, f"{kind}_pool{dims}d"), kernel_size=2),
                (image,),
            )
            yield Part(
                f"adaptive_{kind}_pool{dims}d",
                partial(getattr(functional, f"adaptive_{kind}_pool{dims}d"), output_size=3),
                (image,),
            )
    yield Part(
        "max_pool2d, channels last",
        lambda image: functional.max_pool2d(_last(image), 2),
        (x(4, 6, 9, 10),),
    )
    yield Part("lp_pool2d", partial(functional.lp_pool2d, norm_type=2.0, kernel_size=2), (x(4, 6, 9, 10),))


def _moves() -> Iterator[Part]:
    image, up = x(4, 6, 9, 10), functional.interpolate
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        yield Part(f"interpolate, {mode}", partial(up, size=(14, 13), mode=mode), (image,))
    yield Part("interpolate, trilinear", partial(up, scale_factor=2, mode="trilinear"), (x(2, 3, 4, 5, 6),))
    yield Part(
        "grid_sample",
        partial(functional.grid_sample, align_corners=False),
        (image,),
        (lambda: 2 * torch.rand(4, 7, 8, 2) - 1,),
    )
    yield Part(
        "affine_grid", partial(functional.affine_grid, size=(4, 6, 9, 10), align_corners=False), (x(4, 2, 3),)
    )
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield Part(f"pad, {mode}", partial(functional.pad, pad=(1, 2, 3, 1), mode=mode), (image,))
    yield Part("pixel_shuffle", partial(functional.pixel_shuffle, upscale_factor=2), (x(4, 8, 5, 6),))
    yield Part("unfold", partial(functional.unfold, kernel_size=3), (image,))
    yield Part("fold", partial(functional.fold, output_size=(9, 10), kernel_size=3), (x(4, 54, 56),))
    index = whole(40, 96, 20)
    yield Part("gather", lambda rows, at: rows.gather(0, at), (x(40, 20),), (index,))
    yield Part(
        "scatter_add", lambda rows, more, at: rows.scatter_add(0, at, more), (x(40, 20), x(96, 20)), (index,)
    )
    yield Part(
        "index_add",
        lambda rows, more, at: rows.index_add(0, at, more),
        (x(40, 20), x(96, 20)),
        (whole(40, 96),),
    )
    yield Part("index", lambda rows, at: rows[at], (x(40, 20),), (whole(40, 96),))
    yield Part(
        "where",
        lambda rows, more, at: torch.where(at > 0, rows, more),
        (x(40, 20), x(40, 20)),
        (whole(2, 40, 20),),
    )
    yield Part("sort", lambda rows: rows.sort(-1).values, (x(40, 96),))
    yield Part("topk", lambda rows: rows.topk(7, -1).values, (x(40, 96),))
    for name in ("cumsum", "logsumexp", "logcumsumexp", "prod", "cumprod"):
        yield Part(name, partial(getattr(torch, name), dim=-1), (x(40, 12),))
    for name in ("sum", "mean", "var", "std", "norm", "amax", "exp", "sin", "erf", "square"):
        yield Part(name, getattr(torch, name), (x(40, 96),))
    for name in ("log", "sqrt", "rsqrt", "reciprocal"):
        yield Part(name, getattr(torch, name), (share(40, 96),))


def _layers() -> Iterator[Part]:
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        torch.manual_seed(1)
        yield Part(kind.__name__, kind(24, 32, num_layers=2, bidirectional=True), (x(12, 4, 24),))


def results(part: Part, seed: int, place: str, dtype: torch.dtype, half: bool) -> dict[str, torch.Tensor]:
    """The outputs of *part* and all gradients, by name, on the CPU.

    The inputs are the same FP32 numbers for the same *seed*. The gradient of each output is drawn, too,
    because with a gradient of ones many errors cancel.
    """
    torch.manual_seed(seed)
    # Drawn before the type is known, so that all types get the same numbers.
    drawn = [make() for make in (*part.inputs, *part.fixed)]
    there = [item.to(place, dtype if item.is_floating_point() else item.dtype) for item in drawn]
    trained = [item.requires_grad_() for item in there[: len(part.inputs)]]
    compute = part.compute
    if isinstance(compute, nn.Module):
        compute = copy.deepcopy(compute).to(place, dtype)
        trained += compute.parameters()
    with torch.autocast("cuda", dtype=torch.float16) if half else contextlib.nullcontext():
        found = compute(*there)
    outputs = [item for item in tree_flatten(found)[0] if isinstance(item, torch.Tensor)]
    named = {f"output {number}": item.detach() for number, item in enumerate(outputs)}
    ends = [item for item in outputs if item.requires_grad]
    if ends:
        directions = [torch.randn(item.shape).to(item) for item in ends]
        gradients = torch.autograd.grad(ends, trained, directions, allow_unused=True)
        pairs = enumerate(zip(gradients, trained, strict=True))
        named |= {
            f"gradient {at}": torch.zeros_like(to) if item is None else item for at, (item, to) in pairs
        }
    return {name: item.cpu() for name, item in named.items()}
