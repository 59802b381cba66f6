"""benchmark: mixed precision makes a fine-tuning step of BERT-base faster and smaller with equal losses."""

from statistics import median

import pytest

from smoke_tests.closeness import ratio
from smoke_tests.curves import fall, figures, spread, widest_gap
from smoke_tests.search import largest

BATCH = 64  # sentences, for the peak memory
# By length of the sentences: number of sentences, warm-up steps, timed steps. With 64 sentences of 128 words,
# an H200 takes 21 ms for a step in half precision, and a host takes about as long to launch its kernels. 256
# such sentences have as many words as 64 sentences of 512 words, and need as much memory.
TIMED = {128: (256, 3, 20), 512: (64, 3, 10)}
LAUNCHES = (3, 10)  # warm-up steps and timed steps with a single sentence
BUDGET = 16 << 30  # bytes of memory for the largest batch, the same on every GPU
GRAIN = 512  # words; the largest batch is a multiple of it
CURVE, CURVE_BATCH = 200, 32  # steps, sentences
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

VALUES = {
    "benchmark": {
        "device": {"type": "string"},
        "torch": {"type": "string"},
        "build_cuda": {"type": "string"},
        # The relative rounding error of each factor is up to 5e-4 in TF32, 6e-8 in FP32.
        "fp32_product_error": {"at_most": 1e-5},
        "tf32_product_error": {"at_least": 1e-5},
        "parameters": {"equals": 108891648},
        "batch": {"equals": 64},
        "timed_batch": {"equals": {"128": 256, "512": 64}},
        "budget": {"equals": 17179869184},
        "step_ms_128": {"type": {"*": ["number"]}},
        "step_ms_spread_128": {"type": {"*": {"*": "number"}}},
        "launch_ms_128": {"type": {"*": ["number"]}},
        "launch_share_128": {"type": {"*": "number"}},
        # Close to 1, the host's launches would be timed instead of the GPU. The margin allows for variation.
        "largest_launch_share_128": {"at_most": 0.8},
        "samples_per_s_128": {"type": {"*": "number"}},
        "peak_bytes_128": {"type": {"*": "number"}},
        "largest_batch_128": {"type": {"*": "number"}},
        "logits_128": {
            "equals": {
                "fp32": "torch.float32 on cuda",
                "tf32": "torch.float32 on cuda",
                "fp16": "torch.float16 on cuda",
                "bf16": "torch.bfloat16 on cuda",
            }
        },
        "speed_128": {"at_least": 1.5},
        "speed_over_tf32_128": {"type": "number"},
        "memory_128": {"at_most": 0.85},
        "batch_128": {"at_least": 1.4},
        "step_ms_512": {"type": {"*": ["number"]}},
        "step_ms_spread_512": {"type": {"*": {"*": "number"}}},
        "launch_ms_512": {"type": {"*": ["number"]}},
        "launch_share_512": {"type": {"*": "number"}},
        "largest_launch_share_512": {"at_most": 0.8},
        "samples_per_s_512": {"type": {"*": "number"}},
        "peak_bytes_512": {"type": {"*": "number"}},
        "largest_batch_512": {"type": {"*": "number"}},
        "logits_512": {
            "equals": {
                "fp32": "torch.float32 on cuda",
                "tf32": "torch.float32 on cuda",
                "fp16": "torch.float16 on cuda",
                "bf16": "torch.bfloat16 on cuda",
            }
        },
        "speed_512": {"at_least": 1.5},
        "speed_over_tf32_512": {"type": "number"},
        # With longer sentences, weights and moments, which stay FP32, are a smaller part.
        "memory_512": {"at_most": 0.7},
        "batch_512": {"at_least": 1.4},
        "loss_fp32": {"type": ["number"]},
        "loss_fall_fp32": {"at_most": 0.2},
        "loss_fp16": {"type": ["number"]},
        "loss_fall_fp16": {"at_most": 0.2},
        "loss_gap": {"at_most": 0.02},  # an H100 gave 0.0001 to 0.0002
    },
}


@pytest.mark.tier(3)
@pytest.mark.limit(500)
def test_benchmark(measure):
    """AMP against strict FP32: faster, less memory, larger batches, the same losses; also TF32 and BF16."""
    import torch

    from smoke_tests.encoder import Classifier
    from smoke_tests.finetune import product_error

    measure("device", torch.cuda.get_device_name())
    measure("torch", torch.__version__)
    measure("build_cuda", torch.version.cuda)
    measure("fp32_product_error", product_error("fp32"))
    measure("tf32_product_error", product_error("tf32"))

    model = Classifier()
    weights = sum(weight.numel() for weight in model.encoder.parameters())
    measure("parameters", weights)
    measure("batch", BATCH)
    measure("timed_batch", {length: batch for length, (batch, _, _) in TIMED.items()})
    measure("budget", BUDGET)
    for length in TIMED:
        _compare(measure, length, {precision: _run(model, precision, length) for precision in PRECISIONS})
    _learn(measure, model)


def _run(model, precision, length):
    """Times and memory of one batch, and the largest batch."""
    import torch

    from smoke_tests.encoder import sentences
    from smoke_tests.finetune import fits, memory_limit, step_times, training

    batch, warm, steps = TIMED[length]
    with training(model, precision) as trained:
        # Several steps, because a step in which the GradScaler finds an inf creates no moments.
        step_times(trained, *sentences(BATCH, length, seed=1), warm=4, steps=1)
        results = {"peak_bytes": torch.cuda.max_memory_allocated()}
        torch.cuda.empty_cache()  # the larger batch does not fit into the cached blocks
        results["step_ms"] = step_times(trained, *sentences(batch, length, seed=1), warm=warm, steps=steps)
        results["logits"] = trained.logits
        warm, steps = LAUNCHES
        results["launch_ms"] = step_times(trained, *sentences(1, length, seed=1), warm=warm, steps=steps)
    with memory_limit(BUDGET), training(model, precision) as trained:
        # AdamW allocates its moments in the first step; after a large step they would be scattered over its
        # blocks, none of which could then be freed.
        trained.step(*sentences(1, length, seed=2))
        results["largest_batch"] = largest(
            lambda batch: fits(trained, *sentences(batch, length, seed=2)), 4096 // length, GRAIN // length
        )
    return results


def _compare(measure, length, results):
    """Record every value by precision, and compare AMP with FP32."""
    table = {
        name: {precision: values[name] for precision, values in results.items()} for name in results["fp32"]
    }
    times, batch = table["step_ms"], TIMED[length][0]
    rate = {precision: figures(1000 * batch / median(steps)) for precision, steps in times.items()}
    # A step of one sentence launches the same number of kernels with little work, so it takes the host's
    # time.
    share = {name: figures(median(table["launch_ms"][name]) / median(times[name])) for name in times}
    peak, most = table["peak_bytes"], table["largest_batch"]
    measure(f"step_ms_{length}", times)
    measure(f"step_ms_spread_{length}", {precision: spread(steps) for precision, steps in times.items()})
    measure(f"launch_ms_{length}", table["launch_ms"])
    measure(f"launch_share_{length}", share)
    measure(f"largest_launch_share_{length}", max(share.values()))
    measure(f"samples_per_s_{length}", rate)
    measure(f"peak_bytes_{length}", peak)
    measure(f"largest_batch_{length}", most)
    measure(f"logits_{length}", table["logits"])
    measure(f"speed_{length}", figures(rate["fp16"] / rate["fp32"]))
    measure(f"speed_over_tf32_{length}", figures(rate["fp16"] / rate["tf32"]))
    measure(f"memory_{length}", figures(ratio(peak["fp16"], peak["fp32"])))
    measure(f"batch_{length}", figures(most["fp16"] / max(1, most["fp32"])))


def _learn(measure, model):
    """Compare the losses of FP32 and FP16 on the same sentences in the same order."""
    from smoke_tests.encoder import sentences
    from smoke_tests.finetune import losses, training

    words, classes = sentences(CURVE * CURVE_BATCH, 128, seed=3)
    curves = {}
    for precision in ("fp32", "fp16"):
        with training(model, precision) as trained:
            curves[precision] = losses(trained, words, classes, steps=CURVE)
        measure(f"loss_{precision}", curves[precision])
        measure(f"loss_fall_{precision}", fall(curves[precision]))
    measure("loss_gap", widest_gap(curves["fp32"], curves["fp16"]))
