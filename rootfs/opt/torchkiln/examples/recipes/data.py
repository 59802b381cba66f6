"""Samples, generated or from files; and batches of them, in an order that a resumed run continues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from recipes.model import SIZES
from recipes.parallel import World
from recipes.settings import Settings, Unavailable

COUNT = 4096  # samples of generated data, in an epoch
Sample = tuple[torch.Tensor, torch.Tensor]


def dataset(settings: Settings) -> Dataset[Sample]:
    """The samples of the model; sample N is the same each time, in whichever process it is made."""
    size = SIZES[settings.model][settings.size]
    if settings.model == "transformer":
        if settings.data:
            return TextFile(Path(settings.data), size["length"])
        return Tokens(settings.seed, size["length"], size["vocabulary"])
    if settings.data:
        return ImageFolder(Path(settings.data), size["pixels"], size["classes"])
    return Images(settings.seed, size["pixels"], size["classes"])


class Tokens(Dataset[Sample]):
    """Small numbers are more frequent, and every second token follows from the one before: much to learn."""

    def __init__(self, seed: int, length: int, vocabulary: int) -> None:
        self.seed, self.length, self.vocabulary = seed, length, vocabulary

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Sample:
        random = torch.Generator().manual_seed((self.seed << 32) + index)
        tokens = (torch.rand(self.length + 1, generator=random) ** 4 * self.vocabulary).long()
        follow = tokens[1::2]
        follow.copy_((tokens[::2][: len(follow)] * 7 + 1) % self.vocabulary)
        return tokens[:-1], tokens[1:]


class Images(Dataset[Sample]):
    """Noise of bytes; a bright square shows the class."""

    def __init__(self, seed: int, pixels: int, classes: int) -> None:
        self.seed, self.pixels, self.classes = seed, pixels, classes

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Sample:
        random = torch.Generator().manual_seed((self.seed << 32) + index)
        image = torch.randint(0, 128, (3, self.pixels, self.pixels), dtype=torch.uint8, generator=random)
        label, side = index % self.classes, self.pixels // 4
        row, column = label % 13 * (self.pixels - side) // 12, label % 7 * (self.pixels - side) // 6
        image[label % 3, row : row + side, column : column + side] = 255
        return image, torch.tensor(label)


class TextFile(Dataset[Sample]):
    """Pieces of a file; a token is a byte."""

    def __init__(self, path: Path, length: int) -> None:
        self.bytes, self.length = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), length

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index: int) -> Sample:
        piece = self.bytes[index * self.length : (index + 1) * self.length + 1].long()
        return piece[:-1], piece[1:]


class ImageFolder(Dataset[Sample]):
    """CLASS/IMAGE below a folder, resized to squares; needs Pillow and numpy."""

    def __init__(self, folder: Path, pixels: int, classes: int) -> None:
        self.pixels = pixels
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        if len(names) > classes:
            raise Unavailable(f"--data {folder}: {len(names)} classes; the model has {classes}")
        self.files = [
            (file, at) for at, name in enumerate(names) for file in sorted((folder / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        import numpy
        from PIL import Image

        file, label = self.files[index]
        with Image.open(file) as opened:
            image = numpy.array(opened.convert("RGB").resize((self.pixels, self.pixels)))
        return torch.from_numpy(image).permute(2, 0, 1).contiguous(), torch.tensor(label)


class Order:
    """Batches of indices from *start* on, without end: each epoch has its order, each process its samples."""

    def __init__(self, settings: Settings, world: World, count: int, start: int) -> None:
        # Without DistributedSampler every process trains on the same samples, and N GPUs learn what one does.
        self.sampler = DistributedSampler(
            range(count), num_replicas=world.size, rank=world.rank, seed=settings.seed, drop_last=True
        )
        self.batch, self.start = settings.batch, start
        self.per_epoch = len(self.sampler) // settings.batch
        if not self.per_epoch:
            raise Unavailable(
                f"--batch {settings.batch}: larger than the {len(self.sampler)} samples of a process"
            )

    def __iter__(self) -> Iterator[list[int]]:
        epoch, at = divmod(self.start, self.per_epoch)
        while True:
            self.sampler.set_epoch(epoch)  # otherwise each epoch has the order of the first
            indices = list(islice(self.sampler, self.per_epoch * self.batch))
            for first in range(at * self.batch, len(indices), self.batch):
                yield indices[first : first + self.batch]
            epoch, at = epoch + 1, 0


def batches(settings: Settings, world: World, device: torch.device, start: int) -> Iterator[Sample]:
    """Batches on *device*, without end. Workers prepare the next; pinned ones are copied beside the work."""
    samples = dataset(settings)
    loader = DataLoader(
        samples,
        batch_sampler=Order(settings, world, len(samples), start),
        num_workers=settings.workers,
        pin_memory=settings.pin and device.type == "cuda",
        prefetch_factor=settings.prefetch if settings.workers else None,
        generator=torch.Generator().manual_seed(
            settings.seed
        ),  # not torch's own, whose state a checkpoint has
    )
    for inputs, targets in loader:
        yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
