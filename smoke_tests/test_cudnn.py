"""cudnn: the loaded cuDNN is the one that torch was built for, and its convolution is correct."""

import pytest

from smoke_tests.closeness import relative_error

# FP32 sums of a thousand products err by some 1e-6, TF32's ten bits by 3e-4.
BOUND = 1e-5


@pytest.mark.tier(1)
def test_cudnn(claims, measure):
    """Check its version in two ways, then a convolution and both gradients, in FP32 without TF32."""
    import torch

    available = torch.backends.cudnn.is_available()
    measure("available", available, equals=True)
    assert available, "this torch has no cuDNN"

    # Not torch.backends.cudnn.version(): on a mismatch that raises, and the numbers would go unrecorded.
    library = torch._C._cudnn
    runtime, built = library.getRuntimeVersion(), library.getCompileVersion()
    major, minor, patch = runtime
    version = f"{major}.{minor}.{patch}"
    measure("version", version)
    # The same by one number, 8902 or 90501, of which another library may have taken the answer.
    number = major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
    measure("number", library.getVersionInt(), equals=number)
    measure("compiled_with", ".".join(map(str, built)))
    measure("major", major, equals=built[0])
    measure("minor", minor, at_least=built[1])
    if claims["cudnn"]:
        measure("locked", version, equals=".".join(claims["cudnn"].split(".")[:3]))
    if faults := measure.faults():
        pytest.fail("\n".join(faults), pytrace=False)  # a wrong cuDNN can end the process: record this first

    from smoke_tests.torch_api import tensor_float

    tensor_float(False)
    torch.manual_seed(0)
    image, filters = torch.randn(4, 32, 16, 16), torch.randn(64, 32, 3, 3)
    gradient = torch.randn(4, 64, 16, 16)
    measure("acceptable", torch.backends.cudnn.is_acceptable(image.cuda()), equals=True)
    measure("convolution_by", _backend(torch, image.cuda(), filters.cuda()), equals="Cudnn")
    wanted = _convolved(torch, image.double(), filters.double(), gradient.double())
    found = _convolved(torch, image.cuda(), filters.cuda(), gradient.cuda())
    for name in wanted:
        measure(name, relative_error(found[name].cpu(), wanted[name]), at_most=BOUND)


def _backend(torch, image, filters):
    """The implementation that conv2d uses for these inputs; those without cuDNN are correct too."""
    ones, zeros = [1, 1], [0, 0]
    return torch._C._select_conv_backend(image, filters, None, ones, ones, ones, False, zeros, 1).name


def _convolved(torch, image, filters, gradient):
    """Output and both gradients of a convolution."""
    image, filters = image.detach().requires_grad_(), filters.detach().requires_grad_()
    output = torch.nn.functional.conv2d(image, filters, padding=1)
    output.backward(gradient)
    return {"output_error": output.detach(), "image_error": image.grad, "filters_error": filters.grad}
