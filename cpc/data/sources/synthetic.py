"""Synthetic recordings: speakers utter Markov chains of phones with known mutual information."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cpc.data.recordings import SAMPLE_RATE_HZ, Recordings
from cpc.types import UserError

#: A state lasts one frame of 10 ms, so k frames ahead corresponds to the k-th power of the chain.
FRAME_SAMPLES = 160
LOW_HZ, HIGH_HZ = (300.0, 900.0), (1200.0, 3200.0)
#: Maximum factor by which speakers scale the frequencies of phones up or down.
SPEAKER_RANGE = 1.25
AMPLITUDE = 0.1
#: Probability that a phone lasts another frame.
STAY = 0.8
#: Probability that a phone changes to its successor, modulo the number of phones, if it changes.
ONWARD = 0.75
NOISE_RMS = 0.002


class Synthetic(NamedTuple):
    """Synthetic recordings with their phone labels."""

    recordings: Recordings
    labels: dict[str, np.ndarray]
    """int32 phone of each 10 ms frame, by utterance id."""
    label_names: tuple[str, ...]


def phone_chain(num_phones: int) -> Float[np.ndarray, "p p"]:
    """Return the transition matrix between phones, whose rows sum to 1.

    A phone stays with probability `STAY`. Otherwise it changes to its successor, modulo the number
    of phones, with probability `ONWARD`, or to one of the others. All phones are equally frequent.
    """
    others = max(num_phones - 2, 1)
    chain = np.full((num_phones, num_phones), (1 - STAY) * (1 - ONWARD) / others)
    phones = np.arange(num_phones)
    chain[phones, (phones + 1) % num_phones] = (1 - STAY) * ONWARD
    chain[phones, phones] = STAY
    return chain / chain.sum(axis=1, keepdims=True)


def stationary(chain: Float[np.ndarray, "p p"]) -> Float[np.ndarray, " p"]:
    """Return the stationary distribution pi of a chain P, with pi P = pi, in float64."""
    num_phones = len(chain)
    equations = np.vstack([chain.T - np.eye(num_phones), np.ones(num_phones)])
    return np.linalg.lstsq(equations, np.r_[np.zeros(num_phones), 1.0], rcond=None)[0]


def synthetic_information(
    offset: int, chain: Float[np.ndarray, "p p"], num_speakers: int = 1
) -> float:
    """Return the exact mutual information of two frames `offset` apart, in nats.

    The information is I = ln S + sum_ij pi_i (P^k)_ij ln((P^k)_ij / pi_j) for S equally likely
    speakers, the chain P, its stationary distribution pi and k = offset. Phone and speaker are
    independent, so their information adds (Cover and Thomas, Elements of Information Theory,
    2006, section 2.5).

    I bounds the information between the samples of two frames. A context and a latent that depend
    on several frames have the information of their nearest two frames, so `offset` is the distance
    from the last frame of the context to the first frame of the latent. If the distance is 0 or
    less, context and latent overlap and share more information.

    >>> round(synthetic_information(3, np.full((4, 4), 0.25), num_speakers=2), 4)
    0.6931
    """
    if offset < 0:
        raise UserError(f"offset is {offset}: give 0 or more frames")
    weights = stationary(chain)
    later = np.linalg.matrix_power(chain, offset)
    joint = weights[:, None] * later
    ratio = np.where(joint > 0, later / weights, 1.0)
    return float(np.log(num_speakers) + np.sum(joint * np.log(ratio)))


def make_synthetic(
    *,
    num_speakers: int,
    utterances_per_speaker: int,
    seconds: float,
    chain: Float[np.ndarray, "p p"],
    seed: int,
) -> Synthetic:
    """Make recordings of a phone chain by equally frequent speakers, rendered on demand.

    A frame consists of weak noise and two sinusoids at the phone's formants, whose frequencies are
    scaled by a factor per speaker. Samples are a pure function of (seed, utterance, position).
    """
    num_utterances = num_speakers * utterances_per_speaker
    num_frames = round(seconds * SAMPLE_RATE_HZ / FRAME_SAMPLES)
    if min(num_utterances, num_frames) < 1:
        raise UserError(
            f"synthetic recordings are empty (got {num_utterances} utterances of {seconds} s): "
            "give at least one utterance of 0.01 s"
        )
    states = np.stack([_states(chain, num_frames, seed, i) for i in range(num_utterances)])
    scales = np.geomspace(1 / SPEAKER_RANGE, SPEAKER_RANGE, num_speakers + 2)[1:-1]
    formants = _formants(len(chain))

    def read(index: int, start: int, stop: int) -> np.ndarray:
        rng = np.random.default_rng((seed, 1, index))
        noise = NOISE_RMS * rng.standard_normal(num_frames * FRAME_SAMPLES, np.float32)
        first, last = start // FRAME_SAMPLES, -(-stop // FRAME_SAMPLES)
        frequencies = formants[states[index, first:last]] * scales[index % num_speakers]
        tones = _tones(frequencies)[start - first * FRAME_SAMPLES :]
        return np.round(32768 * (tones[: stop - start] + noise[start:stop])).astype(np.int16)

    names = tuple(f"synthetic-{i:05d}" for i in range(num_utterances))
    recordings = Recordings(
        names=names,
        speakers=tuple(f"speaker-{i % num_speakers:03d}" for i in range(num_utterances)),
        lengths=np.full(num_utterances, num_frames * FRAME_SAMPLES, np.int64),
        read=read,
        rms=np.full(num_utterances, np.hypot(AMPLITUDE, NOISE_RMS), np.float32),
        fingerprint=f"synthetic {seed} {num_speakers} {num_utterances} {seconds} {chain.tolist()}",
    )
    labels = {name: row.astype(np.int32) for name, row in zip(names, states, strict=True)}
    return Synthetic(recordings, labels, tuple(f"phone-{i}" for i in range(len(chain))))


def _states(
    chain: Float[np.ndarray, "p p"], num_frames: int, seed: int, index: int
) -> Int[np.ndarray, " t"]:
    """Sample the chain from its stationary distribution by inverting cumulative probabilities."""
    uniform = np.random.default_rng((seed, 0, index)).random(num_frames)
    cumulative = np.cumsum(chain, axis=1)
    last = len(chain) - 1
    state = min(int(np.searchsorted(np.cumsum(stationary(chain)), uniform[0], "right")), last)
    states = [state]
    for u in uniform[1:]:
        state = min(int(np.searchsorted(cumulative[state], u, "right")), last)
        states.append(state)
    return np.asarray(states, np.int32)


def _formants(num_phones: int) -> Float[np.ndarray, "p 2"]:
    fraction = np.arange(num_phones) / num_phones
    low = LOW_HZ[0] * (LOW_HZ[1] / LOW_HZ[0]) ** fraction
    golden = (np.arange(num_phones) * 0.618) % 1.0
    high = HIGH_HZ[0] * (HIGH_HZ[1] / HIGH_HZ[0]) ** golden
    return np.stack([low, high], axis=1)


def _tones(frequencies_hz: Float[np.ndarray, "t 2"]) -> Float[np.ndarray, " s"]:
    """Render two tones per frame, each from phase 0, so that frames share only the state."""
    seconds = np.arange(FRAME_SAMPLES) / SAMPLE_RATE_HZ
    angles = 2 * np.pi * frequencies_hz[:, :, None] * seconds
    return AMPLITUDE * np.sin(angles).sum(axis=1).reshape(-1)
