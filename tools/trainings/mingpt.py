"""karpathy/minGPT: its task of sums, as text, for a GPT of transformers, which that project requires."""

import random

import torch
from measured import DEVICE, OPTIONS, train
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH = (8, 32) if OPTIONS.small else (64, 256)
LAYERS, WIDTH = (2, 64) if OPTIONS.small else (12, 768)
CHARACTERS = "0123456789+=\n"


def text(count):
    """*count* characters of sums."""
    chosen, found = random.Random(0), ""
    while len(found) < count:
        one, other = chosen.randrange(100), chosen.randrange(100)
        found += f"{one}+{other}={one + other}\n"
    return found[:count]


def model_of():
    """A GPT of the shape of the smallest GPT-2, for characters."""
    size = {"n_layer": LAYERS, "n_head": WIDTH // 64, "n_embd": WIDTH, "n_positions": LENGTH}
    nothing = dict.fromkeys(("bos_token_id", "eos_token_id"))
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(CHARACTERS), **size, **nothing))


def loss_of(model, ids):
    """The cross entropy of each next character."""
    return model(ids, labels=ids).loss


ids = torch.tensor([CHARACTERS.index(each) for each in text(20 * BATCH * LENGTH)], device=DEVICE)
train("mingpt", model_of, loss_of, list(zip(ids.view(20, BATCH, LENGTH))))
