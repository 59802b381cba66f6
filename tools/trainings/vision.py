"""huggingface/pytorch-image-models: a ResNet-50 of timm learns ten kinds of stripes under noise."""

import timm
import torch
from measured import DEVICE, OPTIONS, train

NAME, BATCH, SIDE = ("resnet18", 8, 64) if OPTIONS.small else ("resnet50", 128, 224)
KINDS = 10


def pictures(count):
    """*count* batches of pictures with stripes; the angle of the stripes is the kind."""
    torch.manual_seed(1)
    place = torch.linspace(0, 20, SIDE)
    found = []
    for _ in range(count):
        kinds = torch.randint(KINDS, (BATCH,))
        angles = kinds * torch.pi / KINDS
        across = angles.cos()[:, None, None] * place[None, None, :]
        down = angles.sin()[:, None, None] * place[None, :, None]
        striped = (across + down).sin()[:, None] + torch.randn(BATCH, 3, SIDE, SIDE)
        found.append((striped.to(DEVICE), kinds.to(DEVICE)))
    return found


def loss_of(model, shown, kinds):
    """The cross entropy of the pictures *shown*."""
    return torch.nn.functional.cross_entropy(model(shown), kinds)


train("timm", lambda: timm.create_model(NAME, num_classes=KINDS), loss_of, pictures(8), rate=1e-3)
