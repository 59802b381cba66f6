"""Print torch's build configuration."""

import json

import torch

print(json.dumps(torch.__config__.show()))
