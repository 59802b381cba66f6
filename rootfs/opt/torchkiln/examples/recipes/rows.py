"""The runs that measure.py makes: each switch alone, and one after the other switched on together."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One run: what it is called in the table, and its switches."""

    name: str
    group: str  # the table that it belongs to
    words: str  # the switches, after those of `BASE`
    gpus: int = 1


# The same samples, weights and number of steps in each row of a group, so that losses can be compared.
# What decides speed is switched off in the first row: no TF32, no fused kernel.
BASE = {
    "alone": "--model transformer --batch 32",
    "together": "--model transformer --batch 32",
    "images": "--model resnet --batch 256 --workers 6 --prefetch 1",
    "gpus": "--model transformer --batch 32 --precision bf16 --fused",
}
TINY = {
    "alone": "--model transformer --batch 8",
    "together": "--model transformer --batch 8",
    "images": "--model resnet --batch 8 --workers 1",
    "gpus": "--model transformer --batch 8 --precision bf16",
}
FIRST = {
    "alone": "FP32",
    "together": "FP32",
    "images": "FP32",
    "gpus": "1 GPU",
}  # what the others are compared with

# Each row of the picture has the switches of the one above and one more; the batch of a step stays 32.
WATERFALL = ("FP32", "BF16", "+ checkpointing", "+ accumulation", "+ SGD", "+ offload")

ROWS = (
    Row("FP32", "alone", "--precision fp32"),
    Row("BF16", "alone", "--precision bf16"),
    Row("+ checkpointing", "together", "--precision bf16 --checkpointing"),
    Row("+ accumulation", "together", "--precision bf16 --checkpointing --accumulate {parts}"),
    Row("+ SGD", "together", "--precision bf16 --checkpointing --accumulate {parts} --optimizer sgd"),
    Row(
        "+ offload",
        "together",
        "--precision bf16 --checkpointing --accumulate {parts} --optimizer sgd --offload",
    ),
    Row("TF32", "alone", "--precision tf32"),
    Row("FP16 with GradScaler", "alone", "--precision fp16"),
    Row("FP8 in the layers", "alone", "--precision fp8"),
    Row("accumulation, 8 parts", "alone", "--accumulate 8"),
    Row("checkpointing", "alone", "--checkpointing"),
    Row("clipping", "alone", "--clip 1.0"),
    Row("fused AdamW", "alone", "--fused"),
    Row("8-bit AdamW", "alone", "--optimizer adamw8bit"),
    Row("Adafactor", "alone", "--optimizer adafactor"),
    Row("SGD", "alone", "--optimizer sgd"),
    Row("FP32", "images", "--precision fp32"),
    Row("TF32", "images", "--precision tf32"),
    Row("BF16", "images", "--precision bf16"),
    Row("FP16 with GradScaler", "images", "--precision fp16"),
    Row("in place", "images", "--in-place"),
    Row("checkpointing", "images", "--checkpointing"),
    Row("BF16, channels last", "images", "--precision bf16 --channels-last"),
    Row("the same, no worker, not pinned", "images", "--precision bf16 --channels-last --workers 0 --no-pin"),
    Row("offload", "alone", "--offload"),
    Row("torch.compile", "alone", "--compile"),
    Row("BF16, fused, torch.compile", "together", "--precision bf16 --fused --compile"),
)

# For --gpus N: a batch of 32 on each GPU.
SCALING = (
    Row("1 GPU", "gpus", "--parallel none"),
    Row("DDP", "gpus", "--parallel ddp", 2),
    Row("DDP, 8 parts, no_sync", "gpus", "--parallel ddp --accumulate 8", 2),
    Row("DDP, 8 parts, always reduced", "gpus", "--parallel ddp --accumulate 8 --always-sync", 2),
    Row("FSDP1", "gpus", "--parallel fsdp1", 2),
    Row("FSDP2", "gpus", "--parallel fsdp2", 2),
)


def words_of(row: Row, *, tiny: bool, steps: int, device: str) -> list[str]:
    """The options of `recipes.train` for *row*."""
    size, base, parts = ("tiny", TINY, 8) if tiny else ("base", BASE, 32)
    common = f"--size {size} --steps {steps} --device {device} --watch-every {steps}"
    return f"{common} {base[row.group]} {row.words.format(parts=parts)}".split()
