"""Definition of config keys, with their defaults, help texts and ranges."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Key(NamedTuple):
    """A config key, whose values have the type of the default.

    If the value is a tuple, limits and words apply to each entry.
    """

    default: Any
    help: str
    low: float | None = None
    """Smallest allowed value."""
    high: float | None = None
    """Largest allowed value."""
    above: float | None = None
    """Exclusive lower limit."""
    below: float | None = None
    """Exclusive upper limit."""
    words: tuple[Any, ...] = ()
    """Allowed values, or () for no restriction."""
    is_path: bool = False
    """Whether the value is a local path, which published records reduce to its last component."""
    sources: tuple[str, ...] = ()
    """Values of `data.source` that use the key, or () for all. Others require the default."""


#: Keys by name, in sections.
Keys = Mapping[str, Any]


def make_config(keys: Keys) -> Any:
    """Return a config with the default of each key.

    >>> make_config({"seed": Key(0, "seed"), "data": {"size": Key(28, "side in pixels")}})
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
    """Return the keys of a section with some defaults replaced."""
    new = {name: keys[name]._replace(default=value) for name, value in defaults.items()}
    return {**keys, **new}
