"""Augmentation of waveforms in the time domain, on the device (Kharitonov et al. 2020).

Windows x are float32 at 16 kHz. The random draws for a row do not depend on the batch size, and
the draws for an effect do not depend on the other effects. No effect moves sound in time, so
contexts of one augmented copy can predict latents of another. An effect leaks at most as much of
the future into a context as it looks ahead:

    dropout, noise, reverb   0
    pitch                    32 ms, but almost all of the leak is within 16 ms
    band_reject              up to about 1 / (5 * EDGE_HZ) s, depending on the width of the band

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

#: Frame and hop length of the phase vocoder in samples: 32 and 8 ms.
FRAME, HOP = 512, 128
#: Width of the fade at each end of a rejected band, in Hz.
EDGE_HZ = 50.0
#: Growth of a magnitude between consecutive frames above which its frequency has an onset.
ONSET_RATIO = 8.0
#: Maximum pitch shift, one octave.
MAX_CENTS = 1200.0
#: Decay by 60 dB in amplitude, as a natural logarithm.
DECAY_NEPER = math.log(1000)
#: Shortest reverberation time relative to the longest.
MIN_REVERB_FRACTION = 0.1


class Ranges(NamedTuple):
    """Ranges of each effect's uniform draws, with the first four defaults as in CPC2."""

    pitch_cents: float | int = 300.0  # maximum shift up or down; 100 cents are a semitone
    snr_low_db: float | int = 5.0  # range of the signal-to-noise ratio
    snr_high_db: float | int = 20.0
    dropout_ms: float | int = 50.0  # maximum duration of the silence
    reverb_seconds: float | int = 0.5  # maximum time of a decay by 60 dB; the minimum is a tenth
    band_hz: float | int = 1000.0  # maximum width of the rejected band


def check_effects(
    effects: Sequence[str], ranges: Ranges, window_samples: int, batch_size: int
) -> None:
    """Validate effects and ranges for batches with the given number and length of windows."""
    for name in effects:
        if name not in EFFECTS:
            raise UserError(f"effect {name!r} is unknown: choose from {', '.join(EFFECTS)}")
    if not effects or len(set(effects)) < len(effects):
        raise UserError(f"the effects are {', '.join(effects) or 'none'}: give distinct effects")
    if not ranges.snr_low_db <= ranges.snr_high_db:
        raise UserError(
            f"the SNR range is {ranges.snr_low_db:g} to {ranges.snr_high_db:g} dB: give the lower "
            "bound first"
        )
    for name, value, limit in (
        ("pitch_cents", ranges.pitch_cents, MAX_CENTS),
        ("dropout_ms", ranges.dropout_ms, 1e3 * window_samples / SAMPLE_RATE_HZ),
        ("band_hz", ranges.band_hz, SAMPLE_RATE_HZ / 2),
        ("reverb_seconds", ranges.reverb_seconds, 10.0),
    ):
        if not 0 < value <= limit:
            raise UserError(
                f"{name} is {value:g}: choose more than 0 and, for windows of {window_samples:,} "
                f"samples, at most {limit:g}"
            )
    if "pitch" in effects and window_samples < FRAME:
        raise UserError(
            f"windows have {window_samples} samples, fewer than the {FRAME} that pitch needs: use "
            "longer windows, or remove pitch from the effects"
        )
    if "noise" in effects and batch_size < 2:
        raise UserError(
            "noise needs another window (got a batch of 1): use more windows or another effect"
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
    """Apply effects to windows in the given order, with independent draws for each row.

    If `num_samples` is given, the samples of a row beyond it count as 0 and stay 0. A row for which
    an effect returns non-finite numbers is returned unchanged.

    `speaker` contains the speaker index of each row. If it is given, a row's noise is a window of
    another speaker, provided that the batch has one.

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
    """Draw another row of the batch for each row, by another speaker if the batch has one."""
    row = jnp.arange(number)
    is_other = row[:, None] != row
    if speaker is not None:
        speaker_of = jnp.asarray(speaker)
        is_stranger = speaker_of[:, None] != speaker_of
        is_other = jnp.where(is_stranger.any(axis=1, keepdims=True), is_stranger, is_other)
    return jax.random.categorical(rng, jnp.where(is_other, 0.0, -jnp.inf))


def mix(
    x: Float[Array, " s"], noise: Float[Array, " s"], snr_db: Float[Array, ""]
) -> Float[Array, " s"]:
    """Add noise to x with the gain g at which the signal-to-noise ratio is `snr_db`.

    The ratio is 10 log10(sum x^2 / sum (g noise)^2).
    """
    power, other = jnp.square(x).sum(), jnp.square(noise).sum()
    wanted = power / jnp.where(other > 0, other, 1) * 10 ** (-snr_db / 10)
    return x + jnp.sqrt(jnp.where(other > 0, wanted, 0)) * noise


def shift_pitch(
    x: Float[Array, " s"], cents: Float[Array, ""], most_cents: float | int = MAX_CENTS
) -> Float[Array, " s"]:
    """Scale all frequencies by 2^(cents / 1200), preserving length and tempo.

    The signal x must have at least `FRAME` samples. It is resampled to the new pitch and stretched
    back to its length by a phase vocoder, which locks the phase of each bin to its neighbours
    (Puckette 1995). The phase advance is measured by a second transform one hop earlier, so no
    phase is unwrapped and 0 cents return x. `most_cents` bounds `cents` and determines the amount
    of computation.
    """
    ratio, size = 2 ** (cents / 1200), len(x)
    # Frame m is centred at (m - 1) HOP in the result, and at (m - 1) HOP / ratio in the input.
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
        # An onset cannot continue a phase, so it keeps its own.
        continues = (jnp.abs(spectrum) < ONSET_RATIO * jnp.abs(before)) & (jnp.abs(turn) > 1e-20)
        spectrum *= jnp.where(continues, turn / jnp.maximum(jnp.abs(turn), 1e-20), 1)
        return spectrum, spectrum

    _, spectra = jax.lax.scan(join, here[0], (here, before))
    begin = HOP + FRAME // 2
    joined = _overlap_add(jnp.fft.irfft(spectra, FRAME) * window)[begin : begin + size]
    return joined / (jnp.square(window).sum() / HOP)


def _lock(spectrum: Complex[Array, " bins"]) -> Complex[Array, " bins"]:
    """Lock phases to louder neighbouring bins, since the phases of a partial alternate per bin."""
    padded = jnp.pad(spectrum, 1)
    return spectrum - padded[:-2] - padded[2:]


def _interpolate(x: Float[Array, " s"], at: Float[Array, " n"]) -> Float[Array, " n"]:
    """Interpolate x at `at` by Catmull-Rom cubics through four samples, with 0 outside of x."""
    whole = jnp.floor(at)
    part, padded = at - whole, jnp.pad(x, 4)
    index = jnp.clip(whole.astype(jnp.int32), -3, len(x) + 1) + 4  # all four are 0 beyond the ends
    a, b, c, d = (padded[index + k] for k in (-1, 0, 1, 2))
    left, right = (c - a) / 2, (d - b) / 2
    cubic = 2 * (b - c) + left + right
    return b + part * (left + part * (3 * (c - b) - 2 * left - right + part * cubic))


def _overlap_add(frames: Float[Array, "m w"]) -> Float[Array, " n"]:
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
    """Convolve x with a random room response h, and truncate the result to the length of x.

    The response h is 1 at time 0, followed by noise that decays by 60 dB in `seconds`. The energy
    of the noise is `seconds / most_seconds` times the energy of the direct sound.
    """
    time = jnp.arange(1, 1 + round(most_seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    tail = jax.random.normal(rng, time.shape) * jnp.exp(-DECAY_NEPER * time / seconds)
    tail *= jnp.sqrt(seconds / most_seconds / jnp.square(tail).sum())
    size = _transform_size(len(x) + len(time))
    wet = jnp.fft.irfft(jnp.fft.rfft(x, size) * jnp.fft.rfft(tail, size), size)
    return x + jnp.pad(wet, (1, 0))[: len(x)]  # the tail starts one sample after the sound


def reject_band(
    x: Float[Array, " s"], low_hz: Float[Array, ""], high_hz: Float[Array, ""]
) -> Float[Array, " s"]:
    """Remove frequencies from `low_hz` to `high_hz`, with a fade over `EDGE_HZ` at each end."""
    size = _transform_size(len(x) + SAMPLE_RATE_HZ // 10)  # avoids wrapping around the end
    frequency = jnp.arange(size // 2 + 1) * (SAMPLE_RATE_HZ / size)
    outside = jnp.maximum(low_hz - frequency, frequency - high_hz)
    kept = (1 - jnp.cos(jnp.pi * jnp.clip(outside / EDGE_HZ, 0, 1))) / 2
    return jnp.fft.irfft(jnp.fft.rfft(x, size) * kept, size)[: len(x)]


def silence(
    x: Float[Array, " s"], start: Int[Array, ""], length: Int[Array, ""] | int
) -> Float[Array, " s"]:
    """Return x with `length` samples from `start` set to zero."""
    index = jnp.arange(len(x))
    return jnp.where((index >= start) & (index < start + length), 0, x)


def _draw_pitch(ranges: Ranges, rng: Array, x: Array, *_: Array) -> Array:
    limit = ranges.pitch_cents
    return shift_pitch(x, jax.random.uniform(rng, (), minval=-limit, maxval=limit), limit)


def _draw_noise(ranges: Ranges, rng: Array, x: Array, _: Array, other: Array) -> Array:
    low, high = ranges.snr_low_db, ranges.snr_high_db
    return mix(x, other, jax.random.uniform(rng, (), minval=low, maxval=high))


def _draw_reverb(ranges: Ranges, rng: Array, x: Array, num_samples: Array, _: Array) -> Array:
    rng_room, rng_tail = jax.random.split(rng)
    limit = ranges.reverb_seconds
    seconds = jax.random.uniform(rng_room, (), minval=MIN_REVERB_FRACTION * limit, maxval=limit)
    wet = reverberate(rng_tail, x, seconds, limit)
    wet = silence(wet, num_samples, len(x))
    power, other = jnp.square(x).sum(), jnp.square(wet).sum()
    return wet * jnp.sqrt(power / jnp.where(other > 0, other, 1))


def _draw_band(ranges: Ranges, rng: Array, x: Array, *_: Array) -> Array:
    width, position = jax.random.uniform(rng, (2,))
    width = width * ranges.band_hz
    low_hz = position * (SAMPLE_RATE_HZ / 2 - width)
    return reject_band(x, low_hz, low_hz + width)


def _draw_dropout(ranges: Ranges, rng: Array, x: Array, num_samples: Array, _: Array) -> Array:
    rng_length, rng_start = jax.random.split(rng)
    limit = int(ranges.dropout_ms * SAMPLE_RATE_HZ / 1000)
    length = jax.random.randint(rng_length, (), 0, limit + 1)
    start = jax.random.randint(rng_start, (), 0, jnp.maximum(num_samples - length, 0) + 1)
    return silence(x, start, length)


def _transform_size(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()


#: Effects by name. Each maps (ranges, rng, x (s,), num_samples, another row (s,)) to (s,).
DRAWS = {
    "pitch": _draw_pitch,
    "noise": _draw_noise,
    "reverb": _draw_reverb,
    "band_reject": _draw_band,
    "dropout": _draw_dropout,
}
EFFECTS = tuple(DRAWS)
