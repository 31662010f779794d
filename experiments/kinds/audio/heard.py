"""From windows of the pack to what a model takes, augmented in training; and how that sounds.

A run with augmentation has augmentation/*.wav: a window of its training before and after each
effect, and after all of them.
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


FOLDER, CLEAN = "augmentation", "clean"
TITLES = {
    CLEAN: "as recorded",
    "pitch": "pitch",
    "noise": "another window as noise",
    "reverb": "reverberation",
    "band_reject": "a band taken out",
    "dropout": "a silence",
}
SIDES = {
    "past": "Contexts of augmented sound predict latents of the original sound.",
    "future": "Contexts of the original sound predict latents of augmented sound.",
    "both": "Contexts of augmented sound predict latents of the same sound, augmented differently.",
}
#: Of a spectrogram: samples of a frame and between frames, and dB shown below the loudest.
FRAME, HOP, RANGE_DB = 400, 80, 70


def apply_each(config: Config, batch: Batch, rng: Any) -> dict[str, np.ndarray]:
    """Return the first window of a packed batch by name: clean, after each effect, after all."""
    batch, effects = unpack(batch), tuple(config.augment.effects)
    wanted: dict[str, Sequence[str]] = {name: (name,) for name in effects}
    if len(effects) > 1:
        wanted["+".join(effects)] = effects

    @jax.jit
    def apply(batch: Batch) -> dict[str, Any]:
        return {name: augment(config, batch, rng, each)[0] for name, each in wanted.items()}

    heard = {CLEAN: batch["x"][0], **apply(batch)}
    return {name: np.asarray(heard[name]) for name in (CLEAN, *wanted)}


def record_augmentation(
    config: Config, workdir: pathlib.Path, draw: Callable[[int], Batch]
) -> None:
    """Write a window of the training before and after each effect, once, if there is any."""
    folder = workdir / FOLDER
    if config.augment.side == "none" or any(folder.glob("*")):
        return
    heard = apply_each(config, draw(0), jax.random.key(config.seed))
    loudest = max(float(np.abs(x).max()) for x in heard.values())
    for number, (name, x) in enumerate(heard.items()):
        samples = np.round(32767 * (0.9 * x / max(loudest, 1e-9))).astype(np.int16)
        with replacing(folder / f"{number}_{name}.wav", is_durable=False) as part:
            soundfile.write(part, samples, SAMPLE_RATE_HZ, format="WAV")


def from_wav(content: bytes) -> np.ndarray:
    """Return the waveform of a file of `record_augmentation`; an error if it is another's."""
    samples, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    if samples.ndim != 1 or len(samples) < FRAME:
        raise ValueError("no sound of ours")
    return samples.astype(np.float32) / 32767


def augmentation_section(run: Run) -> Section | None:
    """Return the sound of a training window before and after each effect, heard and drawn."""
    heard, sounds, lost = {}, [], []
    for path in sorted((run.workdir / FOLDER).glob("*.wav")):
        name = path.stem.partition("_")[2]
        title = TITLES.get(name, "all: " + name.replace("+", ", then ").replace("_", " "))
        try:
            content = path.read_bytes()
            heard[title] = from_wav(content)
            sounds.append(Sound(title, f"{FOLDER}/{path.name}", content))
        except (OSError, ValueError, soundfile.LibsndfileError):
            lost.append(f"{path.name} is left out: it is damaged.")
    if not heard:
        return None
    side = run.config.get("augment", {}).get("side", "")
    told = f"{SIDES.get(side, '')} Only in training: evaluation and probes use the original."
    caption = (
        "Waveforms (gray: the window as recorded) and spectrograms, in which dark is loud, over a "
        f"range of {RANGE_DB} dB."
    )
    title = "A training window, before and after each effect"
    figure = Figure("augmentation", draw_sounds(heard), title, caption)
    return Section("Augmentation, heard and drawn", [told.strip(), *lost], [figure], sounds=sounds)


def spectrogram(x: np.ndarray) -> np.ndarray:
    """Return levels in dB (t, bins) of frames of a waveform.

    >>> spectrogram(np.zeros(400)).shape
    (1, 201)
    """
    frames = np.lib.stride_tricks.sliding_window_view(x, FRAME)[::HOP] * np.hanning(FRAME)
    return 20 * np.log10(np.abs(np.fft.rfft(frames)) + 1e-6)


def draw_sounds(heard: dict[str, np.ndarray]) -> Any:
    """Return a figure of waveforms beside their spectrograms, a row a sound."""
    from cpc.report.draw import BLUE, GRAY, label, make_figure

    figure, panels = make_figure(2 * len(heard), num_columns=2, row_height=1.9)
    clean = next(iter(heard.values()))
    levels = [spectrogram(x) for x in heard.values()]
    top = max(float(level.max()) for level in levels)
    for row, ((title, x), level) in enumerate(zip(heard.items(), levels, strict=True)):
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
        time = "seconds" if row == len(heard) - 1 else ""
        label(left, time, "", title)
        label(right, time, "kHz", "")
    return figure
