"""benchmark: mixed precision makes a fine-tuning step of BERT-base faster and smaller with equal losses."""

from statistics import median

import pytest

from smoke_tests.curves import fall, figures, widest_gap
from smoke_tests.search import largest

BATCH = 64
TIMED = {128: (5, 20), 512: (3, 10)}  # by length of the sentences: steps to warm up, steps that count
# The longer the sentences, the less of the memory is weights and moments, which stay FP32 at any precision.
MEMORY = {128: 0.85, 512: 0.70}
BUDGET = 16 << 30  # bytes of memory for the largest batch, the same on every GPU
GRAIN = 512  # words; the largest batch is a multiple of it
CURVE, CURVE_BATCH = 200, 32  # steps, sentences
LOGITS = {
    "fp32": "torch.float32 on cuda",
    "tf32": "torch.float32 on cuda",
    "fp16": "torch.float16 on cuda",
    "bf16": "torch.bfloat16 on cuda",
}


@pytest.mark.tier(3)
@pytest.mark.limit(500)
def test_benchmark(measure):
    """AMP against strict FP32: faster, less memory, larger batches, the same losses; also TF32 and BF16."""
    import torch

    from smoke_tests.encoder import PARAMETERS, Classifier
    from smoke_tests.finetune import product_error

    measure("device", torch.cuda.get_device_name())
    measure("torch", torch.__version__)
    measure("build_cuda", torch.version.cuda)
    # TF32 rounds each factor by up to 5e-4 of itself, FP32 by 6e-8: the two lie far apart on either side.
    measure("fp32_product_error", product_error("fp32"), at_most=1e-5)
    measure("tf32_product_error", product_error("tf32"), at_least=1e-5)

    model = Classifier()
    weights = sum(weight.numel() for weight in model.encoder.parameters())
    measure("parameters", weights, equals=PARAMETERS)
    measure("batch", BATCH)
    measure("budget", BUDGET)
    for length in TIMED:
        _compare(measure, length, {precision: _seen(model, precision, length) for precision in LOGITS})
    _learn(measure, model)


def _seen(model, precision, length):
    """Times and memory of one batch, and the largest batch."""
    import torch

    from smoke_tests.encoder import sentences
    from smoke_tests.finetune import fits, memory_limit, step_times, training

    warm, steps = TIMED[length]
    with training(model, precision) as one:
        times = step_times(one, *sentences(BATCH, length, seed=1), warm=warm, steps=steps)
        seen = {"step_ms": times, "peak_bytes": torch.cuda.max_memory_allocated(), "logits": one.logits}
    with memory_limit(BUDGET), training(model, precision) as one:
        # AdamW's moments come with the first step; after a large one they would lie scattered in the blocks
        # that it left, and hold on to each of them.
        one.step(*sentences(1, length, seed=2))
        seen["largest_batch"] = largest(
            lambda batch: fits(one, *sentences(batch, length, seed=2)), 4096 // length, GRAIN // length
        )
    return seen


def _compare(measure, length, seen):
    """Record every value by precision, and compare AMP with FP32."""
    table = {name: {precision: one[name] for precision, one in seen.items()} for name in seen["fp32"]}
    rate = {precision: figures(1000 * BATCH / median(times)) for precision, times in table["step_ms"].items()}
    peak, most = table["peak_bytes"], table["largest_batch"]
    measure(f"step_ms_{length}", table["step_ms"])
    measure(f"samples_per_s_{length}", rate)
    measure(f"peak_bytes_{length}", peak)
    measure(f"largest_batch_{length}", most)
    measure(f"logits_{length}", table["logits"], equals=LOGITS)
    measure(f"speed_{length}", figures(rate["fp16"] / rate["fp32"]), at_least=1.5)
    measure(f"speed_over_tf32_{length}", figures(rate["fp16"] / rate["tf32"]))
    measure(f"memory_{length}", figures(peak["fp16"] / peak["fp32"]), at_most=MEMORY[length])
    measure(f"batch_{length}", figures(most["fp16"] / max(1, most["fp32"])), at_least=1.4)


def _learn(measure, model):
    """Both learn equally from the same sentences in the same order."""
    from smoke_tests.encoder import sentences
    from smoke_tests.finetune import losses, training

    words, classes = sentences(CURVE * CURVE_BATCH, 128, seed=3)
    curves = {}
    for precision in ("fp32", "fp16"):
        with training(model, precision) as one:
            curves[precision] = losses(one, words, classes, steps=CURVE)
        measure(f"loss_{precision}", curves[precision])
        measure(f"loss_fall_{precision}", fall(curves[precision]), at_most=0.2)
    # Seen on an H100: 0.0001 to 0.0002.
    measure("loss_gap", widest_gap(curves["fp32"], curves["fp16"]), at_most=0.02)
