"""Conversion between the names of configs and commands and their files in a checkout."""

import difflib
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

import configs
from cpc.data.walk import check_file
from cpc.types import UserError

CONFIGS = pathlib.Path(configs.__file__).resolve().parent


def near(path: pathlib.Path | str) -> str:
    """Return a path relative to the working directory, or unchanged if it is outside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def read_configs() -> dict[str, str]:
    """Return the source text of each config in configs/ by name."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(CONFIGS.glob("*.py"))}
    return {name: text for name, text in texts.items() if "\ndef get_config(" in text}


def find_configs(arguments: Sequence[str]) -> list[str]:
    """Replace the name of a config after --config with the path of its file."""
    words = [*arguments]
    for index, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in ("--config", "-config") and equals:
            words[index] = f"{flag}={find_config(value)}"
        elif flag in ("--config", "-config") and index + 1 < len(words):
            words[index + 1] = find_config(words[index + 1])
    return words


def find_config(given: str) -> str:
    """Return the path of a config given by name or path, keeping ":argument"."""
    name, *argument = given.split(":", 1)
    path = pathlib.Path(name).expanduser()
    is_name = name == path.stem and not path.is_file()
    if not is_name and path.exists():
        check_file(path)
        return given
    known = read_configs()
    if is_name and name in known:
        return ":".join([near(CONFIGS / f"{name}.py"), *argument])
    likely = [path.stem] if path.stem in known else difflib.get_close_matches(path.stem, known, 1)
    if is_name:
        hint = f"did you mean {likely[0]}?" if likely else f"choose one of {', '.join(known)}"
        raise UserError(f"cpc has no config {name!r}; {hint}")
    if likely:
        raise UserError(f"the file {name} does not exist; did you mean --config {likely[0]}?")
    return given


def show_config(path: pathlib.Path | str) -> str:
    """Return the value of --config that selects a file: its name in configs/, or its path."""
    path = pathlib.Path(path)
    return path.stem if path.resolve().parent == CONFIGS else near(path)


def show_word(word: str) -> str:
    """Undo `find_configs` for one word of the command line."""
    flag, equals, value = word.rpartition("=") if word.startswith("--config=") else ("", "", word)
    file, *argument = value.split(":", 1)
    if not file.endswith(".py"):
        return word
    return flag + equals + ":".join([show_config(file), *argument])


def call(name: str) -> list[str]:
    """Return the command line that starts another command of cpc."""
    return [near(sys.executable), "-m", "cpc", name]


def command_line() -> str:
    """Return the current command line, quoted for a shell."""
    main = sys.modules["__main__"]
    if "STARTED_AS" in main.__dict__:
        words = main.__dict__["STARTED_AS"]
    else:
        module = main.__spec__
        name = ["-m", module.name.removesuffix(".__main__")] if module else [sys.argv[0]]
        words = [near(sys.executable), *name]
    return shlex.join([*words, *map(show_word, sys.argv[1:])])
