"""Run a small BERT with random weights. Needs no download and no GPU."""

import torch
from transformers import BertConfig, BertModel

config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
with torch.no_grad():
    found = BertModel(config)(torch.arange(10).reshape(2, 5)).last_hidden_state
assert found.shape == (2, 5, 32), found.shape
assert found.isfinite().all()
print("passed")
