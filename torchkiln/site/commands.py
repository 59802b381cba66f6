"""Writes the commands that get, verify and run an image: those of README.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.site.catalogue import Catalogue, ListedImage

RUN = (
    "docker run -d --name work --gpus all -p 8888:8888 -p 2222:22 --shm-size=8g"
    " -v ./workspace:/workspace \\\n"
    '    -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)" {image}'
)
VERIFY = "verify {image} --key publisher=publisher.pub.pem --key laboratory=lab.pub.pem"
TRY = (
    "run {tag} -- python -c"
    " 'import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command line, and the name of the text that says what it does."""

    text: str
    line: str


def commands(image: ListedImage, catalogue: Catalogue) -> tuple[Command, ...]:
    """The commands for *image*, in the order in which they are run; none if it was retracted."""
    return tuple(_commands(image, catalogue))


def _commands(image: ListedImage, catalogue: Catalogue) -> Iterator[Command]:
    name = f"{catalogue.repository}:{image.tag}"
    if image.published and image.published.retracted:
        return
    if image.published:
        yield Command(text="cmd_pull", line=f"docker pull {name}@{image.published.digest}")
        yield Command(text="cmd_verify", line=f"torchkiln {VERIFY.format(image=name)}")
    else:
        name = f"{catalogue.local}:{image.tag}"
        yield Command(text="cmd_build", line=f"torchkiln build {image.tag} --load")
        yield Command(text="cmd_verify_layout", line="torchkiln verify dist")
        yield Command(text="cmd_try", line=f"torchkiln {TRY.format(tag=image.tag)}")
    yield Command(text="cmd_run", line=RUN.format(image=name))
