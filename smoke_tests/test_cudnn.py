"""cudnn: the cuDNN that torch was built for is in use, with all of its libraries, and is correct."""

import copy
import os

import pytest

from smoke_tests.closeness import relative_error
from smoke_tests.cudnn_libraries import inconsistent, mapped, unused
from smoke_tests.probe import probe

VALUES = {
    "cudnn": {
        "available": {"equals": True},
        "libraries": {"type": ["string"]},
        "loaded_by_import": {"type": ["string"]},
        "libraries_not_loadable": {"equals": []},
        "version": {"type": "string"},
        "number_difference": {"equals": 0},  # not 0 if different libraries answered the two calls
        "compiled_with": {"type": "string"},
        "major_difference": {"equals": 0},
        "minor_difference": {"at_least": 0},
        "locked": {"expected": "cudnn"},
        "acceptable": {"equals": True},
        "convolution_by": {"equals": "Cudnn"},
        # Sums of a thousand products have an error of about 1e-6 in FP32, and of 3e-4 with TF32's ten bits.
        "output_error": {"at_most": 1e-5},
        "image_error": {"at_most": 1e-5},
        "filters_error": {"at_most": 1e-5},
        "norm_output_error": {"at_most": 1e-5},
        "norm_image_error": {"at_most": 1e-5},
        "norm_weight_error": {"at_most": 1e-5},
        "norm_bias_error": {"at_most": 1e-5},
        # A recurrent layer adds the errors of cuDNN's tanh and sigmoid at each step. TF32's error is 3e-4.
        "recurrent_output_error": {"at_most": 5e-5},
        "recurrent_input_error": {"at_most": 5e-5},
        "recurrent_weight_error": {"at_most": 5e-5},
        "recurrent_by": {"equals": "CudnnRnnBackward0"},
        "product_error": {"at_most": 1e-5},
        "output_error_if_tf32_is_allowed": {"type": "number"},
        "version_checks_failed": {"equals": []},
        "libraries_not_used": {"equals": []},
        "libraries_from_elsewhere": {"equals": []},
    },
}


@pytest.mark.tier(1)
def test_cudnn(claims, measure):
    """Versions and libraries are right; a convolution, a batch norm and an LSTM are correct in strict FP32.

    TF32 must not be in use. For a convolution in FP32, torch uses only cuDNN engines without tensor cores, so
    NVIDIA_TF32_OVERRIDE=1 cannot change its result. It can change products by cuBLAS, for which torch has no
    such filter, so a product is measured, too.
    """
    import torch

    from smoke_tests.finetune import product_error
    from smoke_tests.torch_api import tensor_float

    available = torch.backends.cudnn.is_available()
    measure("available", available)
    assert available, "this torch has no cuDNN"

    results = probe("cudnn")
    measure("libraries", [os.path.basename(path) for path in results["libraries"]])
    measure("loaded_by_import", [os.path.basename(path) for path in results["loaded"]])
    measure("libraries_not_loadable", results["faults"])
    _stop_if_wrong(measure)
    _versions(torch, claims, measure)
    _stop_if_wrong(measure)

    tensor_float(False)
    torch.manual_seed(0)
    image, filters = torch.randn(4, 64, 16, 16), torch.randn(128, 64, 3, 3)
    gradient = torch.randn(4, 128, 16, 16)
    measure("acceptable", torch.backends.cudnn.is_acceptable(image.cuda()))
    measure("convolution_by", _backend(torch, image.cuda(), filters.cuda()))
    _compare(measure, _convolved, torch, image, filters, gradient)
    _compare(measure, _normalised, torch, image, torch.randn(64), torch.randn(64), torch.randn_like(image))
    layer, words = torch.nn.LSTM(64, 64), torch.randn(8, 32, 64)
    found = _compare(measure, _recurrent, torch, words, torch.randn(8, 32, 64), layer)
    measure("recurrent_by", found["by"])
    measure("product_error", product_error("fp32"))
    # TF32's error at these shapes, for comparison; it has no bound, because GPUs below 8.0 have no TF32.
    tensor_float(True)
    rounded = _convolved(torch, image.cuda(), filters.cuda(), gradient.cuda())["output_error"]
    exact = _convolved(torch, image.double(), filters.double(), gradient.double())["output_error"]
    measure("output_error_if_tf32_is_allowed", relative_error(rounded.cpu(), exact))

    measure("version_checks_failed", inconsistent(mapped()))
    loaded = mapped()
    measure("libraries_not_used", unused(results["libraries"], loaded))
    # Each library must be one of the listed files, so that a mixture of two installations is detected.
    measure("libraries_from_elsewhere", sorted(set(loaded) - set(results["libraries"])))


def _stop_if_wrong(measure):
    """A wrong cuDNN can kill the process: report what is known before it is used."""
    if faults := measure.faults(complete=False):
        pytest.fail("\n".join(faults), pytrace=False)


def _versions(torch, claims, measure):
    # Not torch.backends.cudnn.version(), which raises on a mismatch, so that no number would be recorded.
    library = torch._C._cudnn
    runtime, built = library.getRuntimeVersion(), library.getCompileVersion()
    major, minor, patch = runtime
    version = f"{major}.{minor}.{patch}"
    measure("version", version)
    # The version as one number (8902 or 90501), in case another library answered the first call.
    number = major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
    measure("number_difference", library.getVersionInt() - number)
    measure("compiled_with", ".".join(map(str, built)))
    measure("major_difference", major - built[0])
    measure("minor_difference", minor - built[1])
    measure("locked", version if claims["cudnn"] else None)


def _backend(torch, image, filters):
    """The implementation that conv2d uses for these inputs; implementations without cuDNN are correct,
    too."""
    ones, zeros = [1, 1], [0, 0]
    return torch._C._select_conv_backend(image, filters, None, ones, ones, ones, False, zeros, 1).name


def _compare(measure, compute, torch, *inputs):
    """Measure the errors of *compute* on the GPU against the CPU in FP64, and return the GPU's results."""
    exact = compute(torch, *(copy.deepcopy(item).double() for item in inputs))
    found = compute(torch, *(copy.deepcopy(item).cuda() for item in inputs))
    for name, value in exact.items():
        if name.endswith("_error"):
            measure(name, relative_error(found[name].cpu(), value))
    return found


def _convolved(torch, image, filters, gradient):
    """Output and both gradients of a convolution."""
    image, filters = image.requires_grad_(), filters.requires_grad_()
    output = torch.nn.functional.conv2d(image, filters, padding=1)
    output.backward(gradient)
    return {"output_error": output.detach(), "image_error": image.grad, "filters_error": filters.grad}


def _normalised(torch, image, weight, bias, gradient):
    """Output and gradients of a batch norm in training; on the GPU by cuDNN, which torch may not choose."""
    inputs = [tensor.requires_grad_() for tensor in (image, weight, bias)]
    mean, variance = torch.zeros_like(bias), torch.ones_like(bias)
    by_cudnn = (mean, variance, True, 0.1, 1e-5)
    if image.is_cuda:
        output = torch.cudnn_batch_norm(*inputs, *by_cudnn)[0]
    else:
        output = torch.nn.functional.batch_norm(image, mean, variance, weight, bias, True)
    output.backward(gradient)
    names = ("norm_output_error", "norm_image_error", "norm_weight_error", "norm_bias_error")
    values = (output.detach(), *(tensor.grad for tensor in inputs))
    return dict(zip(names, values, strict=True))


def _recurrent(torch, words, gradient, layer):
    """Output and gradients of an LSTM, and the function that computed the output."""
    words = words.requires_grad_()
    output = layer(words)[0]
    output.backward(gradient)
    return {
        "recurrent_output_error": output.detach(),
        "recurrent_input_error": words.grad,
        "recurrent_weight_error": layer.weight_hh_l0.grad,
        "by": output.grad_fn.name(),
    }
