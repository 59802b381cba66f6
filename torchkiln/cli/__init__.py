"""The command line: runs a command, and turns every error into a message, a hint and an exit code."""

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

# name → (module, attribute); imported when used, because a build that changes nothing takes half a second.
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
# Parts of messages of threads and libraries that ran out of memory.
_OUT_OF_MEMORY = ("start new thread", "failed to map segment", "Cannot allocate memory")
_HINTS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "free space, or choose other folders: TORCHKILN_CACHE, --output"
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "check its owner and permissions, or choose another folder: TORCHKILN_CACHE, --output",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit: ulimit -n"),
}


class Commands(click.Group):
    """The commands of `COMMANDS`; `build` if the command line names none."""

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
            hint = f"; did you mean {near[0]!r}?" if near else f"; the commands are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command: {args[0]!r}{hint}")
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
    """Build, test and publish PyTorch GPU container images. The default command is build.

    Results (a digest, JSON, a table) go to stdout, everything else to stderr.
    """


def main(args: list[str] | None = None) -> None:
    """Run a command, and exit with its exit code (the README lists them)."""
    signals = _SignalHandler()
    code = _run(args, signals)
    signals.exit_on_signal(code)
    sys.exit(code)


class _SignalHandler:
    """SIGINT and SIGTERM: the first raises KeyboardInterrupt, the second exits at once.

    That loses nothing: files in the store are complete once they have their name, and the next run removes
    the temporary ones.
    """

    def __init__(self) -> None:
        self.signal = 0  # the first one received
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    @property
    def code(self) -> int:
        """The exit code for the signal."""
        return TERMINATED if self.signal == signal.SIGTERM else INTERRUPTED

    @property
    def message(self) -> str:
        """The error message for the signal."""
        how = "terminated" if self.code == TERMINATED else "interrupted"
        return f"{how}; completed work is kept, the next run continues from there"

    def exit_on_signal(self, code: int, message: str = "") -> None:
        """From now on, exit at once on a signal, with *code*, after writing *message* to stderr."""

        def leave(*_: object) -> None:
            if workers := sys.modules.get("torchkiln.util.processes"):  # only if a command imported it
                workers.stop_starting()
            os.write(2, message.encode())  # not through a buffer that may be in use
            os._exit(code)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.signal = number
        self.exit_on_signal(self.code, f"error: {self.message}\n")
        raise KeyboardInterrupt


def _run(args: list[str] | None, signals: _SignalHandler) -> int:
    """Run the command, print its error if it fails, and return the exit code."""
    try:
        result: Any = torchkiln.main(args=args, prog_name="torchkiln", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        signals.exit_on_signal(signals.code)
        _print_error(signals.message)
        return signals.code
    except KilnError as error:
        _print_error(error.message, error.hint)
        return error.exit_code
    except (MemoryError, SystemError, RuntimeError, ImportError) as error:
        if _is_out_of_memory(error):
            _print_error(
                f"not enough memory: {error}" if str(error) else "not enough memory",
                "check ulimit and the container's limits; completed work is kept",
            )
            return BuildFailed.exit_code
        if isinstance(error, RuntimeError):
            raise
        # A broken installation; or a memory limit: a module whose import failed once is half imported.
        _print_error(
            f"a library cannot be loaded: {error}", "run: make setup; if memory is limited, check ulimit"
        )
        return ToolMissing.exit_code
    except BrokenPipeError:  # `torchkiln list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not where:
            where = "the cache or the output: "
        _print_error(f"{where}{error.strerror or error}", _HINTS.get(error.errno or 0, ""))
        return BuildFailed.exit_code
    return result if isinstance(result, int) else 0


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. SystemError: C code failed to allocate memory and set no exception."""
    return isinstance(error, (MemoryError, SystemError)) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _print_error(message: str, hint: str = "") -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    if hint:
        click.echo(click.style("hint: ", fg="yellow") + hint, err=True)
