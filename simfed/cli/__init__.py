"""The `simfed` command: parse, call one function, map errors to exit codes.

Exit codes: 0 done; 1 a run failed; 2 the input is wrong; 3 an invariant or a bound that
the user gave is broken; 130 interrupted; 143 the same by SIGTERM.

`app` is the page of all commands, each of which is a function of a module here: its
parameters are the options, its docstring is the help. What a command does is in the
room that it calls; options that several share are in `inspect`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from simfed.cli.terminal import escaping_output
from simfed.ground.errors import InputError, InputErrors, SimfedError

__all__ = ["main"]


# A full collection visits all that importing PyTorch has made, a tenth of a second
# long: seldom, and not at the end, when the system takes all memory back.
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)

_OVERRIDES = ("--set", "--seed", "--rounds")
"""Options whose values stand in place of a file's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    Args:
        arguments: as of a shell, without the program's name; None for those of this
            process. `--debug` anywhere in them shows tracebacks.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    with escaping_output():
        return _run_command(arguments, debug)


def _run_command(arguments: list[str], debug: bool) -> int:
    """Run one command without `--debug`; errors become sentences and exit codes."""
    try:
        from simfed.cli.app import app  # takes a moment, in which Ctrl-C may come

        code = app(arguments, standalone_mode=False, prog_name="simfed")
        sys.stdout.flush()
        return _report_interruption(code) if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit) as error:
        # typer makes an exit code of the first
        if isinstance(error, SystemExit) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        # the reader of a pipe went away (`simfed list models | head -1`): nothing to
        # tell anybody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SimfedError as error:
        if debug:
            raise
        _print_error(error, overridden=any(a.startswith(_OVERRIDES) for a in arguments))
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        print("simfed: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if debug:
            raise
        place = f"{error.filename}: " if error.filename else ""
        reason = f"{place}{error.strerror or error}"
        if isinstance(error, PermissionError):
            print(f"simfed: {reason}", file=sys.stderr)
            return 2
        print(f"simfed: {reason}; what was written before is kept", file=sys.stderr)
        return 1
    except Exception as error:
        return _report_usage_or_bug(error, debug)


def _print_error(error: SimfedError, *, overridden: bool) -> None:
    """Print an error, a line per sentence, each with its place in the file.

    Args:
        error: whose sentences are printed.
        overridden: options stand in place of keys of the file, whose lines may not be
            the ones to change.
    """
    sentences = error.sentences() if isinstance(error, InputErrors) else [error]
    for sentence in sentences:
        if isinstance(sentence, InputError):
            from simfed.scenario.lines import add_line

            sentence = add_line(sentence, overridden=overridden)
        print(f"simfed: {sentence}", file=sys.stderr)


def _report_usage_or_bug(error: Exception, debug: bool) -> int:
    """Print an error of the command line, or of a plug-in, and return its exit code.

    Raises:
        Exception: `error`, where it is a bug of simfed.
    """
    # click's errors, known by what they can do: typer may bring a click of its own
    show = getattr(error, "show", None)
    if callable(show):
        show()
        return 2
    if type(error).__name__ in ("Exit", "Abort"):
        return _report_interruption(int(getattr(error, "exit_code", 130)))
    from simfed.ground.registry import blame_part

    sentence = None if debug else blame_part(error)
    if sentence is None:
        raise error
    print(f"simfed: {sentence}", file=sys.stderr)
    return 1


def _report_interruption(code: int) -> int:
    """Return an exit code; print that it was Ctrl-C where it is 130.

    Typer makes that code of Ctrl-C and prints nothing.
    """
    if code == 130:
        print("simfed: interrupted", file=sys.stderr)
    return code
