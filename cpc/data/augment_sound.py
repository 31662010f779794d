"""Effects on waveforms, on the device: augmentation in time (Kharitonov et al. 2020).

Windows x are float32 at 16 kHz. What is drawn for a row does not depend on how many others there
are, nor an effect's draw on which others are asked for. No effect moves sound in time: what comes
out at a sample is of what was there, so that contexts of one copy can predict latents of another.
How far an effect looks ahead of a sample, and so how much a context learns of its future:

    dropout, noise, reverb   nothing
    pitch                    32 ms, almost all of it within 16
    band_reject              as far as the band is narrow, some 1 / (5 * EDGE_HZ) s

References:
    Kharitonov, Riviere, Synnaeve, Wolf, Mazare, Douze, Dupoux (2020), "Data augmenting contrastive
    learning of speech representations in the time domain".
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int, Key

from cpc.data.augment import each_row
from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.types import ArrayLike, UserError

#: Samples of a frame of the phase vocoder, and between frames: 32 and 8 ms.
FRAME, HOP = 512, 128
#: Over which a rejected band fades at either end.
EDGE_HZ = 50.0
#: By how many times a frequency is louder than one frame before, where it begins anew.
NEW = 8.0
#: An octave.
MOST_CENTS = 1200.0
#: 60 dB in amplitude, as a logarithm.
DECAY_NEPER = math.log(1000)
#: The shortest reverberation, as a fraction of the longest.
LEAST_ROOM = 0.1


class Ranges(NamedTuple):
    """What is drawn of each effect, uniformly. The first four are as CPC2 has them."""

    pitch_cents: float | int = 300.0  # up or down by at most this; 100 cents are a semitone
    snr_low_db: float | int = 5.0  # between these the signal stands above the noise
    snr_high_db: float | int = 20.0
    dropout_ms: float | int = 50.0  # the longest silence
    reverb_seconds: float | int = 0.5  # the longest decay by 60 dB; the shortest is a tenth of it
    band_hz: float | int = 1000.0  # the widest band that is taken out


def check_effects(
    effects: Sequence[str], ranges: Ranges, window_samples: int, batch_size: int
) -> None:
    """Check that effects can be applied to batches of so many windows of so many samples."""
    for name in effects:
        if name not in EFFECTS:
            raise UserError(f"there is no effect {name!r}: choose from {', '.join(EFFECTS)}")
    if not effects or len(set(effects)) < len(effects):
        raise UserError(f"the effects are {', '.join(effects) or 'none'}: name each once, and one")
    if not 0 < ranges.pitch_cents <= MOST_CENTS:
        raise UserError(
            f"pitch is moved by {ranges.pitch_cents:g} cents: choose more than 0 and at most "
            f"{MOST_CENTS:g}, an octave"
        )
    if not ranges.snr_low_db <= ranges.snr_high_db:
        raise UserError(
            f"noise lies {ranges.snr_low_db:g} to {ranges.snr_high_db:g} dB below the signal: "
            "these must ascend"
        )
    for name, value, most in (
        ("dropout_ms", ranges.dropout_ms, 1e3 * window_samples / SAMPLE_RATE_HZ),
        ("band_hz", ranges.band_hz, SAMPLE_RATE_HZ / 2),
        ("reverb_seconds", ranges.reverb_seconds, 10.0),
    ):
        if not 0 < value <= most:
            raise UserError(
                f"{name} is {value:g}: choose more than 0 and, of windows of {window_samples:,} "
                f"samples, at most {most:g}"
            )
    if "pitch" in effects and window_samples < FRAME:
        raise UserError(
            f"windows have {window_samples} samples, and pitch is heard over {FRAME}: take longer "
            "windows, or leave pitch out"
        )
    if "noise" in effects and batch_size < 2:
        raise UserError(
            "noise is another window of the batch, and a batch of 1 has no other: take more "
            "windows, or leave noise out"
        )


def augment_sound(
    rng: Key[Array, ""],
    x: Float[ArrayLike, "b s"],
    effects: Sequence[str],
    ranges: Ranges = Ranges(),
    *,
    speaker: Int[ArrayLike, " b"] | None = None,
    num_samples: Int[ArrayLike, " b"] | None = None,
) -> Float[Array, "b s"]:
    """Return windows after each of some effects, in their order, each row with draws of its own.

    What is beyond a row's `num_samples` (all of it without) is taken for zeros, and stays. A row of
    which an effect makes anything but finite numbers is given back as it came.

    `speaker` says whose each row is; noise is then another speaker's, where the batch has one.

    >>> x = jnp.ones((2, 1600))
    >>> augment_sound(jax.random.key(0), x, ["dropout"]).shape
    (2, 1600)
    """
    check_effects(effects, ranges, x.shape[1], len(x))
    length = jnp.full(len(x), x.shape[1]) if num_samples is None else jnp.asarray(num_samples)
    is_real = jnp.arange(x.shape[1]) < length[:, None]
    clean = y = jnp.where(is_real, jnp.asarray(x, jnp.float32), 0)
    others = clean[draw_others(jax.random.fold_in(rng, len(EFFECTS)), len(x), speaker)]
    others = jnp.where(is_real, others, 0)
    for name in effects:
        own = jax.random.fold_in(rng, EFFECTS.index(name))
        y = each_row(partial(DRAWS[name], ranges), own, y, length, others)
        y = jnp.where(is_real, y, 0)
    is_sound = jnp.isfinite(y).all(axis=1, keepdims=True)
    return jnp.where(is_sound, y, clean)


def draw_others(
    rng: Key[Array, ""], number: int, speaker: Int[ArrayLike, " b"] | None = None
) -> Int[Array, " b"]:
    """Return for each row of a batch another row: of another speaker, where there is one."""
    row = jnp.arange(number)
    is_other = row[:, None] != row
    if speaker is not None:
        of_row = jnp.asarray(speaker)
        is_stranger = of_row[:, None] != of_row
        is_other = jnp.where(is_stranger.any(axis=1, keepdims=True), is_stranger, is_other)
    return jax.random.categorical(rng, jnp.where(is_other, 0.0, -jnp.inf))


def mix(
    x: Float[Array, " s"], noise: Float[Array, " s"], snr_db: Float[Array, ""]
) -> Float[Array, " s"]:
    """Return x + g noise, g such that 10 log10(sum x^2 / sum (g noise)^2) is `snr_db`."""
    power, other = jnp.square(x).sum(), jnp.square(noise).sum()
    wanted = power / jnp.where(other > 0, other, 1) * 10 ** (-snr_db / 10)
    return x + jnp.sqrt(jnp.where(other > 0, wanted, 0)) * noise


def shift_pitch(
    x: Float[Array, " s"], cents: Float[Array, ""], most_cents: float | int = MOST_CENTS
) -> Float[Array, " s"]:
    """Return sound whose frequencies are 2^(cents / 1200) times as high; length and tempo stay.

    x, of at least `FRAME` samples, is read so many times as fast, which moves the pitch, and
    brought back to its length by a phase vocoder whose phases are locked to their neighbours'
    (Puckette 1995). Their advance is measured by a second transform one hop earlier, so that none
    is unwrapped and 0 cents give x. `most_cents` decides how much is computed.
    """
    ratio, size = 2 ** (cents / 1200), len(x)
    # Frame m is centred at (m - 1) HOP of the result: at (m - 1) HOP / ratio of what is read.
    num_frames, slowest = size // HOP + 3, 2 ** (most_cents / 1200)
    lead = FRAME // 2 + HOP + math.ceil(HOP * slowest)
    num_read = math.ceil((size + 2 * HOP) * slowest) + 2 * lead
    read = _interpolate(x, (jnp.arange(num_read) - lead) * ratio)
    centres = jnp.round((jnp.arange(num_frames) - 1) * HOP / ratio).astype(jnp.int32) + lead
    cut = jax.vmap(lambda centre: jax.lax.dynamic_slice_in_dim(read, centre - FRAME // 2, FRAME))
    window = jnp.hanning(FRAME + 1)[:-1]
    here, before = (jnp.fft.rfft(cut(centre) * window) for centre in (centres, centres - HOP))

    def join(last: Array, spectra: tuple[Array, Array]) -> tuple[Array, Array]:
        spectrum, before = spectra
        turn = _lock(last) * _lock(before).conj()
        # What begins has no phase to go on from, and keeps its own.
        goes_on = (jnp.abs(spectrum) < NEW * jnp.abs(before)) & (jnp.abs(turn) > 1e-20)
        spectrum *= jnp.where(goes_on, turn / jnp.maximum(jnp.abs(turn), 1e-20), 1)
        return spectrum, spectrum

    _, spectra = jax.lax.scan(join, here[0], (here, before))
    begin = HOP + FRAME // 2
    joined = _overlap_add(jnp.fft.irfft(spectra, FRAME) * window)[begin : begin + size]
    return joined / (jnp.square(window).sum() / HOP)


def _lock(spectrum: Complex[Array, " bins"]) -> Complex[Array, " bins"]:
    """Return bins with the phase of whichever neighbour is loud: a partial's alternate by bin."""
    padded = jnp.pad(spectrum, 1)
    return spectrum - padded[:-2] - padded[2:]


def _interpolate(x: Float[Array, " s"], at: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return x between its samples by cubics through four of them (Catmull and Rom); 0 outside."""
    whole = jnp.floor(at)
    part, padded = at - whole, jnp.pad(x, 4)
    index = jnp.clip(whole.astype(jnp.int32), -3, len(x) + 1) + 4  # all four are 0 at either end
    a, b, c, d = (padded[index + k] for k in (-1, 0, 1, 2))
    left, right = (c - a) / 2, (d - b) / 2
    cubic = 2 * (b - c) + left + right
    return b + part * (left + part * (3 * (c - b) - 2 * left - right + part * cubic))


def _overlap_add(frames: Float[Array, "m w"]) -> Float[Array, " n"]:
    """Return the sum of frames that begin HOP samples after each other."""
    parts = FRAME // HOP
    cut = frames.reshape(len(frames), parts, HOP)
    moved = [jnp.pad(cut[:, i], ((i, parts - 1 - i), (0, 0))) for i in range(parts)]
    return sum(moved[1:], moved[0]).reshape(-1)


def reverberate(
    rng: Key[Array, ""],
    x: Float[Array, " s"],
    seconds: Float[Array, ""],
    most_seconds: float | int = 0.5,
) -> Float[Array, " s"]:
    """Return sound in a room: x * h, as far as x is long.

    h is 1 at 0, followed by noise that decays by 60 dB in `seconds` and has, where that is
    `most_seconds`, as much energy as the direct sound; in a smaller room proportionally less.
    """
    time = jnp.arange(1, 1 + round(most_seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    tail = jax.random.normal(rng, time.shape) * jnp.exp(-DECAY_NEPER * time / seconds)
    tail *= jnp.sqrt(seconds / most_seconds / jnp.square(tail).sum())
    size = _transform_size(len(x) + len(time))
    wet = jnp.fft.irfft(jnp.fft.rfft(x, size) * jnp.fft.rfft(tail, size), size)
    return x + jnp.pad(wet, (1, 0))[: len(x)]  # the tail begins a sample after the sound


def reject_band(
    x: Float[Array, " s"], low_hz: Float[Array, ""], high_hz: Float[Array, ""]
) -> Float[Array, " s"]:
    """Return sound without the frequencies between two; the mask fades over `EDGE_HZ`."""
    size = _transform_size(len(x) + SAMPLE_RATE_HZ // 10)  # the end does not ring at the beginning
    frequency = jnp.arange(size // 2 + 1) * (SAMPLE_RATE_HZ / size)
    outside = jnp.maximum(low_hz - frequency, frequency - high_hz)
    kept = (1 - jnp.cos(jnp.pi * jnp.clip(outside / EDGE_HZ, 0, 1))) / 2
    return jnp.fft.irfft(jnp.fft.rfft(x, size) * kept, size)[: len(x)]


def silence(
    x: Float[Array, " s"], start: Int[Array, ""], length: Int[Array, ""] | int
) -> Float[Array, " s"]:
    """Return x with zeros in so many samples from `start` on."""
    index = jnp.arange(len(x))
    return jnp.where((index >= start) & (index < start + length), 0, x)


def _draw_pitch(ranges: Ranges, rng: Array, x: Array, *_: Array) -> Array:
    most = ranges.pitch_cents
    return shift_pitch(x, jax.random.uniform(rng, (), minval=-most, maxval=most), most)


def _draw_noise(ranges: Ranges, rng: Array, x: Array, _: Array, other: Array) -> Array:
    low, high = ranges.snr_low_db, ranges.snr_high_db
    return mix(x, other, jax.random.uniform(rng, (), minval=low, maxval=high))


def _draw_reverb(ranges: Ranges, rng: Array, x: Array, num_samples: Array, _: Array) -> Array:
    of_room, of_tail = jax.random.split(rng)
    most = ranges.reverb_seconds
    seconds = jax.random.uniform(of_room, (), minval=LEAST_ROOM * most, maxval=most)
    wet = reverberate(of_tail, x, seconds, most)
    wet = silence(wet, num_samples, len(x))
    power, other = jnp.square(x).sum(), jnp.square(wet).sum()
    return wet * jnp.sqrt(power / jnp.where(other > 0, other, 1))


def _draw_band(ranges: Ranges, rng: Array, x: Array, *_: Array) -> Array:
    width, place = jax.random.uniform(rng, (2,))
    width = width * ranges.band_hz
    low_hz = place * (SAMPLE_RATE_HZ / 2 - width)
    return reject_band(x, low_hz, low_hz + width)


def _draw_dropout(ranges: Ranges, rng: Array, x: Array, num_samples: Array, _: Array) -> Array:
    of_length, of_place = jax.random.split(rng)
    most = int(ranges.dropout_ms * SAMPLE_RATE_HZ / 1000)
    length = jax.random.randint(of_length, (), 0, most + 1)
    start = jax.random.randint(of_place, (), 0, jnp.maximum(num_samples - length, 0) + 1)
    return silence(x, start, length)


def _transform_size(least: int) -> int:
    """Return the next power of two: transforms of it are quick."""
    return 1 << (least - 1).bit_length()


#: What is applied to a row: (ranges, rng, x (s,), num_samples, another row (s,)) -> (s,).
DRAWS = {
    "pitch": _draw_pitch,
    "noise": _draw_noise,
    "reverb": _draw_reverb,
    "band_reject": _draw_band,
    "dropout": _draw_dropout,
}
#: The names of all effects.
EFFECTS = tuple(DRAWS)
