"""The Typer application, and the one place that turns an outcome into an exit code."""

from __future__ import annotations

import errno
import gc
import importlib
import signal
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from orchestrator import __version__
from orchestrator.__main__ import forget_interrupt
from orchestrator.cli.streams import drop, fill_gaps, mention
from orchestrator.errors import (
    EXIT_BUG,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    FarbenchError,
)

HELP = """Benchmark GPU kernels on remote hosts over SSH, and trust the numbers.

A sweep (YAML) names a payload, its cases and the backends to compare; hosts.yaml names the hosts. farbench uploads
the rendered scripts, measures every case on the hosts' devices, brings each result home into an archive, and refuses
to print a speed-up that is not true. A run goes on when this command ends: come back with `farbench attach`.

Start here:

    farbench init                      # a commented hosts.yaml and sweep.yaml
    farbench plan sweep.yaml           # what would be measured, and where
    farbench run sweep.yaml            # measure it and print the table
    farbench report latest             # the table again
"""

EPILOG = "Exit codes: 0 all measured · 1 something failed, or nothing is ok · 2 wrong usage or file · 3 no usable host · 4 nothing to do · 5 regression · 70 a bug · 130 interrupted"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a stream that cannot be written says."""

# Module of orchestrator.cli -> its commands, in the order of `farbench --help`. Only the module of the command that was
# asked for is loaded: reading every command's signature takes longer than starting a run.
MODULES = {
    "sweep_commands": ("init", "payloads", "plan", "render"),
    "host_commands": ("hosts", "gc"),
    "doctor_commands": ("doctor", "setup"),
    "run_commands": ("run", "status", "attach", "cancel", "resume"),
    "log_commands": ("logs", "pull"),
    "runs_command": ("runs",),
    "archive_commands": ("report", "query"),
    "compare_commands": ("compare", "history"),
    "page_commands": ("plot", "repro"),
    "exchange_commands": ("export", "import"),
}


class _Commands(TyperGroup):
    """Left to itself, Typer ends a command without a word that was interrupted, or whose reader has left."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        try:
            return super().make_context(*arguments, **more)
        except KeyboardInterrupt:
            raise typer.Abort from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None
        except BrokenPipeError:
            # The reader of our output has left (`farbench logs | head`): nothing is wrong, nothing more to say.
            drop(sys.stdout)
            return EXIT_OK


def make_app(wanted: str | None = None) -> typer.Typer:
    """The application; with `wanted`, if there is such a command, only as much of it as that command needs."""
    app = typer.Typer(
        name="farbench",
        cls=_Commands,
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    modules = [module for module, commands in MODULES.items() if wanted in commands] or list(MODULES)
    for module in modules:
        importlib.import_module(f"orchestrator.cli.{module}").register(app)
    return app


# Typer raises Click's exceptions for wrong arguments, and newer ones bring a Click of their own.
_WrongArguments: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"farbench {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(argv: list[str] | None = None) -> int:
    """Run one command line; returns its exit code and never raises."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        app = make_app(arguments[0] if arguments else None)
        result: object = app(arguments, standalone_mode=False, prog_name="farbench")
        return result if isinstance(result, int) else EXIT_OK
    except typer.Exit as request:
        return int(request.exit_code)
    except _WrongArguments as error:
        # Typer's words for a choice that there is not begin with those of the exception that it wraps.
        error.message = error.message.removeprefix("Value error, ")
        error.show()
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        mention("interrupted\n")
        return EXIT_INTERRUPTED
    except FarbenchError as error:
        mention(f"error: {error}\n")
        return error.exit_code
    except OSError as error:
        # Of a file that is opened the name is known; the archive tells of its own.
        if error.errno in FULL and error.filename is None:
            return _cannot_write(error)
        words = _of_a_full_disk(error)
        if words is None:
            return _bug(error)
        mention(f"error: {words}\n")
        return EXIT_INCOMPLETE
    except Exception as error:  # noqa: BLE001 - the outermost boundary: what is left is a bug, said as one
        return _bug(error)


def _bug(error: Exception) -> int:
    if _came_of_interrupted_loading(error):
        mention("interrupted\n")
        return EXIT_INTERRUPTED
    mention("".join(traceback.format_exception(error)))
    mention("This is a bug in farbench; nothing that was measured is lost. Please report the lines above.\n")
    return EXIT_BUG


def _came_of_interrupted_loading(error: BaseException) -> bool:
    """Whether a library that was being loaded made an error of its own of Ctrl-C. Elsewhere an error that comes while
    Ctrl-C is handled is a bug like any other."""
    if not any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return False
    link: BaseException | None = error
    while link is not None:
        # pydantic's compiled part tells of it in its text alone.
        told = type(link).__name__ == "SchemaError" and "KeyboardInterrupt: " in str(link)
        if told or isinstance(link, KeyboardInterrupt):
            return True
        link = link.__cause__ or link.__context__
    return False


def _of_a_full_disk(error: OSError) -> str | None:
    """What to do if there is no room for a file that is no part of the archive; None for any other error."""
    if error.errno == errno.ENOENT and "usable temporary directory" in str(error.strerror):
        # Python tries them by writing a few bytes into each.
        return f"{error.strerror}: make room in one of them, or name another folder by TMPDIR"
    if error.errno in NO_ROOM:
        return f"{error.filename} could not be written: {error.strerror}. Make room there"
    return None


def _cannot_write(error: OSError) -> int:
    drop(sys.stdout)
    mention(f"error: the output cannot be written: {error.strerror or error}\n")
    return EXIT_INCOMPLETE


def main() -> NoReturn:
    """The console script."""
    fill_gaps()
    if sys.stdout is None:  # `>&-`
        mention("error: standard output is closed: give it a file, or /dev/null\n")
        sys.exit(EXIT_INCOMPLETE)
    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left takes no time, and the exit code is known
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        code = _cannot_write(error)
    forget_interrupt()
    gc.freeze()  # Python would look for cycles in everything once more before it goes: longer than many a command takes
    sys.exit(code)
