"""Calls of torchvision's and torchaudio's CUDA operators, with their results on the CPU. Imports torch.

Each call yields names with the result on the GPU and the expected one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

Results = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
_Calls = dict[str, Callable[[], Results]]


def operators(wheels: Mapping[str, str]) -> _Calls:
    """The operators of the distributions in *wheels*, by name."""
    calls: _Calls = {}
    if "torchvision" in wheels:
        calls |= {"nms": _nms, "batched_nms": _batched_nms, "deform_conv2d": _deform}
        calls |= {name: _pooled(name) for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")}
    if "torchaudio" in wheels:
        calls["rnnt_loss"] = _transducer
        if tuple(map(int, wheels["torchaudio"].split(".")[:2])) >= (2, 1):
            calls |= {"forced_align": _aligned, "cuda_ctc_decoder": _decoded}
    return calls


def _boxes(count: int, size: float) -> torch.Tensor:
    """Boxes (left, top, right, bottom) within a square, many of which overlap."""
    corners = torch.rand(count, 2) * size * 0.6
    return torch.cat([corners, corners + size * (0.1 + 0.3 * torch.rand(count, 2))], 1)


def _nms() -> Results:
    from torchvision.ops import nms

    torch.manual_seed(0)
    boxes, scores = _boxes(500, 100.0), torch.rand(500)
    for threshold in (0.3, 0.7):
        found = nms(boxes.cuda(), scores.cuda(), threshold)
        yield f"threshold {threshold}", found, nms(boxes, scores, threshold)


def _batched_nms() -> Results:
    from torchvision.ops import batched_nms

    torch.manual_seed(0)
    inputs = (_boxes(500, 100.0), torch.rand(500), torch.randint(0, 5, (500,)))
    yield "classes", batched_nms(*(one.cuda() for one in inputs), 0.5), batched_nms(*inputs, 0.5)


def _pooled(name: str) -> Callable[[], Results]:
    """Values and gradients of an operator that pools the regions of an image."""

    def call() -> Results:
        from torchvision import ops

        torch.manual_seed(0)
        image, boxes = torch.randn(2, 18, 32, 32), _boxes(20, 32.0)
        regions = torch.cat([torch.randint(0, 2, (20, 1)).float(), boxes], 1)
        # With a position for each of 3 × 3 cells, the channels are divided by nine.
        shape = (20, 2 if name.startswith("ps_") else 18, 3, 3)
        options = {"sampling_ratio": 2} if name.endswith("align") else {}
        # Pooling rounds the borders of cells, in FP64 to other pixels than in FP32.
        exact = torch.float32 if name.endswith("pool") else torch.float64
        yield from _trained(
            lambda picture, where: getattr(ops, name)(picture, where, 3, **options),
            shape,
            (image, regions),
            exact,
        )

    return call


def _deform() -> Results:
    from torchvision.ops import deform_conv2d

    torch.manual_seed(0)
    inputs = (torch.randn(2, 6, 16, 16), torch.randn(2, 18, 14, 14), torch.randn(8, 6, 3, 3), torch.randn(8))
    mask = torch.rand(2, 9, 14, 14)
    yield from _trained(lambda *all_: deform_conv2d(*all_[:4], mask=all_[4]), (2, 8, 14, 14), (*inputs, mask))


def _trained(
    call: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    inputs: tuple[torch.Tensor, ...],
    exact_type: torch.dtype = torch.float64,
) -> Results:
    """The output of *call*, of *shape*, and the gradients of all inputs that have one."""
    direction = torch.randn(shape)
    sides = []
    for place, dtype in (("cuda", torch.float32), ("cpu", exact_type)):
        there = [one.to(place, dtype, copy=True).requires_grad_() for one in inputs]
        output = call(*there)
        output.backward(direction.to(place, dtype))
        sides.append([output.detach(), *(one.grad for one in there if one.grad is not None)])
    assert len(sides[0]) == len(sides[1]), "the GPU and the CPU have gradients of different inputs"
    for number, (found, exact) in enumerate(zip(*sides, strict=True)):
        yield f"gradient {number}" if number else "output", found, exact


def _transducer() -> Results:
    from torchaudio.functional import rnnt_loss

    torch.manual_seed(0)
    scores = torch.randn(2, 12, 6, 20)
    lengths = [torch.tensor(row, dtype=torch.int32) for row in ((12, 9), (5, 4))]
    targets = torch.randint(1, 20, (2, 5), dtype=torch.int32)
    sides = []
    for place in ("cuda", "cpu"):  # the operator has no FP64
        there = scores.to(place).requires_grad_()
        loss = rnnt_loss(there, targets.to(place), *(one.to(place) for one in lengths), blank=0)
        loss.backward()
        sides.append((loss.detach(), there.grad))
    yield "loss", sides[0][0], sides[1][0]
    yield "gradient", sides[0][1], sides[1][1]


def _aligned() -> Results:
    from torchaudio.functional import forced_align

    torch.manual_seed(0)
    emission, targets = (
        torch.randn(1, 60, 20).log_softmax(2),
        torch.randint(1, 20, (1, 15), dtype=torch.int32),
    )
    path, scores = forced_align(emission.cuda(), targets.cuda())
    expected, exact = forced_align(emission, targets)
    yield "path", path, expected
    yield "scores", scores, exact


def _decoded() -> Results:
    """Where one token is far more likely than all others, the best words are those without repetitions and
    blanks."""
    from torchaudio.models.decoder import cuda_ctc_decoder

    torch.manual_seed(0)
    tokens = torch.randint(0, 12, (40,))
    scores = torch.randn(1, 40, 12)
    scores[0, torch.arange(40), tokens] += 12
    decode = cuda_ctc_decoder(
        [str(number) for number in range(12)], nbest=1, beam_size=5, blank_skip_threshold=1.0
    )
    lengths = torch.tensor([40], dtype=torch.int32, device="cuda")
    found = decode(scores.log_softmax(2).cuda(), lengths)[0][0].tokens
    expected = [token for token in torch.unique_consecutive(tokens).tolist() if token]
    yield "tokens", torch.tensor(list(found)), torch.tensor(expected)
