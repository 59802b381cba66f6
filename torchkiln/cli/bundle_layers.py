"""Lists the layers of the bundles on a GPU host, and copies missing layers into a bundle, for its run.py.

run.py is `bundle_run.py`, which starts without packages; it imports this module in the bundle's own Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torchkiln.cli.shared.terminal import echo, print_error, say
from torchkiln.errors import BuildFailed, KilnError, VerificationFailed
from torchkiln.smoke.bundle import earlier as bundles
from torchkiln.smoke.bundle.held import held_from_json, held_lines
from torchkiln.util.files import folder_at, named
from torchkiln.util.sizes import size

_INTERRUPTED = 130  # exit code
_say = partial(say, of="smoke")


def list_layers(bundle: Path, folders: Sequence[str]) -> int:
    """Print the layers of *bundle* and of the bundles in *folders*; return the exit code.

    Without *folders* the bundles beside *bundle* are used.
    """

    def listed() -> None:
        held = bundles.layers_of([bundle, *_earlier(bundle, folders)], _say)
        echo("\n".join(held_lines(held)))

    return _code_of(listed)


def take_layers(bundle: Path, description: dict[str, Any], folders: Sequence[str]) -> int:
    """Copy the layers that *bundle* lacks from the bundles in *folders*; return the exit code.

    Without *folders* the bundles beside *bundle* are used. *description* is its bundle.json.
    """

    def taken() -> None:
        earlier = _earlier(bundle, folders)
        try:
            held = held_from_json(description["held"])
        except (ValueError, TypeError, KeyError) as error:
            raise VerificationFailed(f"the bundle is damaged: bundle.json: held: {error}") from None
        if missing := bundles.missing_layers(bundle, held):
            total = size(sum(layer.size for layer in missing))
            _say(f"copying {len(missing)} layers, {total}, from other bundles on this host")
            with folder_at(bundle / bundles.LAYOUT / "blobs/sha256"):  # not in a folder elsewhere
                bundles.complete(bundle, description["tag"], missing, earlier)

    return _code_of(taken)


def _earlier(bundle: Path, folders: Sequence[str]) -> list[Path]:
    found = bundles.named_bundles([Path(folder) for folder in folders]) or bundles.bundles_beside(bundle)
    return [named(folder) for folder in found]


def _code_of(action: Callable[[], None]) -> int:
    """Call *action*; print its error if it fails, and return the exit code."""
    try:
        action()
    except KilnError as error:
        print_error(error.message, error.hint)
        return error.exit_code
    except OSError as error:  # stdout cannot be written
        print_error(error.strerror or str(error))
        return BuildFailed.exit_code
    except KeyboardInterrupt:
        print_error("interrupted; complete layers are kept, the next run copies the missing layers")
        return _INTERRUPTED
    return 0
