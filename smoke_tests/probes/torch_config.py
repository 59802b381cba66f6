"""How this torch was built, in its own words."""

import json

import torch

print(json.dumps(torch.__config__.show()))
