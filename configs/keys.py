"""Config keys: the one place that defines each key's default, meaning and range."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Key(NamedTuple):
    """A key of a config, whose value has the type of the default.

    Limits and words are those of each entry, if the value is a tuple.
    """

    default: Any
    help: str
    low: float | None = None
    """The least that it can be."""
    high: float | None = None
    """The most that it can be."""
    above: float | None = None
    """It must be more than this."""
    below: float | None = None
    """It must be less than this."""
    words: tuple[Any, ...] = ()
    """What it can be, if not any value."""
    is_path: bool = False
    """Whether it names a place on this machine, of which others are told the last part alone."""
    sources: tuple[str, ...] = ()
    """The values of `data.source` that read it, if not all do: with others it is the default."""


#: Keys by name, in sections.
Keys = Mapping[str, Any]


def make_config(keys: Keys) -> Any:
    """Return the config that has the default of each key.

    >>> make_config({"seed": Key(0, "of all randomness"), "data": {"size": Key(28, "in pixels")}})
    data:
      size: 28
    seed: 0
    <BLANKLINE>
    """
    values = {
        name: key.default if isinstance(key, Key) else make_config(key)
        for name, key in keys.items()
    }
    return ConfigDict(values)


def with_defaults(keys: Mapping[str, Key], **defaults: Any) -> dict[str, Key]:
    """Return the keys of a section with other defaults for some."""
    new = {name: keys[name]._replace(default=value) for name, value in defaults.items()}
    return {**keys, **new}
