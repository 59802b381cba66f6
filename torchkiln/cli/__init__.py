"""The command line: runs a command, and turns every error into a message, a hint and an exit code."""

from __future__ import annotations

import ast
import atexit
import difflib
import errno
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from torchkiln import __version__
from torchkiln.cli.commands import COMMANDS, EARLIER, SECTIONS, as_project
from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.groups import WHOLE
from torchkiln.cli.shared.terminal import as_typed, echo, program
from torchkiln.errors import BuildFailed, ConfigError, KilnError, ToolMissing, printable
from torchkiln.util.places import HOW_TO_INSTALL

INTERRUPTED = 130
_VERSION = ("--version", "-V", "-v")
_OWN = ("--help", "-h", *_VERSION)  # options of torchkiln itself
_SUMMARY = 60  # characters of a command's description in a shell
TERMINATED = 128 + signal.SIGTERM
# Parts of the error messages of Python and the dynamic loader when memory runs out.
_OUT_OF_MEMORY = ("start new thread", "failed to map segment", "Cannot allocate memory")
_HINTS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "free space, or choose other folders: TORCHKILN_CACHE, --output"
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "check its owner and permissions, or choose another folder: TORCHKILN_CACHE, --output",
    ),
    errno.ELOOP: "replace it by a folder, or name the folder that it leads to: --output, --images",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit: ulimit -n"),
}


class Commands(click.Group):
    """The group of the commands in `COMMANDS`; it runs `build` if the command line names no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections; no command is imported, because importing all takes two seconds."""
        width = max(map(len, COMMANDS))
        for title, places in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", _summary(name)) for name in places])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, without importing them, and options; those of `build` are included."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        if incomplete.startswith("-") and (build := self.get_command(ctx, "build")):
            options += build.shell_complete(click.Context(build, parent=ctx), incomplete)
        return [*(CompletionItem(name, help=_summary(name)) for name in names), *options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing = ctx.resilient_parsing and not args  # the shell completes the name of a command
        if not completing and (not args or (args[0].startswith("-") and args[0] not in _OWN)):
            args = ["build", *args]
        if "help" in args[:2]:  # `help build`, `project help`
            args = [*(word for word in args if word != "help"), "--help"]
        now = EARLIER.get(args[0]) if args else None
        words = [*now, *args[1:]] if now else as_project(args)
        if words != args:
            new = as_typed(" ".join(("torchkiln", *(now or words[:2]))))
            echo(f"torchkiln: `{args[0]}{'' if now else ' --project'}` is now `{new}`", err=True)
        args = words
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the commands are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command: {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def _summary(name: str) -> str:
    """The first sentence of the description of the command *name*."""
    return click.Command(name, help=_docstring(*COMMANDS[name])).get_short_help_str(WHOLE)


def _docstring(module: str, function: str) -> str | None:
    file = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    body = ast.parse(file.read_bytes()).body
    defined = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(next(defined))


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, *_VERSION, prog_name="torchkiln")
def torchkiln() -> None:
    """Build, test and publish PyTorch GPU container images. The default command is build.

    Results (a digest, JSON, a table) go to stdout, everything else to stderr.
    """


def main(args: list[str] | None = None) -> None:
    """Run a command, and exit with its exit code (docs/reference.md lists them)."""
    signals = _SignalHandler()
    code = _run(args, signals)
    signals.exit_on_signal(code)
    sys.exit(code)


def _ignore_signals() -> None:
    """Python restores the default handlers while it ends; a signal would then replace the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class _SignalHandler:
    """Handles SIGINT and SIGTERM: the first signal raises KeyboardInterrupt, the second exits at once.

    No file in the store stays incomplete: a file gets its final name only when it is complete. The next run
    removes temporary files.
    """

    def __init__(self) -> None:
        self.signal = 0  # the first signal received
        atexit.register(_ignore_signals)  # registered first, so it runs last
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
        """Let the next signal write *message* to stderr and end the process with exit code *code*."""

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
    words = sys.argv[1:] if args is None else args
    terminal.AS_JSON.set("--json" in words and words[0] != "run")  # the words of `run` are of its COMMAND
    try:
        result: Any = torchkiln.main(
            args=args, prog_name=program(), standalone_mode=False, color=terminal.color()
        )
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command prints its help
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = f"torchkiln{context.command_path.removeprefix(program())}" if context else ""
        hint = f"see: {path} --help" if context else ""
        terminal.print_error(_sentence(error.format_message()), hint)
        return error.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        signals.exit_on_signal(signals.code)
        terminal.print_error(signals.message)
        return signals.code
    except KilnError as error:
        terminal.print_error(error.message, error.hint)
        return error.exit_code
    except RecursionError:
        terminal.print_error("files or folders are nested too deep")
        return ConfigError.exit_code
    except (MemoryError, SystemError, RuntimeError, ImportError) as error:
        if _is_out_of_memory(error):
            terminal.print_error(
                f"not enough memory: {error}" if str(error) else "not enough memory",
                "check ulimit and the container's limits; completed work is kept",
            )
            return BuildFailed.exit_code
        if isinstance(error, RuntimeError):
            raise
        # The installation is broken, or a memory limit made an earlier import of this module fail.
        terminal.print_error(
            f"a library cannot be loaded: {error}", f"{HOW_TO_INSTALL}; if memory is limited, check ulimit"
        )
        return ToolMissing.exit_code
    except BrokenPipeError:  # `torchkiln list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and not where:
            where = "the cache or the output: "
        terminal.print_error(f"{where}{error.strerror or error}", _HINTS.get(error.errno or 0, ""))
        return BuildFailed.exit_code
    return result if isinstance(result, int) else 0


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. SystemError: C code failed to allocate memory and set no exception."""
    return isinstance(error, (MemoryError, SystemError)) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _sentence(message: str) -> str:
    """A message of click in the style of torchkiln's messages: "no such option '--x'"."""
    return printable(message[:1].lower() + message[1:]).removesuffix(".")
