"""What commands and configs are called: by file in a checkout, by name where `cpc` is a command."""

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
    """Return a path from the working directory, or as it is if it leads out of that.

    >>> near("/")
    '/'
    """
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def find_configs(arguments: Sequence[str]) -> list[str]:
    """Return command-line words in which --config gives a file, where it may give a name."""
    words = [*arguments]
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in ("--config", "-config") and equals:
            words[place] = f"{flag}={find_config(value)}"
        elif flag in ("--config", "-config") and place + 1 < len(words):
            words[place + 1] = find_config(words[place + 1])
    return words


def find_config(given: str) -> str:
    """Return the file of a config that is named; a path, with what follows a colon, as it is.

    >>> pathlib.Path(find_config("audio_voices")).name
    'audio_voices.py'
    >>> find_config("own/config.py:large")
    'own/config.py:large'
    """
    name, *argument = given.split(":", 1)
    path = pathlib.Path(name).expanduser()
    is_name = name == path.stem and not path.is_file()
    if not is_name and path.exists():
        check_file(path)
        return given
    known = {
        file.stem: file
        for file in sorted(CONFIGS.glob("*.py"))
        if "\ndef get_config(" in file.read_text(encoding="utf-8")
    }
    if is_name and name in known:
        return ":".join([near(known[name]), *argument])
    likely = [path.stem] if path.stem in known else difflib.get_close_matches(path.stem, known, 1)
    if is_name:
        hint = f"did you mean {likely[0]}?" if likely else f"choose one of {', '.join(known)}"
        raise UserError(f"cpc has no config {name!r}; {hint}")
    if likely:
        raise UserError(
            f"there is no file {name}; did you mean --config {likely[0]}, of cpc's own?"
        )
    return given


def show_config(path: pathlib.Path | str) -> str:
    """Return what --config is to be given for a file."""
    path = pathlib.Path(path)
    return path.stem if path.resolve().parent == CONFIGS else near(path)


def show_word(word: str) -> str:
    """Return a word of the command line in which `find_configs` put a file, as it may be given."""
    flag, equals, value = word.rpartition("=") if word.startswith("--config=") else ("", "", word)
    file, *argument = value.split(":", 1)
    if not file.endswith(".py"):
        return word
    return flag + equals + ":".join([show_config(file), *argument])


def call(name: str) -> list[str]:
    """Return the words that start another command."""
    return [near(sys.executable), "-m", "cpc", name]


def command_line() -> str:
    """Return the command that was given, to be given again."""
    main = sys.modules["__main__"]
    if "STARTED_AS" in main.__dict__:
        words = main.__dict__["STARTED_AS"]
    else:
        module = main.__spec__
        name = ["-m", module.name.removesuffix(".__main__")] if module else [sys.argv[0]]
        words = [near(sys.executable), *name]
    return shlex.join([*words, *map(show_word, sys.argv[1:])])
