"""From windows of the pack to the waveforms that a model takes, on the device."""

from collections.abc import Sequence
from typing import Any

import jax

from cpc.data import unpack
from cpc.data.augment_sound import Ranges, augment_sound, check_effects
from cpc.types import Batch, UserError
from experiments.command.config import Config


def prepare(config: Config, batch: Batch, rng: Any, train: bool) -> Batch:
    """Return a batch of waveforms; in training, augmented on the sides that the config names.

    Contexts are made of "x", latents of "target". Past and future have draws of their own.
    """
    batch, side = unpack(batch), config.augment.side
    if not train or side == "none":
        return batch
    of_past, of_future = jax.random.split(rng)
    past = batch["x"] if side == "future" else augment(config, batch, of_past)
    future = batch["x"] if side == "past" else augment(config, batch, of_future)
    return {**batch, "x": past, "target": future}


def augment(config: Config, batch: Batch, rng: Any, effects: Sequence[str] = ()) -> Any:
    """Return waveforms after the effects of a config, or after these."""
    return augment_sound(
        rng,
        batch["x"],
        effects or config.augment.effects,
        ranges_of(config),
        speaker=batch["speaker"],
        num_samples=batch.get("num_samples"),
    )


def ranges_of(config: Config) -> Ranges:
    """Return what a config says of the draws of each effect."""
    return Ranges(**{name: config.augment[name] for name in Ranges._fields})


def check_augmentation(config: Config) -> None:
    """Check that windows can be augmented as a config says, if it asks for it."""
    if config.augment.side == "none":
        return
    sizes = config.data.window_samples, config.data.batch_size
    try:
        check_effects(config.augment.effects, ranges_of(config), *sizes)
    except UserError as error:
        raise UserError(f"augment.side is {config.augment.side}, and {error}") from None
