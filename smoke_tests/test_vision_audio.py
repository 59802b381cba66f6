"""vision-audio: the CUDA operators of torchvision and torchaudio agree with those on the CPU."""

import pytest

from smoke_tests.closeness import relative_error

VALUES = {
    "vision-audio": {
        "device": {"equals": "cuda"},
        # Operators that torchvision's and torchaudio's CUDA libraries implement, by the lock.
        "operators": {"expected": "vision_audio_operators"},
        "errors": {"type": {"*": "number"}},
        # Whole numbers are equal; others agree with FP64 except for the rounding of FP32.
        "wrong": {"equals": {}},
    },
}
BOUND = 2e-5


@pytest.mark.tier(1)
def test_vision_audio(wheels, measure):
    """nms, the pooling of regions and deformable convolutions, with gradients; alignment, transducer loss and
    CTC decoding."""
    import torch

    from smoke_tests.curves import figures
    from smoke_tests.vision_audio import operators

    measure("device", torch.empty(1, device="cuda").device.type)
    errors, wrong, found = {}, {}, []
    for name, call in operators(wheels).items():
        found.append(name)
        try:
            for part, result, exact in call():
                errors[f"{name}, {part}"] = _error(result, exact)
        except Exception as error:  # such as an operator without a CUDA kernel; the others are still called
            wrong[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
    measure("operators", found)
    measure("errors", {name: figures(error) for name, error in errors.items()})
    measure("wrong", wrong | {name: error for name, error in errors.items() if not error <= BOUND})


def _error(found, exact):
    """The relative error; of whole numbers, the number of elements that differ."""
    if found.is_floating_point():
        return relative_error(found.cpu(), exact)
    if found.shape != exact.shape:
        return float("nan")
    return float((found.cpu() != exact).sum())
