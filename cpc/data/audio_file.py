"""One audio file as mono int16 at 16 kHz, any part of it, by seeking."""

from math import gcd
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import soundfile
import soxr
from jaxtyping import Float, Int

from cpc.data.recordings import SAMPLE_RATE_HZ
from cpc.types import UserError

#: What libsndfile reads of the formats that people keep speech in.
AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3"})
#: Source read beyond each end of a window before resampling: the filter's tails are inside it.
MARGIN_SECONDS = 0.1
#: libsndfile 1.2 returns other samples than asked for after a seek into the last page of a Vorbis
#: file (libsndfile issue 885), so those are decoded from this much earlier.
VORBIS_LEAD_SECONDS = 8.0


class AudioFile(NamedTuple):
    """What the header says."""

    path: Path
    num_frames: int
    rate_hz: int
    is_plain: bool
    """Mono 16-bit at 16 kHz: samples are taken as they are."""
    lead_frames: int = 0
    """Decode from so many frames before what is wanted."""

    @property
    def num_samples(self) -> int:
        """Samples at 16 kHz."""
        return self.num_frames * SAMPLE_RATE_HZ // self.rate_hz


def open_audio(path: Path) -> AudioFile:
    """Read the header; `UserError` says why the file is no recording."""
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path} is not audio: {error.error_string}") from error
    file = AudioFile(
        path,
        info.frames,
        info.samplerate,
        (info.channels, info.samplerate, info.subtype) == (1, SAMPLE_RATE_HZ, "PCM_16"),
        int(VORBIS_LEAD_SECONDS * info.samplerate) if info.subtype == "VORBIS" else 0,
    )
    if file.num_samples <= 0:
        raise UserError(f"{path} has no samples")
    return file


def read_samples(file: AudioFile, start: int, stop: int) -> Int[np.ndarray, " s"]:
    """Samples `[start, stop)` at 16 kHz as int16.

    A window of a file at another rate equals that part of the whole file resampled: it begins where
    the two grids of samples meet, and the filter sees what lies beyond both ends.
    """
    if file.is_plain:
        return _decode(file, start, stop, "int16")[:, 0]
    divisor = gcd(file.rate_hz, SAMPLE_RATE_HZ)
    up, down = SAMPLE_RATE_HZ // divisor, file.rate_hz // divisor
    margin = int(MARGIN_SECONDS * file.rate_hz)
    first_block = max(start * down // up - margin, 0) // down
    end = min(-(-stop * down // up) + margin, file.num_frames)
    mono = _decode(file, first_block * down, end, "float32").mean(axis=1)
    return _to_int16(_resample(mono, file.rate_hz), start - first_block * up, stop - start)


def _resample(mono: Float[np.ndarray, " a"], rate_hz: int) -> Float[np.ndarray, " c"]:
    return mono if rate_hz == SAMPLE_RATE_HZ else soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ)


def _to_int16(samples: Float[np.ndarray, " a"], start: int, length: int) -> Int[np.ndarray, " s"]:
    """Lossy formats decode beyond full scale, which int16 would wrap round."""
    part = np.clip(np.round(samples[start : start + length] * 32768), -32768, 32767)
    # The resampler rounds the number of samples its own way, by one at the very end.
    return np.pad(part, (0, length - len(part))).astype(np.int16)


def _decode(
    file: AudioFile, start: int, stop: int, dtype: Literal["int16", "float32"]
) -> np.ndarray:
    """Source frames (stop - start, channels); `UserError` where the file is cut or damaged."""
    begin = max(start - file.lead_frames, 0)
    try:
        frames, _ = soundfile.read(file.path, start=begin, stop=stop, dtype=dtype, always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{file.path} does not decode: {error.error_string}") from error
    if len(frames) != stop - begin:
        raise UserError(
            f"{file.path} is truncated: its header promises {file.num_frames} frames, "
            f"but frames {begin} to {stop} gave {len(frames)}"
        )
    return frames[start - begin :]
