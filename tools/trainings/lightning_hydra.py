"""ashleve/lightning-hydra-template: its dense net, made wider, by Lightning's Trainer and Hydra."""

import logging
import sys
import warnings

import lightning
import torch
from hydra.utils import instantiate
from measured import DEVICE, OPTIONS, Clock
from torchmetrics.classification import MulticlassAccuracy

BATCH, WIDTH = (64, 128) if OPTIONS.small else (4096, 8192)
KINDS = 10
TRAINER = {
    "_target_": "lightning.Trainer",
    "accelerator": "auto",
    "devices": 1,
    "max_steps": OPTIONS.steps,
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
}
NAMES = {"FP32": "32-true", "BF16": "bf16-mixed", "FP16": "16-mixed"}  # Lightning needs a GPU for FP16


class Digits(lightning.LightningModule):
    """A net of four dense layers with batch norm, for pictures of 28 x 28 points."""

    def __init__(self):
        super().__init__()
        layers = []
        for size in (784, WIDTH, WIDTH):
            layers += [torch.nn.Linear(size, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, KINDS))
        self.seen = MulticlassAccuracy(KINDS)
        self.clock = Clock()

    def training_step(self, batch):
        """One step; Lightning does the rest."""
        shown, kinds = batch
        given = self.net(shown)
        self.seen.update(given, kinds)
        return torch.nn.functional.cross_entropy(given, kinds)

    def on_train_batch_end(self, outputs, *_):
        """Count the step."""
        self.clock.step(outputs["loss"])

    def configure_optimizers(self):
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def digits(count):
    """*count* batches of pictures: ten patterns under noise."""
    torch.manual_seed(1)
    patterns, found = torch.randn(KINDS, 784) / 4, []
    for _ in range(count):
        kinds = torch.randint(KINDS, (BATCH,))
        found.append((patterns[kinds] + torch.randn(BATCH, 784), kinds))
    return torch.utils.data.DataLoader(found, batch_size=None, pin_memory=DEVICE == "cuda")


warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
loader, fell = digits(20), []
for precision in OPTIONS.precisions:
    torch.manual_seed(0)
    model = Digits()
    instantiate(TRAINER, precision=NAMES[precision]).fit(model, loader)
    fell.append(model.clock.report("lightning-hydra-template", precision, BATCH))
sys.exit(not all(fell))
