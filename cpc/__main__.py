"""The command `cpc`, or `python -m cpc`: an installation report, and every other command by name.

    cpc
    cpc train --config audio_voices --workdir runs/voices
    cpc train --help

Without a name it prints versions, devices, the folder of data, and the commands; `cpc --help`
prints the commands only. `cpc train` is `python -m experiments.train`.
"""

import ast
import difflib
import os
import pathlib
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence

import cpc

#: Short names of commands.
ALIASES = {
    "configs": "command.configs",
    "information": "information.own_arrays",
}
#: Marks the files that are commands.
STARTS = '\nif __name__ == "__main__":\n'


def find_home() -> pathlib.Path:
    """Return the folder of `experiments` and `configs`.

    It is next to this package in a checkout and inside of it elsewhere, so that names as common as
    these are importable only in the process of a command.
    """
    package = pathlib.Path(__file__).parent
    installed = package / "_checkout"
    return installed if installed.exists() else package.parent


def find_commands(home: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the files of the commands by name, such as train and information.own_arrays."""
    top = home / "experiments"
    return {
        ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__main__"): path
        for path in sorted(top.rglob("*.py"))
        if STARTS in path.read_text(encoding="utf-8")
    }


def describe_commands(commands: Mapping[str, pathlib.Path]) -> Iterator[str]:
    """Yield a line per command: its name, and the first line of its docstring."""
    shown = [name for name in commands if not name.startswith("bench.")]  # parts of comparisons
    width = max(map(len, shown), default=0)
    yield "commands (cpc NAME --help describes one):"
    for name in shown:
        said = ast.get_docstring(ast.parse(commands[name].read_text(encoding="utf-8"))) or ""
        yield f"  {name:<{width}}  {said.partition(chr(10))[0]}"
    for alias, name in ALIASES.items():
        yield f"  {alias:<{width}}  Short for {name}."


def start(name: str, words: Sequence[str], home: pathlib.Path) -> None:
    """Run a command as `python -m experiments.NAME` does in a checkout."""
    sys.path.insert(0, str(home))
    # Processes of a command find the same modules, and none of these names in a user's folder.
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(home), *path]))
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.argv[:] = ["-m", *words]  # as Python itself has it while it imports a package
    runpy.run_module(
        f"experiments.{name}", {"STARTED_AS": ("cpc", name)}, "__main__", alter_sys=True
    )


def main() -> None:
    """Run the command that the first word names; without one, print the report."""
    home = find_home()
    commands = find_commands(home)
    name, *words = sys.argv[1:] or [""]
    if (name := ALIASES.get(name, name)) in commands:
        start(name, words, home)
    elif name == "--version":
        print(cpc.__version__)
    elif name in ("", "-h", "--help"):
        lines = list(describe_commands(commands))
        if not name:
            from cpc import about  # its devices take a second

            lines = [about.describe(), "", *lines]
        try:
            print("\n".join(lines), flush=True)
        except BrokenPipeError:  # of `cpc | head`; nor can Python write the rest when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        near = difflib.get_close_matches(name, [*commands, *ALIASES], 1)
        hint = f"did you mean {near[0]}?" if near else "cpc --help lists all commands"
        print(f"error: cpc has no command {name!r}; {hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
