"""Command-line flags, help texts and one-sentence errors."""

import contextlib
import functools
import io
import os
import pathlib
import re
import select
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any, NoReturn

import jax  # noqa: F401 (before jaxlib, or XLA logs its devices in each command)
from absl import app, flags, logging
from jaxlib import xla_client
from ml_collections import config_flags

from cpc.files import flatten
from cpc.train import await_verdict, leave_failing, leave_processes
from cpc.types import UserError
from experiments.command import names
from experiments.command.config import parse_settings, suggest_key

WORKDIR = flags.DEFINE_string("workdir", None, "Run directory, which training creates or resumes.")
DEVICE = flags.DEFINE_string("device", "auto", "Device to run on: auto, cpu, gpu or tpu.")
#: Exit status when the reader of the output has gone, as a shell reports it for SIGPIPE.
CLOSED = 141


def define_config(default: str | None = None) -> flags.FlagHolder:
    """Define --config, which takes a name in configs/ or the path of a file with get_config().

    --config.a=1 sets the key a.
    """
    try:
        sys.argv[1:] = names.find_configs(sys.argv[1:])
    except UserError as error:
        fail(str(error))
    return config_flags.DEFINE_config_file(
        "config",
        default,
        "Name of a config, such as audio_voices, or path to a config file. "
        "--config.optim.learning_rate=1e-4 after it sets a key.",
    )


def take_settings(*sections: str) -> list[str]:
    """Remove each --section.key=value from sys.argv, and return --config.section.key=value."""
    setting = re.compile(rf"--(?:config\.)?((?:{'|'.join(sections)})\..*)", re.DOTALL)
    found = [setting.fullmatch(word) for word in sys.argv]
    sys.argv[:] = [word for word, match in zip(sys.argv, found, strict=True) if not match]
    return [f"--config.{match[1]}" for match in found if match]


def define_step() -> flags.FlagHolder[str | None]:
    """Define --step, which selects a checkpoint of a run."""
    return flags.DEFINE_string("step", None, "Checkpoint: a number or best. Default: the newest.")


def run(
    main: Callable[..., None],
    takes_folders: bool = False,
    shared: Sequence[str] = ("workdir", "device"),
) -> None:
    """Parse the flags and call `main`.

    If a user error occurs, print it as one sentence and exit with status 2.

    Args:
        main: Function to call without arguments, or with the positional arguments.
        takes_folders: Whether to pass the positional arguments to `main`, instead of rejecting any.
        shared: Flags of this module that --help lists.
    """
    for name in (*shared, "config", "keys", "step", "audit"):
        if name in flags.FLAGS:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    logging.set_verbosity(logging.ERROR)
    # This logger warns if JAX cannot use a GPU, in which case training on the CPU may take days.
    getLogger("jax._src.xla_bridge").setLevel("WARNING")
    # Our image source reports oversized images itself.
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")
    if isinstance(old := sys.stdout, io.TextIOWrapper):
        old.flush()
        buffer = io.BufferedWriter(Output(old.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, old.encoding, old.errors, line_buffering=True)
    sys.unraisablehook = functools.partial(interrupt_again, report=sys.unraisablehook)
    app.run(lambda argv: _guard(main, argv[1:], takes_folders), flags_parser=_parse)


class Output(io.FileIO):
    """Standard output that is dropped with a warning if it fails, as when a disk is full."""

    def write(self, data: Any) -> int:
        """Write `data`, or drop it after a failure."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            print(f"standard output failed ({error.strerror}): no further output", file=sys.stderr)
            return len(data)


def interrupt_again(late: Any, report: Callable[[Any], object]) -> None:
    """Resend a Ctrl-C that arrived in a callback of a library, where Python would drop it."""
    if issubclass(late.exc_type, KeyboardInterrupt):
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        report(late)


def note_interrupts() -> list[int]:
    """Return a list that grows at each Ctrl-C, which still raises `KeyboardInterrupt`.

    C code in a library, such as matplotlib, may replace that exception with another one.
    """
    interrupts = []

    def interrupt(number, frame):
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # & in a shell ignores it
        signal.signal(signal.SIGINT, interrupt)
    return interrupts


def _guard(main, words, takes_folders):
    interrupts = note_interrupts()
    if words and not takes_folders:
        own = flags.FLAGS.flags_by_module_dict().get(sys.argv[0], [])
        wanted = [f"--{one.name}" for one in own if one.flag_type() == "string" and not one.default]
        hint = f", such as {' and '.join(wanted)}" if wanted else ""
        fail(f"{words[0]!r} is not a flag: write flags with --{hint}; see --help")
    try:
        check_homes(words)
        check_xla_flags()
        main(words) if takes_folders else main()
        leave_processes()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader():
            leave_failing(CLOSED)
            sys.exit(CLOSED)
        where = f" {error.filename}" if error.filename else ""
        fail(f"cannot read or write{where}: {error.strerror or error}")
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except Exception as error:
        if interrupts:
            fail("interrupted", 130)
        await_verdict()
        is_host = isinstance(error, MemoryError)
        if is_host or str(error).startswith("RESOURCE_EXHAUSTED"):
            where, reason = "this machine" if is_host else "a device", str(error).split("\n")[0]
            fail(
                f"{where} has too little memory ({reason}): set model.remat=True, "
                "optim.accumulate=2, model.dtype=bfloat16 or a smaller data.batch_size, if the "
                "config has these keys"
            )
        traceback.print_exc()
        leave_failing(1)
        sys.exit(1)
    finally:  # a Ctrl-C could now only disturb the exit handlers of libraries
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _has_no_reader():
    """Return whether the reader of the output, such as head, has exited, and then drop the rest."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # POLLERR and POLLHUP are always reported
    is_closed = bool(output.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def check_homes(words: Sequence[str] = ()) -> None:
    """Check that flags are valid UTF-8, and that the user in each path such as ~ann/x exists."""
    values = {word: word for word in words} | flatten(flags.FLAGS.flag_values_dict())
    for name, value in values.items():
        if isinstance(value, str) and value != value.encode("utf-8", "replace").decode():
            raise UserError(f"{name} {value!r} is not valid UTF-8: rename the file")
        if isinstance(value, str) and value.startswith("~"):
            try:
                pathlib.Path(value).expanduser()
            except RuntimeError:
                raise UserError(
                    f"{name} {value!r} names an unknown user: write the path without ~"
                ) from None


def check_xla_flags() -> None:
    """Check XLA_FLAGS in a child process, since XLA aborts its process at an unknown flag."""
    if not os.environ.get("XLA_FLAGS"):
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, sys.stderr.fileno())
        with contextlib.suppress(Exception):
            xla_client.make_cpu_client()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        output = pipe.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        errors = [line.partition("] ")[2] for line in output.splitlines() if line[:1] in "EF"]
        reason = next(filter(None, errors), "no reason given").rstrip(".")
        raise UserError(
            f"XLA rejects the environment variable XLA_FLAGS ({reason}): correct or unset it"
        )


def fail(sentence: str, status: int = 2) -> NoReturn:
    """Print an error to stderr and exit."""
    sys.stdout.flush()
    with contextlib.suppress(OSError):  # stderr may be closed
        print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    leave_failing(status)
    sys.exit(status)


def _parse(argv):
    if {"--help", "-help", "-h"} & set(argv):
        try:
            print(describe_command(), flush=True)
        except BrokenPipeError:
            _has_no_reader()
        sys.exit(0)
    try:
        return flags.FLAGS(argv)
    except SystemExit as error:
        if any(word.startswith(("--help", "-help", "--version", "--only_check")) for word in argv):
            raise
        fail(f"the config exits the program (status {error.code}): remove the call to exit")
    except Exception as error:  # a config file may run any Python
        config = _check_settings(argv)
        if isinstance(error, flags.UnrecognizedFlagError):
            similar = suggest_key(flatten(config or {}), error.flagname)
            hint = f"; did you mean --config.{similar}?" if similar else ": see --help"
            fail(f"the command has no flag --{error.flagname}{hint}")
        if isinstance(error, flags.Error):
            fail(f"{error}; see --help")
        if isinstance(error, KeyError | AttributeError) and "get_config" in str(error):
            fail("the config file has no get_config(): define this function")
        # str() of a KeyError is a repr.
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error
        fail(f"cannot read the config: {type(error).__name__}: {reason}")


def _check_settings(argv):
    """Return the config if it can be read, and fail if one of its settings is invalid."""
    words = " ".join(argv[1:]).replace("--config ", "--config=").split()
    try:
        if file := [word for word in words if word.startswith("--config=")]:
            parsed = flags.FlagValues()
            config_flags.DEFINE_config_file("config", flag_values=parsed, sys_argv=["", *file])
            parsed(["", *file])
            settings = [word for word in words if word.startswith("--config.")]
            parse_settings(parsed["config"].value, settings)
            return parsed["config"].value
    except UserError as error:
        fail(str(error))
    except Exception:
        return  # the caller reports this error


def describe_command() -> str:
    """Return the --help text, composed of the command's docstring and its flags."""
    module = sys.modules["__main__"]
    lines = [(module.__doc__ or "").strip(), ""]
    known = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
    for flag in sorted(known, key=lambda flag: flag.name):
        value = flag.default
        if flag.name == "config" and value:  # absl has loaded the file
            value = names.show_config(config_flags.get_config_filename(flag))
        default = "" if value in (None, "", [], False) else f" Default: {value}."
        text = (flag.help or "").split(";\n")[0]  # absl appends a note on repeated flags
        text = f"{' '.join(text.split())}{default}"
        lines += textwrap.wrap(
            f"--{flag.name:<10} {text}", 100, subsequent_indent=" " * 13, break_on_hyphens=False
        )
    return "\n".join(lines)
