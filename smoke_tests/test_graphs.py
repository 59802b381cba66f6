"""graphs: a captured CUDA graph runs again on new inputs, with the results of eager calls."""

import copy
import itertools

import pytest

STEPS, ROWS, WIDTH = 4, 128, 64
POISON = 12345.0

VALUES = {
    "graphs": {
        "device": {"equals": "cuda"},
        "captured_kernels_ran": {"equals": False},  # a capture records kernels, and does not run them
        "unchanged_by_replay": {"equals": 0},  # outputs that still have the value written before the replay
        # The results of each replay against FP64 on the CPU; FP32's error is about 1e-6.
        "replay_errors": {"type": ["number"]},
        "largest_replay_error": {"at_most": 1e-5},
        "change_between_inputs": {"at_least": 0.5},
        # Training steps: the same kernels as eager; a replay that does nothing gives an error of 1.
        "step_error": {"at_most": 1e-5},
        "amp_dtype": {"equals": "torch.float16"},
        "amp_error": {"at_most": 5e-3},
        "amp_step_error": {"at_most": 5e-3},
        "replays_with_equal_dropout": {"equals": 0},
        "dropout_share": {"at_least": 0.25, "at_most": 0.35},
        "graphed_callable_error": {"at_most": 1e-5},
        "graphed_callable_gradient_error": {"at_most": 1e-5},
    },
}


@pytest.mark.tier(1)
def test_graphs(measure):
    """Replay a forward pass, whole training steps in FP32 and under AMP, dropout, and a graphed layer."""
    import torch

    from smoke_tests.torch_api import tensor_float

    tensor_float(False)
    _forward(torch, measure)
    _steps(torch, measure)
    _amp(torch, measure)
    _dropout(torch, measure)
    _graphed(torch, measure)


def _model(torch):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers)


def _batches(torch):
    torch.manual_seed(1)
    return list(torch.randn(STEPS, ROWS, WIDTH))


def _captured(torch, call):
    """*call* captured as a graph, and its result; before the capture it runs in a stream of its own, so that
    libraries allocate their memory."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


def _forward(torch, measure):
    from smoke_tests.closeness import relative_error

    model, batches = _model(torch), _batches(torch)
    there, inputs, count = copy.deepcopy(model).cuda(), torch.zeros(ROWS, WIDTH, device="cuda"), 3
    outputs, calls = torch.empty(ROWS, WIDTH, device="cuda"), torch.zeros(1, device="cuda")
    measure("device", outputs.device.type)

    def call():
        with torch.no_grad():
            outputs.copy_(there(inputs))
            calls.add_(1)

    graph, _ = _captured(torch, call)
    measure("captured_kernels_ran", calls.item() != count)
    errors, left, found = [], 0, []
    for batch in batches:
        inputs.copy_(batch)
        outputs.fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        left += int((outputs == POISON).sum())
        found.append(outputs.cpu())
        errors.append(relative_error(found[-1], copy.deepcopy(model).double()(batch.double()).detach()))
    measure("unchanged_by_replay", left)
    measure("replay_errors", errors)
    measure("largest_replay_error", max(errors, key=lambda error: (error != error, error)))
    measure("change_between_inputs", relative_error(found[0], found[1]))


def _trained(torch, model, batches, step):
    """The change of the weights when *step* ran for each batch."""
    before = [one.detach().clone() for one in model.parameters()]
    for batch in batches:
        step(batch)
    pairs = zip(model.parameters(), before, strict=True)
    return torch.cat([(one.detach() - first).flatten() for one, first in pairs]).cpu()


def _steps(torch, measure):
    """Forward, backward and the optimizer's step in one graph; the reference is FP64 on the CPU."""
    from smoke_tests.closeness import relative_error

    model, batches = _model(torch), _batches(torch)
    exact = copy.deepcopy(model).double()
    slow = torch.optim.SGD(exact.parameters(), lr=0.5)

    def plain(batch):
        slow.zero_grad()
        (exact(batch.double()) - batch.double().roll(1, 1)).square().mean().backward()
        slow.step()

    expected = _trained(torch, exact, batches, plain)
    there, inputs = copy.deepcopy(model).cuda(), torch.zeros(ROWS, WIDTH, device="cuda")
    optimizer = torch.optim.SGD(there.parameters(), lr=0.5)

    def step():
        optimizer.zero_grad(set_to_none=True)
        (there(inputs) - inputs.roll(1, 1)).square().mean().backward()
        optimizer.step()

    graph, _ = _captured(torch, step)
    there.load_state_dict(model.state_dict())  # in place: the graph uses this memory

    def replay(batch):
        inputs.copy_(batch)
        graph.replay()

    measure("step_error", relative_error(_trained(torch, there, batches, replay), expected))


def _amp(torch, measure):
    """Forward and backward under AMP in a graph, the scaler's step outside of it."""
    from smoke_tests.closeness import relative_error
    from smoke_tests.torch_api import grad_scaler

    model, batches = _model(torch), _batches(torch)

    def trained(captured):
        there, inputs = copy.deepcopy(model).cuda(), torch.zeros(ROWS, WIDTH, device="cuda")
        optimizer, scaler = torch.optim.SGD(there.parameters(), lr=0.5), grad_scaler(init_scale=1024.0)
        scaler.scale(torch.zeros(1, device="cuda"))  # the scale's tensor must exist before the capture

        def pass_():
            # Casts that are cached in a block would be of the weights at the time of the capture.
            with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
                output = there(inputs)
                loss = (output.float() - inputs.roll(1, 1)).square().mean()
            optimizer.zero_grad(set_to_none=False)
            scaler.scale(loss).backward()
            return output

        graph, output = _captured(torch, pass_) if captured else (None, None)
        last = []

        def step(batch):
            inputs.copy_(batch)
            if graph:
                graph.replay()
                last[:] = [output.detach().clone()]
            else:
                last[:] = [pass_().detach()]
            scaler.step(optimizer)
            scaler.update()

        return _trained(torch, there, batches, step), last[0]

    (expected, plain), (moved, replayed) = trained(False), trained(True)
    measure("amp_dtype", str(replayed.dtype))
    measure("amp_error", relative_error(replayed, plain))
    measure("amp_step_error", relative_error(moved, expected))


def _dropout(torch, measure):
    """Each replay draws other random numbers."""
    ones = torch.ones(100, 100, device="cuda")
    graph, output = _captured(torch, lambda: torch.nn.functional.dropout(ones, 0.3))
    drawn = []
    for _ in range(STEPS):
        graph.replay()
        drawn.append(output.clone())
    equal = sum(int(torch.equal(one, other)) for one, other in itertools.pairwise(drawn))
    measure("replays_with_equal_dropout", equal)
    measure("dropout_share", float((torch.stack(drawn) == 0).float().mean()))


def _graphed(torch, measure):
    """A layer by make_graphed_callables, in forward and backward."""
    from smoke_tests.closeness import relative_error
    from smoke_tests.training import gradient

    model, batches = _model(torch), _batches(torch)
    exact = copy.deepcopy(model).double()
    expected = exact(batches[1].double())
    expected.square().sum().backward()
    there = copy.deepcopy(model).cuda()
    graphed = torch.cuda.make_graphed_callables(there, (batches[0].cuda().requires_grad_(),))
    there.zero_grad(set_to_none=True)
    found = graphed(batches[1].cuda().requires_grad_())
    measure("graphed_callable_error", relative_error(found.detach().cpu(), expected.detach()))
    found.square().sum().backward()
    measure("graphed_callable_gradient_error", relative_error(gradient(there).cpu(), gradient(exact)))
