"""torchscript: a scripted module is compiled, keeps its branches, and computes the same as the module."""

import io

import pytest

RUNS = 4  # the first runs profile, the later runs use the optimized code

VALUES = {
    "torchscript": {
        "kind": {"type": "string"},
        "device": {"equals": "cuda"},
        # All in FP32; a fused kernel may round at other places than separate kernels.
        "high_errors": {"type": ["number"]},
        "high_error": {"at_most": 1e-5},
        "high_gradient_error": {"at_most": 1e-5},
        "high_loaded_error": {"at_most": 1e-5},
        "low_errors": {"type": ["number"]},
        "low_error": {"at_most": 1e-5},
        "low_gradient_error": {"at_most": 1e-5},
        "low_loaded_error": {"at_most": 1e-5},
    },
}


@pytest.mark.tier(1)
def test_torchscript(measure):
    """Output and gradient as in eager mode, on either side of a branch, and after saving and loading."""
    import torch

    from smoke_tests.closeness import relative_error
    from smoke_tests.training import device_of, gradient

    module = _module(torch)
    scripted = torch.jit.script(module)
    measure("kind", type(scripted).__name__)
    assert isinstance(scripted, torch.jit.ScriptModule), "torch.jit.script gave no ScriptModule"
    measure("device", device_of(scripted))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location="cuda")

    high = torch.rand(64, 64, device="cuda")
    for name, inputs in (("high", high), ("low", -high)):
        expected, slope = _ran(module, inputs, gradient)
        runs = [_ran(scripted, inputs, gradient) for _ in range(RUNS)]
        after, _ = _ran(loaded, inputs, gradient)
        errors = [relative_error(found, expected) for found, _ in runs]
        measure(f"{name}_errors", errors)
        measure(f"{name}_error", max(errors))
        slopes = [relative_error(found, slope) for _, found in runs]
        measure(f"{name}_gradient_error", max(slopes))
        measure(f"{name}_loaded_error", relative_error(after, expected))


def _module(torch):
    """Layers in a loop, and a branch that depends on the data, which torch.jit.trace would freeze."""

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(3)])

        def forward(self, x):
            positive = bool(x.mean() > 0)
            for layer in self.layers:
                x = torch.tanh(layer(x)) * torch.sigmoid(x)
            if positive:
                return x
            return 1.0 - 2.0 * x

    torch.manual_seed(0)
    return Gated().cuda()


def _ran(module, inputs, gradient):
    """The output of *module* for *inputs*, and the gradient of the output's sum."""
    module.zero_grad()
    found = module(inputs)
    found.sum().backward()
    return found.detach(), gradient(module)
