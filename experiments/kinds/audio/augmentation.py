"""Preparation and augmentation of training windows, with audible and visual examples.

If augmentation is enabled, a run writes one training window to augmentation/*.wav: unaltered, after
each effect, and after all effects.
"""

import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import soundfile

from cpc.data import SAMPLE_RATE_HZ, unpack
from cpc.data.augment_sound import Ranges, augment_sound, check_effects
from cpc.files import replacing
from cpc.report.engine import Figure, Section, Sound
from cpc.results import Run
from cpc.types import Batch, UserError
from experiments.command.config import Config


def preprocess(config: Config, batch: Batch, rng: Any, train: bool) -> Batch:
    """Unpack a batch of waveforms and, in training, augment its past, its future, or both.

    Contexts are computed from the past, "x", and latents from the future, "target". `augment.side`
    selects the copies to augment. Two copies are augmented independently.
    """
    batch, side = unpack(batch), config.augment.side
    if not train or side == "none":
        return batch
    past_rng, future_rng = jax.random.split(rng)
    past = batch["x"] if side == "future" else augment(config, batch, past_rng)
    future = batch["x"] if side == "past" else augment(config, batch, future_rng)
    return {**batch, "x": past, "target": future}


def augment(config: Config, batch: Batch, rng: Any, effects: Sequence[str] = ()) -> Any:
    """Apply `effects`, which default to `augment.effects`, to the waveforms of a batch."""
    given = batch["x"], effects or config.augment.effects, ranges_of(config)
    about = {"speaker": batch["speaker"], "num_samples": batch.get("num_samples")}
    return augment_sound(rng, *given, **about)


def ranges_of(config: Config) -> Ranges:
    """Return each effect's parameter range from the config."""
    return Ranges(**{name: config.augment[name] for name in Ranges._fields})


def check_augmentation(config: Config) -> None:
    """Validate the augmentation keys of a config if augmentation is enabled."""
    if config.augment.side == "none":
        return
    sizes = config.data.window_samples, config.data.batch_size
    try:
        check_effects(config.augment.effects, ranges_of(config), *sizes)
    except UserError as error:
        raise UserError(f"augment.side is {config.augment.side}, and {error}") from None


FOLDER, CLEAN = "augmentation", "clean"
TITLES = {
    CLEAN: "as recorded",
    "pitch": "pitch",
    "noise": "another window as noise",
    "reverb": "reverberation",
    "band_reject": "a frequency band removed",
    "dropout": "a silent interval",
}
SIDES = {
    "past": "Contexts of augmented sound predict latents of the original sound.",
    "future": "Contexts of the original sound predict latents of augmented sound.",
    "both": "Contexts of augmented sound predict latents of the same sound, augmented differently.",
}
#: Spectrogram settings: frame length and hop in samples, and dynamic range in dB.
FRAME, HOP, RANGE_DB = 400, 80, 70


def apply_each(config: Config, batch: Batch, rng: Any) -> dict[str, np.ndarray]:
    """Return a batch's first window unaltered, after each effect and after all effects, by name."""
    batch, effects = unpack(batch), tuple(config.augment.effects)
    wanted: dict[str, Sequence[str]] = {name: (name,) for name in effects}
    if len(effects) > 1:
        wanted["+".join(effects)] = effects

    @jax.jit
    def apply(batch: Batch) -> list[Any]:
        return [augment(config, batch, rng, each)[0] for each in wanted.values()]

    return dict(zip((CLEAN, *wanted), map(np.asarray, (batch["x"][0], *apply(batch))), strict=True))


def record_augmentation(
    config: Config, workdir: pathlib.Path, draw: Callable[[int], Batch]
) -> None:
    """Write a training window before and after each effect, unless the files exist already."""
    folder = workdir / FOLDER
    if config.augment.side == "none" or any(folder.glob("*")):
        return
    examples = apply_each(config, draw(0), jax.random.key(config.seed))
    loudest = max(float(np.abs(x).max()) for x in examples.values())
    for number, (name, x) in enumerate(examples.items()):
        samples = np.round(32767 * (0.9 * x / max(loudest, 1e-9))).astype(np.int16)
        with replacing(folder / f"{number}_{name}.wav", is_durable=False) as part:
            soundfile.write(part, samples, SAMPLE_RATE_HZ, format="WAV")


def from_wav(content: bytes) -> np.ndarray:
    """Decode a file written by `record_augmentation`.

    Raises a ValueError for other audio files.
    """
    samples, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    if samples.ndim != 1 or len(samples) < FRAME:
        raise ValueError("sound was not written by record_augmentation")
    return samples.astype(np.float32) / 32767


def augmentation_section(run: Run) -> Section | None:
    """Return a section that plays a training window before and after each effect."""
    examples, sounds, lost = {}, [], []
    for path in sorted((run.workdir / FOLDER).glob("*.wav")):
        name = path.stem.partition("_")[2]
        title = TITLES.get(name, "all: " + name.replace("+", ", then ").replace("_", " "))
        try:
            content = path.read_bytes()
            examples[title] = from_wav(content)
            sounds.append(Sound(title, f"{FOLDER}/{path.name}", content))
        except (OSError, ValueError, soundfile.LibsndfileError):
            lost.append(f"{path.name} was left out because it is damaged.")
    if not examples:
        return None
    side = run.config.get("augment", {}).get("side", "")
    note = f"{SIDES.get(side, '')} Evaluation and probes use the original sound."
    caption = (
        "Waveforms, with the original window in gray, and spectrograms, in which darker is louder. "
        f"The range is {RANGE_DB} dB."
    )
    title = "A training window, before and after each effect"
    figure = Figure("augmentation", draw_sounds(examples), title, caption)
    return Section("Examples of augmentation", [note.strip(), *lost], [figure], sounds=sounds)


def spectrogram(x: np.ndarray) -> np.ndarray:
    """Return the spectrogram of a waveform in dB, (t, bins).

    >>> spectrogram(np.zeros(400)).shape
    (1, 201)
    """
    frames = np.lib.stride_tricks.sliding_window_view(x, FRAME)[::HOP] * np.hanning(FRAME)
    return 20 * np.log10(np.abs(np.fft.rfft(frames)) + 1e-6)


def draw_sounds(examples: dict[str, np.ndarray]) -> Any:
    """Draw each sound's waveform and spectrogram, with one row per sound."""
    from cpc.report.draw import BLUE, GRAY, label, make_figure

    figure, panels = make_figure(2 * len(examples), num_columns=2, row_height=1.9)
    clean = next(iter(examples.values()))
    levels = [spectrogram(x) for x in examples.values()]
    top = max(float(level.max()) for level in levels)
    for row, ((title, x), level) in enumerate(zip(examples.items(), levels, strict=True)):
        left, right = panels[2 * row : 2 * row + 2]
        seconds = len(x) / SAMPLE_RATE_HZ
        if row:
            left.plot(np.arange(len(clean)) / SAMPLE_RATE_HZ, clean, color=GRAY, linewidth=0.5)
        left.plot(np.arange(len(x)) / SAMPLE_RATE_HZ, x, color=BLUE, linewidth=0.5, alpha=0.8)
        right.grid(visible=False)
        right.imshow(
            level.T,
            origin="lower",
            aspect="auto",
            cmap="Greys",
            vmin=top - RANGE_DB,
            vmax=top,
            extent=(0, seconds, 0, SAMPLE_RATE_HZ / 2000),
        )
        time = "seconds" if row == len(examples) - 1 else ""
        label(left, time, "", title)
        label(right, time, "kHz", "")
    return figure
