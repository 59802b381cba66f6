"""The switches of a training run: one frozen data class, and the command line that fills it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


class Unavailable(Exception):
    """A switch cannot be used here; the message says what this torch, this GPU or this model lacks."""


def switch(default: Any, text: str, *choices: str) -> Any:
    """A field of `Settings`, with the help of its option."""
    return field(default=default, metadata={"help": text, "choices": choices or None})


@dataclass(frozen=True)
class Settings:
    """All that decides a run. Two runs with equal settings on one machine train the same model."""

    model: str = switch("transformer", "what is trained", "transformer", "resnet")
    size: str = switch("tiny", "tiny runs anywhere; base fills 30 GiB of a GPU in FP32", "tiny", "base")
    data: str = switch(
        "", "a file (transformer) or a folder CLASS/IMAGE (resnet); without it data is generated"
    )
    device: str = switch("auto", "auto: a GPU if torch finds one", "auto", "cuda", "cpu")
    seed: int = switch(0, "of weights and data")
    steps: int = switch(20, "optimizer steps")
    batch: int = switch(8, "samples of a step, in each process")

    precision: str = switch("fp32", "see precision.py", "fp32", "tf32", "fp16", "bf16", "fp8")
    init_scale: float = switch(65536.0, "first factor of the GradScaler, for fp16")
    accumulate: int = switch(1, "parts of a batch that go through the model one after the other")
    checkpointing: bool = switch(False, "compute a block's activations again in the backward pass")
    offload: bool = switch(False, "keep activations in the host's memory until the backward pass")
    in_place: bool = switch(False, "activation functions overwrite their input (resnet)")
    channels_last: bool = switch(False, "memory format of convolutions (resnet)")
    compile: bool = switch(False, "torch.compile")

    optimizer: str = switch("adamw", "see optimizers.py", "adamw", "adamw8bit", "adafactor", "sgd")
    fused: bool = switch(False, "one kernel for all weights (adamw, sgd)")
    rate: float = switch(0.0, "learning rate; 0: the optimizer's usual one")
    clip: float = switch(0.0, "largest norm of the gradient; 0: no clipping")

    parallel: str = switch("none", "start with torchrun; see parallel.py", "none", "ddp", "fsdp1", "fsdp2")
    always_sync: bool = switch(False, "reduce gradients after every part of a batch, not only after the last")
    sync_batchnorm: bool = switch(False, "BatchNorm over the samples of all processes (resnet with ddp)")

    workers: int = switch(0, "processes that prepare batches; 0: this one does")
    pin: bool = switch(True, "page-locked batches, which copy to the GPU while it computes")
    prefetch: int = switch(2, "batches that each worker prepares ahead")

    watch_every: int = switch(10, "steps between two lines of loss, scale, memory and speed")
    warm_up: int = switch(2, "first steps that do not count for samples/s")
    save: str = switch("", "write a checkpoint to this file after the last step")
    save_every: int = switch(0, "also write it every N steps")
    resume: str = switch("", "continue from this checkpoint; --steps counts from the beginning")
    profile: str = switch("", "write a trace and a memory snapshot into this folder")
    report: str = switch("", "write the results to this file, as JSON")

    def __post_init__(self) -> None:
        """Refuse what could not work on any machine."""
        if self.batch % self.accumulate or self.accumulate < 1:
            raise Unavailable(f"--accumulate {self.accumulate}: must divide the batch of {self.batch}")
        if self.steps < 1 or self.batch < 1:
            raise Unavailable("--steps and --batch: must be at least 1")
        if self.model == "transformer" and (self.in_place or self.channels_last):
            raise Unavailable(
                "--in-place and --channels-last: only for --model resnet; GELU needs its input later"
            )
        if self.model == "resnet" and self.parallel.startswith("fsdp"):
            raise Unavailable(
                "--parallel fsdp: only for --model transformer; its BatchNorm would need other dtypes"
            )
        if self.model == "resnet" and self.precision == "fp8":
            raise Unavailable(
                "--precision fp8: only for --model transformer; there are no fp8 convolutions in torch"
            )
        if self.sync_batchnorm and (self.model, self.parallel) != ("resnet", "ddp"):
            raise Unavailable("--sync-batchnorm: only for --model resnet with --parallel ddp")
        if self.compile and self.offload:
            raise Unavailable("--compile with --offload: compiled code decides itself what it keeps")


def parse(words: Sequence[str] | None = None, text: str | None = None) -> Settings:
    """The settings of a command line. Each field is an option: `in_place` is --in-place or --no-in-place."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in fields(Settings):
        name, given = f"--{each.name.replace('_', '-')}", dict(each.metadata)
        if isinstance(each.default, bool):
            parser.add_argument(
                name, action=argparse.BooleanOptionalAction, default=each.default, help=given["help"]
            )
        else:
            parser.add_argument(name, type=type(each.default), default=each.default, **given)
    return Settings(**vars(parser.parse_args(words)))
