"""Two models: a transformer that predicts the next token, and a residual network that classifies images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from recipes import fp8
from recipes.memory import block_runner
from recipes.settings import Settings

SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "tiny": {"layers": 2, "width": 64, "heads": 4, "length": 32, "vocabulary": 256},
        "base": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "vocabulary": 16384},
    },
    "resnet": {
        "tiny": {"blocks": (1, 1), "width": 16, "pixels": 32, "classes": 10},
        "base": {"blocks": (3, 4, 6, 3), "width": 64, "pixels": 224, "classes": 1000},  # ResNet-50
    },
}


def build(settings: Settings, device: torch.device) -> nn.Module:
    """The model with the same weights each time, made where it is used."""
    torch.manual_seed(settings.seed)
    with device:
        size = SIZES[settings.model][settings.size]
        model = Transformer(settings, **size) if settings.model == "transformer" else ResNet(settings, **size)
    if settings.precision == "fp8":
        fp8.convert(model.blocks)  # not the head: its logits need more than three bits
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


class Layer(nn.Module):
    """A layer of the transformer: attention and two linear layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: batch, length, width."""
        x = x + self.attention(self.before_attention(x))
        # Not `x += ...`: the norm keeps x for the backward pass, and autograd would refuse it.
        return x + self.narrow(functional.gelu(self.wide(self.before_wide(x))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """A fused kernel: the matrix of length x length weights is never stored."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """Tokens to logits of the next token."""

    def __init__(
        self, settings: Settings, *, layers: int, width: int, heads: int, length: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.run = block_runner(settings)
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: batch, length; a row of the result for each token, as cross_entropy wants it."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(self.norm(x)).flatten(0, 1)


class Bottleneck(nn.Module):
    """Three convolutions, each with BatchNorm, added to their input.

    Under autocast the convolutions run in half precision; BatchNorm's weights and statistics stay FP32.
    """

    def __init__(self, inside: int, width: int, stride: int, in_place: bool) -> None:
        super().__init__()
        outside = 4 * width
        self.relu = nn.ReLU(inplace=in_place)
        self.narrow, self.norm1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.middle = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.wide, self.norm3 = nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.short = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """ReLU may overwrite its input: BatchNorm keeps its own input, not its result."""
        found = self.relu(self.norm1(self.narrow(x)))
        found = self.relu(self.norm2(self.middle(found)))
        return self.relu(self.norm3(self.wide(found)) + self.short(x))


class ResNet(nn.Module):
    """Images of bytes to logits of classes."""

    def __init__(
        self, settings: Settings, *, blocks: tuple[int, ...], width: int, pixels: int, classes: int
    ) -> None:
        super().__init__()
        self.run = block_runner(settings)
        self.format = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=settings.in_place)
        self.pool = nn.MaxPool2d(3, 2, 1)
        inside, made = width, []
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage and not index else 1
                made.append(Bottleneck(inside, width << stage, stride, settings.in_place))
                inside = 4 * (width << stage)
        self.blocks = nn.ModuleList(made)
        self.head = nn.Linear(inside, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: batch, 3, height, width of bytes: a quarter of what floats would copy to the GPU."""
        x = (images.float() / 127.5 - 1).contiguous(memory_format=self.format)
        x = self.pool(self.relu(self.norm(self.stem(x))))
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean((2, 3)))
