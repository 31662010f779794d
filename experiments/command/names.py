"""What commands and configs are called: by file in a checkout, by name where `cpc` is a command."""

import difflib
import os
import pathlib
import re
import sys
from collections.abc import Sequence

import configs
from cpc.data.walk import check_file
from cpc.types import UserError

CONFIGS = pathlib.Path(configs.__file__).resolve().parent


def started_by_cpc() -> bool:
    """Return whether the command `cpc` started this process, and not `python -m experiments`."""
    return hasattr(sys.modules["__main__"], "STARTED_AS")


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
    return path.stem if started_by_cpc() and path.resolve().parent == CONFIGS else near(path)


def show_word(word: str) -> str:
    """Return a word of the command line in which `find_configs` put a file, as it may be given."""
    flag, equals, value = word.rpartition("=") if word.startswith("--config=") else ("", "", word)
    file, *argument = value.split(":", 1)
    if not file.endswith(".py"):
        return word
    return flag + equals + ":".join([show_config(file), *argument])


def call(name: str) -> list[str]:
    """Return the words that start another command as this one was started."""
    words = ["cpc", name] if started_by_cpc() else [f"experiments.{name}"]
    return [near(sys.executable), "-m", *words]


def started_as() -> list[str]:
    """Return the words that started this command, before those that it got itself."""
    main = sys.modules["__main__"]
    if started_by_cpc():
        return list(main.__dict__["STARTED_AS"])
    module = main.__spec__
    name = ["-m", module.name.removesuffix(".__main__")] if module else [sys.argv[0]]
    return [near(sys.executable), *name]


def as_started(text: str) -> str:
    """Return a text on commands and configs of a checkout, as they are called from here."""
    if not started_by_cpc():
        return text
    text = re.sub(r"python -m experiments\.", "cpc ", text)
    text = re.sub(r"(--config[ =]|such as )configs/(\w+)\.py", r"\1\2", text)
    return re.sub(r"(?<!no file )\bconfigs/(?=\w+\.py)", lambda _: f"{CONFIGS}/", text)
