"""The command line: commands found by name, `build` when none is named, every failure one clear sentence."""

from __future__ import annotations

import ast
import difflib
import errno
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from torchkiln import __version__
from torchkiln.errors import BuildFailed, KilnError, ToolMissing

# name → (module, attribute); imported when used, for a build that changes nothing takes half a second.
COMMANDS = {
    "build": ("torchkiln.cli.build", "build"),
    "list": ("torchkiln.cli.grid", "list_command"),
    "matrix": ("torchkiln.cli.matrix", "matrix"),
    "explain": ("torchkiln.cli.grid", "explain"),
    "pick": ("torchkiln.cli.grid", "pick"),
    "lock": ("torchkiln.cli.lock", "lock"),
    "plan": ("torchkiln.cli.plan", "plan"),
    "toolkit": ("torchkiln.cli.toolkit", "toolkit"),
    "sharing": ("torchkiln.cli.sharing", "sharing"),
    "render": ("torchkiln.cli.render", "render"),
    "base": ("torchkiln.cli.base", "base"),
    "run": ("torchkiln.cli.run", "run"),
    "diff": ("torchkiln.cli.diff", "diff"),
    "smoke": ("torchkiln.cli.smoke", "smoke"),
    "gate": ("torchkiln.cli.gate", "gate"),
    "sbom": ("torchkiln.cli.sbom", "sbom"),
    "scan": ("torchkiln.cli.scan", "scan"),
    "publish": ("torchkiln.cli.publish", "publish"),
    "verify": ("torchkiln.cli.verify", "verify"),
    "retract": ("torchkiln.cli.repository", "retract"),
    "catalog": ("torchkiln.cli.repository", "catalog"),
    "cache": ("torchkiln.cli.cache", "cache"),
    "doctor": ("torchkiln.cli.doctor", "doctor"),
}
INTERRUPTED = 130
TERMINATED = 128 + signal.SIGTERM
# What threads and libraries say when a limit leaves them no memory.
_STARVED = ("start new thread", "failed to map segment", "Cannot allocate memory")
# By what the system refused.
_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, or set TORCHKILN_CACHE and --output elsewhere"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "look at its owner and permissions, or name another place (TORCHKILN_CACHE, --output)",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit: ulimit -n"),
}


class Commands(click.Group):
    """Commands by the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but without an import of all commands, which takes two seconds."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=_docstring(*place)).get_short_help_str(limit))
                    for name, place in COMMANDS.items()
                ]
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)


def _docstring(module: str, function: str) -> str | None:
    file = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    body = ast.parse(file.read_bytes()).body
    defined = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(next(defined))


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="torchkiln")
def torchkiln() -> None:
    """Build, prove and publish PyTorch GPU container images. Without a command: build.

    stdout is data (a digest, JSON, a table); everything else is on stderr.
    """


def main(args: list[str] | None = None) -> None:
    """Run, and end the process with the exit code of DESIGN section 9."""
    stop = _Stop()
    code = _code(args, stop)
    stop.leave_with(code)
    sys.exit(code)


class _Stop:
    """Ctrl-C and SIGTERM: the first ends the work in order, the second at once.

    At once does no harm: whatever has a name in the store is whole, and the next run sweeps the rest.
    """

    def __init__(self) -> None:
        self.signal = 0  # the one that came first
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heard)

    @property
    def code(self) -> int:
        """The exit code that belongs to the signal."""
        return TERMINATED if self.signal == signal.SIGTERM else INTERRUPTED

    @property
    def sentence(self) -> str:
        """What the user reads."""
        how = "terminated" if self.code == TERMINATED else "interrupted"
        return f"{how}; what was complete is kept, the next run goes on from there"

    def leave_with(self, code: int, sentence: str = "") -> None:
        """From here on a signal ends the process at once, with *code* and the last words *sentence*."""

        def leave(*_: object) -> None:
            if workers := sys.modules.get("torchkiln.util.processes"):  # if they were wanted at all
                workers.stop_starting()
            os.write(2, sentence.encode())  # not by way of a buffer that may be in use
            os._exit(code)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)

    def _heard(self, number: int, _frame: object) -> None:
        self.signal = number
        self.leave_with(self.code, f"error: {self.sentence}\n")
        raise KeyboardInterrupt


def _code(args: list[str] | None, stop: _Stop) -> int:
    try:
        result: Any = torchkiln.main(args=args, prog_name="torchkiln", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        stop.leave_with(stop.code)
        _tell(stop.sentence)
        return stop.code
    except KilnError as error:
        _tell(error.message, error.hint)
        return error.exit_code
    except (MemoryError, SystemError, RuntimeError, ImportError) as error:
        if _starved(error):
            _tell(
                f"not enough memory: {error}" if str(error) else "not enough memory",
                "look at ulimit and at the container's limits; what was complete is kept",
            )
            return BuildFailed.exit_code
        if isinstance(error, RuntimeError):
            raise
        # A broken installation; or a limit, for what failed to load once is half there the second time.
        _tell(f"a library cannot be loaded: {error}", "run: make setup; under tight limits, look at ulimit")
        return ToolMissing.exit_code
    except BrokenPipeError:  # `torchkiln list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not where:
            where = "the cache or the output: "
        _tell(f"{where}{error.strerror or error}", _HINTS.get(error.errno or 0, ""))
        return BuildFailed.exit_code
    return result if isinstance(result, int) else 0


def _starved(error: BaseException) -> bool:
    """Whether it is for want of memory. SystemError: C code that had none and forgot to say so."""
    return isinstance(error, (MemoryError, SystemError)) or any(word in str(error) for word in _STARVED)


def _tell(message: str, hint: str = "") -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    if hint:
        click.echo(click.style("hint: ", fg="yellow") + hint, err=True)
