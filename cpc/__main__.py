"""The `cpc` command (or `python -m cpc`), which runs all other commands by name.

    cpc
    cpc train --config audio_voices --workdir runs/voices
    cpc train --help

Without arguments it prints versions, devices, the data directory and the commands; `cpc --help`
prints only the commands. `cpc train` runs `python -m experiments.train`.
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
#: A file under experiments/ is a command if it contains this line.
MAIN_GUARD = '\nif __name__ == "__main__":\n'


def find_home() -> pathlib.Path:
    """Return the directory that contains `experiments` and `configs`.

    In a checkout, it is the parent of this package. An installed package contains both in a
    subdirectory, so that their generic names can be imported only while a command runs.
    """
    package = pathlib.Path(__file__).parent
    installed = package / "_checkout"
    return installed if installed.exists() else package.parent


def find_commands(home: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return command files by command name, such as "train" or "information.own_arrays"."""
    top = home / "experiments"
    return {
        ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__main__"): path
        for path in sorted(top.rglob("*.py"))
        if MAIN_GUARD in path.read_text(encoding="utf-8")
    }


def describe_commands(commands: Mapping[str, pathlib.Path]) -> Iterator[str]:
    """Yield one line per command with its name and the first line of its docstring."""
    listed = [name for name in commands if not name.startswith("bench.")]  # run by benchmarks only
    width = max(map(len, listed), default=0)
    yield "commands (cpc NAME --help describes one):"
    for name in listed:
        docstring = ast.get_docstring(ast.parse(commands[name].read_text(encoding="utf-8"))) or ""
        yield f"  {name:<{width}}  {docstring.partition(chr(10))[0]}"
    for alias, name in ALIASES.items():
        yield f"  {alias:<{width}}  Short for {name}."


def start(name: str, words: Sequence[str], home: pathlib.Path) -> None:
    """Run the command `name` with arguments `words`, like `python -m experiments.NAME`."""
    sys.path.insert(0, str(home))
    # Child processes must import the same modules, even if the working directory has modules with
    # these names.
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(home), *path]))
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.argv[:] = ["-m", *words]  # as set by `python -m` while it imports the package
    runpy.run_module(
        f"experiments.{name}", {"STARTED_AS": ("cpc", name)}, "__main__", alter_sys=True
    )


def main() -> None:
    """Run the command named by the first argument, or print a report if there is none."""
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
            from cpc import about  # listing devices takes a second

            lines = [about.describe(), "", *lines]
        try:
            print("\n".join(lines), flush=True)
        except BrokenPipeError:  # as in `cpc | head`; Python would also fail to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        matches = difflib.get_close_matches(name, [*commands, *ALIASES], 1)
        hint = f"did you mean {matches[0]}?" if matches else "cpc --help lists all commands"
        print(f"error: cpc has no command {name!r}; {hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
