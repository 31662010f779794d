"""Functions that set, check and read back the keys of a config."""

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs.keys import Key, Keys, make_config
from cpc.files import flatten
from cpc.types import UserError

#: A ConfigDict, whose attributes a type checker cannot know.
Config: TypeAlias = Any

#: Names of keys in other frameworks -> last parts of keys in this package.
ALIASES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "warmup": "warmup_steps",
    **dict.fromkeys(("epochs", "max_epochs", "n_epochs", "num_epochs"), "num_steps"),
    **dict.fromkeys(("steps", "max_steps", "num_iterations", "iterations"), "num_steps"),
    **dict.fromkeys(("dir", "folder", "root", "data_dir"), "path"),
    **dict.fromkeys(("hidden", "hidden_size", "hidden_dim", "hidden_width"), "context_width"),
    **dict.fromkeys(("dim", "latent_dim", "embedding_dim", "z_dim"), "width"),
    **dict.fromkeys(("layers", "num_layers"), "context_layers"),
    **dict.fromkeys(("bs", "batch", "batchsize"), "batch_size"),
    **dict.fromkeys(("workers", "num_workers"), "num_threads"),
    **dict.fromkeys(("temp", "tau"), "temperature"),
}
#: Smallest similarity of names, between 0 and 1, at which a key is suggested.
MIN_SIMILARITY = 0.7
#: Pattern of a command-line argument that sets a key.
SETTING = re.compile(r"--?(?:no)?config\.([^=\s]+)(?:=(.*))?", re.DOTALL)


def check_config(config: Config, keys: Keys) -> None:
    """Check that a config has exactly these keys, with values in their ranges."""
    given, known = flatten(config), flatten(keys)
    for name in given:
        find_key(known, name)
    for name, key in known.items():
        if name not in given:
            raise UserError(f"the config key {name} is missing: set it, e.g. to {key.default!r}")
        check_value(name, given[name], key)
    source = given.get("data.source")
    for name, default in unread(keys, source).items():
        if given[name] != default:
            raise UserError(
                f"{name} does not apply to data.source {source} (got {given[name]!r}): "
                f"set data.source to {' or '.join(known[name].sources)}, or do not set {name}"
            )


def unread(keys: Keys, source: Any) -> dict[str, Any]:
    """Return the keys that the data source `source` does not use, with their defaults."""
    return {
        f"data.{name}": key.default
        for name, key in keys.get("data", {}).items()
        if key.sources and source not in key.sources
    }


def check_value(name: str, value: Any, key: Key) -> None:
    """Raise UserError if the type or the range of one value is wrong."""
    types = {float: (float, int), tuple: (tuple, list)}.get(type(key.default), type(key.default))
    if not isinstance(value, types) or isinstance(value, bool) != isinstance(key.default, bool):
        raise _wrong_type(name, type(key.default), key.default, value)
    is_many = isinstance(value, tuple | list)
    subject = f"each entry of {name}" if is_many else name
    kind = type(key.default[0]) if is_many and key.default else object
    for entry in value if is_many else (value,):
        if not isinstance(entry, (float, int) if kind is float else kind):
            raise _wrong_type(subject, kind, key.default, entry)
        holds = (
            not key.words or entry in key.words,
            key.low is None or entry >= key.low,
            key.above is None or entry > key.above,
            key.high is None or entry <= key.high,
            key.below is None or entry < key.below,
        )
        if not all(holds):
            raise UserError(f"{subject} must be {describe_range(key)} (got {entry!r})")


def _wrong_type(name: str, kind: type, default: Any, value: Any) -> UserError:
    return UserError(f"{name} must have type {kind.__name__}, such as {default!r} (got {value!r})")


def describe_range(key: Key) -> str:
    """Return the range of a key in words, or "" if it has none.

    >>> describe_range(Key(8, "batch", low=1, high=64)), describe_range(Key(0.1, "rate", above=0))
    ('from 1 to 64', 'above 0')
    >>> describe_range(Key("adam", "optimizer", words=("adam", "lion")))
    'adam or lion'
    """
    if key.words:
        *most, last = (str(word) or "(empty)" for word in key.words)
        return f"{', '.join(most)} or {last}" if most else last
    if key.low is not None and key.high is not None:
        return f"from {key.low} to {key.high}"
    limits = {
        "at least": key.low, "above": key.above, "at most": key.high, "below": key.below,
    }  # fmt: skip
    return " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)


def find_key(known: Mapping[str, Any], name: str) -> None:
    """Raise UserError if a key is unknown, and suggest the most similar key."""
    if name not in known:
        similar = suggest_key(known, name)
        hint = f"did you mean {similar}?" if similar else "list all keys with --keys"
        raise UserError(f"the config has no key {name}; {hint}")


def suggest_key(known: Collection[str], name: str) -> str:
    """Return the key that is most similar to a name or its synonym, or "" if no key is similar.

    The last parts of keys are compared first, so that the section may be missing or wrong.

    >>> suggest_key(["evaluate.num_steps", "policy.epochs"], "epochs")  # preferred to synonyms
    'policy.epochs'
    """
    section, _, last = name.lower().replace("-", "_").rpartition(".")
    ends = {key.rpartition(".")[2] for key in known}
    last = ALIASES[last] if last not in ends and ALIASES.get(last) in ends else last

    def similarity(key: str) -> tuple[float, float]:
        own_section, _, own = key.rpartition(".")
        is_part = {*last.split("_")} < {*own.split("_")}
        alike = 0.9 if is_part else SequenceMatcher(None, last, own).ratio()
        return alike, SequenceMatcher(None, section, own_section).ratio()

    best = max(known, key=similarity, default="")
    return best if best and similarity(best)[0] >= MIN_SIMILARITY else ""


def parse_settings(config: Config, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the keys that arguments such as "--config.model.width=16" set, with their values."""
    known = flatten(config)
    given = {match[1]: match[2] for text in arguments if (match := SETTING.fullmatch(text))}
    for name in given:
        find_key(known, name)
    parsed = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", copy.deepcopy(config), flag_values=parsed, sys_argv=["", *arguments]
        )
        parsed(["", *arguments], known_only=True)
    except flags.IllegalFlagValueError as error:
        name = next((name for name in given if f"--config.{name}=" in str(error)), "")
        if not name:
            raise UserError(str(error)) from None
        raise _wrong_type(name, type(known[name]), known[name], given[name]) from None
    return config_flags.get_override_values(parsed["config"])


def subset(section: Config, *names: str) -> dict[str, Any]:
    """Return the named keys of a section as keyword arguments."""
    return {name: section[name] for name in names}


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a copy of a config with new values for keys such as "model.width"."""
    changed = ConfigDict(config.to_dict())
    changed.update_from_flattened_dict(settings)
    return changed


def evaluation_config(config: Config, keys: Keys, arguments: Sequence[str]) -> Config:
    """Return the config of a run with keys set by flags, for evaluation only.

    If the flags select other data, all paths, such as those of lists and labels, are reset.
    """
    settings = parse_settings(config, arguments)
    if {"data.source", "data.path"} & settings.keys():
        paths = {f"data.{name}": key.default for name, key in keys["data"].items() if key.is_path}
        others = unread(keys, settings.get("data.source", config.data.source))
        settings = {**paths, **others, **settings}
    return with_settings(config, settings)


def load_config(recorded: Any, keys: Keys, writer: str = "the version that wrote it") -> Config:
    """Convert the contents of config.json to a config, naming their version `writer` in errors."""
    if not isinstance(recorded, Mapping | ConfigDict):
        raise UserError("the recorded config is damaged: config.json is not a JSON object")
    given, known = flatten(recorded), flatten(keys)
    check_keys(given, known, writer)
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    try:
        return with_settings(make_config(keys), given)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"the recorded config is damaged: {first}") from error


def check_keys(recorded: Mapping[str, Any], known: Mapping[str, Any], writer: str) -> None:
    """Check that a recorded flat config has the keys of this version."""
    for name in sorted(recorded.keys() ^ known.keys()):
        verb = "has" if name in recorded else "lacks"
        raise UserError(
            f"the recorded config {verb} the key {name}, so another version of cpc wrote it: "
            f"continue with {writer}, or use a new --workdir"
        )


def find_kind(recorded: Any) -> str:
    """Return the kind of a recorded config, or "" if it has none."""
    kind = recorded.get("kind") if isinstance(recorded, Mapping | ConfigDict) else None
    return kind if isinstance(kind, str) else ""
