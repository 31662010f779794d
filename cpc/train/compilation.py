"""A second start that does not compile again."""

import os
import pathlib

import jax


def enable_compilation_cache(path: str | os.PathLike[str]) -> None:
    """Keep every compiled program under `path`, also those that compile in less than a second.

    Call it before the first compilation. A cache belongs to one kind of machine.
    """
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(path).absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
