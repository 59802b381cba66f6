"""Fit a line with torch, on a GPU if there is one; print the loss before and after."""

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    import torch  # after the options, so that --help does not wait for the import

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.rand(1024, 1, device=device)
    y = 3 * x + 1
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{device}: loss {losses[0]:.4f} -> {losses[-1]:.6f}")


if __name__ == "__main__":
    main()
