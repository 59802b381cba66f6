"""Train in FP32, BF16 and FP16 (AMP), and print a line of JSON for each precision.

FP32 is strict: TF32 is off. FP16 has a GradScaler. The first quarter of the steps is not timed.
"""

import argparse
import json
import sys
import time

import torch

PRECISIONS = {"FP32": None, "BF16": torch.bfloat16, "FP16": torch.float16}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--small", action="store_true", help="a small model and batch, for a test without a GPU")
parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
OPTIONS = parser.parse_args()


class Clock:
    """The losses of the steps, and the time of those after the warm-up."""

    def __init__(self):
        self.losses, self.times = [], []

    def step(self, loss):
        """Count a step; its loss stays on the device until the end, so that no step waits for it."""
        self.losses.append(loss.detach())
        if len(self.losses) in (OPTIONS.steps // 4, OPTIONS.steps):
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    def report(self, project, precision, batch):
        """Print the line; return whether the loss fell by at least a tenth."""
        losses, timed = torch.stack(self.losses).tolist(), OPTIONS.steps - OPTIONS.steps // 4
        some = max(len(losses) // 10, 1)
        first, last = sum(losses[:some]) / some, sum(losses[-some:]) / some
        line = {"project": project, "torch": torch.__version__, "precision": precision, "batch": batch}
        line["gpu"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
        line |= {"steps": len(losses), "first_loss": round(first, 4), "last_loss": round(last, 4)}
        line["samples_per_s"] = round(batch * timed / (self.times[1] - self.times[0]), 1)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        return last < 0.9 * first


def train(project, model_of, loss_of, batches, rate=3e-4):
    """Train a new model in each precision, with *batches* in turn; exit with 1 if a loss did not fall."""
    fell = []
    for precision in OPTIONS.precisions:
        dtype = PRECISIONS[precision]
        torch.manual_seed(0)
        model = model_of().to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        scaler = torch.amp.GradScaler(DEVICE, enabled=dtype is torch.float16)
        clock = Clock()
        for number in range(OPTIONS.steps):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=dtype, enabled=dtype is not None):
                loss = loss_of(model, *batches[number % len(batches)])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            clock.step(loss)
        fell.append(clock.report(project, precision, len(batches[0][0])))
    sys.exit(not all(fell))
