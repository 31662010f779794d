"""Lists of config keys and configs for the command line and the site."""

import ast
import pathlib
import sys
import textwrap
from collections.abc import Iterator, Mapping

from absl import flags

from configs.keys import Key, Keys
from cpc.files import flatten
from cpc.types import UserError
from experiments.command import names
from experiments.command.config import describe_range


def list_keys(keys: Keys, section: str = "") -> str:
    """Format the default, range and help text of all keys, or of the keys in a section.

    >>> print(list_keys({"seed": Key(0, "seed of all randomness", low=0, below=8)}))
    seed = 0   (at least 0 and below 8)
        seed of all randomness
    """
    known = {name: key for name, key in flatten(keys).items() if in_section(name, section)}
    if not known:
        sections = ", ".join(name for name, key in keys.items() if not isinstance(key, Key))
        raise UserError(f"--keys must be empty or one of {sections} (got {section!r})")
    lines = []
    for name, key in known.items():
        values = f"   ({found})" if (found := describe_range(key)) else ""
        text = f"{name} = {key.default!r}{values}"
        lines += textwrap.wrap(text, 100, subsequent_indent="        ", break_on_hyphens=False)
        lines += textwrap.wrap(key.help, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def list_kinds(known: Mapping[str, Keys], section: str = "") -> str:
    """Format the keys of each kind, or only the keys in a section."""
    found = {
        kind: keys
        for kind, keys in known.items()
        if any(in_section(name, section) for name in flatten(keys))
    }
    return "\n\n".join(
        f"{kind}:\n{list_keys(keys, section)}" for kind, keys in (found or known).items()
    )


def in_section(name: str, section: str) -> bool:
    """Return whether a key is in a section, where the section "" contains all keys."""
    return not section or name == section or name.startswith(f"{section}.")


def take_section() -> str | None:
    """Remove --keys [SECTION] from sys.argv, and return the section, "" for all keys.

    Returns None if --keys is not given.
    """
    flags.DEFINE_string(
        "keys", None, "List all keys, or those in a section, with default, range and meaning."
    )
    words = sys.argv
    index = next((i for i, word in enumerate(words) if word.split("=")[0] == "--keys"), None)
    if index is None:
        return None
    _, equals, section = words.pop(index).partition("=")
    is_next = not equals and index < len(words) and not words[index].startswith("-")
    return words.pop(index) if is_next else section


def find_configs() -> Iterator[tuple[str, str]]:
    """Yield the name and the first docstring line of each config."""
    for name, text in names.read_configs().items():
        yield name, (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def write_pages(folder: str, known: Mapping[str, Keys]) -> None:
    """Write configs.md and keys.md, two pages of the site, into a folder."""
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"| `{name}` | {first} |\n" for name, first in find_configs())
    title = "# Configs\n\n`cpc configs` lists them, `cpc train --config NAME` trains one.\n\n"
    (path / "configs.md").write_text(f"{title}| name | |\n|---|---|\n{rows}", encoding="utf-8")
    lists = "`cpc train --config NAME --keys [SECTION]` lists them"
    parts = [f"# Keys\n\n{lists}, `--config.KEY=VALUE` sets one.\n"]
    for kind, keys in known.items():
        parts.append(f"\n## {kind}\n\n| key | default | values | |\n|---|---|---|---|\n")
        for name, key in flatten(keys).items():
            cells = (f"`{name}`", f"`{key.default!r}`", describe_range(key), key.help)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    (path / "keys.md").write_text("".join(parts), encoding="utf-8")
