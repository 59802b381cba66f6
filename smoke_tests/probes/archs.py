"""List the GPU architectures of this torch from the flags that are compiled into it; needs no GPU."""

import json

import torch

flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
print(json.dumps(flags.split() if flags else []))
