"""An encoder of BERT-base's shape with a classifier, and sentences to learn from. Imports torch.

It uses torch.nn without dropout, so that results at different precisions can be compared.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

CLASSES = 8
_WORDS = 16  # of each class
_SHARE = 0.25  # fraction of a sentence's words that belong to its class


class Shape(NamedTuple):
    """The dimensions of an encoder."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int


BERT_BASE = Shape(layers=12, width=768, heads=12, inner=3072, vocabulary=30522, positions=512)
PARAMETERS = 108_891_648  # number of parameters of the published BERT-base, without the pooler


class Layer(nn.Module):
    """A layer of BERT: self-attention and a feed-forward part, each with a residual connection and a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attended = nn.Linear(shape.width, 3 * shape.width)  # queries, keys and values in one product
        self.joined = nn.Linear(shape.width, shape.width)
        self.first_norm = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)
        self.second_norm = nn.LayerNorm(shape.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Input and output: rows, positions, width."""
        rows, positions, width = hidden.shape
        parts = self.attended(hidden).view(rows, positions, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(queries, keys, values)
        found = found.transpose(1, 2).reshape(rows, positions, width)
        hidden = self.first_norm(hidden + self.joined(found))
        return self.second_norm(hidden + self.down(functional.gelu(self.up(hidden))))


class Encoder(nn.Module):
    """Maps words to hidden states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.segments = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Rows, positions: the hidden state of each word; all words are in the first segment."""
        places = self.positions.weight[: words.shape[1]]
        hidden = self.norm(self.words(words) + places + self.segments.weight[0])
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Classifier(nn.Module):
    """The class of a sentence from the mean of its hidden states."""

    def __init__(self, shape: Shape = BERT_BASE, seed: int = 0) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.head = nn.Linear(shape.width, CLASSES)
        generator = torch.Generator().manual_seed(seed)
        for part in self.modules():  # initialized as BERT is
            if isinstance(part, (nn.Linear, nn.Embedding)):
                part.weight.data.normal_(std=0.02, generator=generator)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
        for layer in self.encoder.layers:
            # At first a layer returns its input. Twelve random layers would learn nothing for about sixty
            # steps, and rounding would decide when they start to learn.
            nn.init.zeros_(layer.joined.weight)
            nn.init.zeros_(layer.down.weight)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Rows, positions: rows, classes (logits)."""
        return self.head(self.encoder(words).mean(1))


def sentences(
    count: int, length: int, *, seed: int, vocabulary: int = BERT_BASE.vocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences of random words, a quarter of them from a small vocabulary of their class; and the classes.

    The classes alternate. A random batch would have more of one class, and after AdamW's first step, which
    moves each weight by the full rate, a network with random weights would always predict that class.
    """
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % CLASSES
    shape = (count, length)
    any_word = torch.randint(CLASSES * _WORDS, vocabulary, shape, generator=generator)
    own_word = torch.randint(_WORDS, shape, generator=generator) + _WORDS * classes[:, None]
    return torch.where(torch.rand(shape, generator=generator) < _SHARE, own_word, any_word), classes
