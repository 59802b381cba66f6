"""Fit a line with DistributedDataParallel, one process for each GPU, or on CPUs; start it with torchrun."""

import argparse
import os
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    import torch  # after the options, so that --help does not wait for the import
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    with_gpus = torch.cuda.is_available()
    device = torch.device("cuda", local) if with_gpus else torch.device("cpu")
    if with_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if with_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # each process has its own data
    x = torch.rand(1024, 1, device=device)
    y = 3 * x + 1
    ddp = torch.nn.parallel.DistributedDataParallel
    model = ddp(torch.nn.Linear(1, 1).to(device), device_ids=[local] if with_gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, began, every = [], time.perf_counter(), max(1, steps // 10)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and step % every == 0:  # a line that deploy/monitoring/exporter.py --log reads
            memory = torch.cuda.max_memory_allocated() / 2**30 if with_gpus else 0
            speed = step * len(x) * ranks / (time.perf_counter() - began)
            last = losses[-1]
            print(
                f"step {step:5}  loss {last:.4f}  scale 1  {memory:.2f} GiB  {speed:.0f} samples/s",
                flush=True,
            )

    if rank == 0:
        nodes = os.environ["GROUP_WORLD_SIZE"]
        print(f"{ranks} processes on {nodes} nodes, {device.type}: loss {losses[0]:.4f} -> {losses[-1]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
