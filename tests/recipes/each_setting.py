#!/usr/bin/env python3
"""Trains the recipes' small models on the CPU with each setting, in an image, and prints the failures.

    python build.py run TAG --bind tests/recipes:/in -- python /in/each_setting.py

Exits with 1 if a setting neither trains nor is refused with a reason.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile

sys.path.insert(0, "/opt/torchkiln/examples")

import torch

from recipes import train

COMMON = "--size tiny --steps 3 --device cpu --watch-every 3 --batch 8"
TRANSFORMER = (
    *("--precision fp32", "--precision bf16", "--precision tf32", "--precision fp16", "--precision fp8"),
    *("--accumulate 4", "--checkpointing", "--clip 1.0", "--offload", "--fused", "--compile"),
    *("--optimizer sgd", "--optimizer adafactor", "--optimizer adamw8bit"),
    "--precision bf16 --checkpointing --accumulate 4 --clip 1.0 --optimizer sgd --offload",
    *("--save {folder}/a", "--resume {folder}/a --steps 5", "--profile {folder}/p"),
)
RESNET = (
    *("--precision fp32", "--precision bf16 --channels-last", "--in-place", "--checkpointing"),
    *("--workers 0 --no-pin", "--precision bf16 --accumulate 2 --clip 1.0"),
)
MODELS = {"transformer": TRANSFORMER, "resnet": RESNET}
UNAVAILABLE = 3  # the exit code of train.py for a setting that this torch or machine does not support


def outcome(words: str) -> tuple[int | str, str]:
    """The exit code of train.py with *words* (or the exception), and the last line of its stderr."""
    sys.argv = ["train", *words.split()]
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            code: int | str = train.main()
        except Exception as error:
            code = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return code, (errors.getvalue().strip().splitlines() or [""])[-1]


def main() -> int:
    """Print a line for each setting that did not train, and the number of settings that did."""
    trained = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = [f"--model {model} {words}" for model, some in MODELS.items() for words in some]
        for words in cases:
            code, reason = outcome(f"{COMMON} {words.format(folder=folder)}")
            trained += code == 0
            failed += code not in (0, UNAVAILABLE)
            if code:
                sys.stdout.write(f"{words}: {reason if code == UNAVAILABLE else code}\n")
    sys.stdout.write(
        f"torch {torch.__version__}: {trained} of {len(cases)} settings trained, {failed} failed\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
