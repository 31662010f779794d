"""Decoding of audio files to mono at 16 kHz, by seeking or from beginning to end."""

import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import soundfile
import soxr
from jaxtyping import Float, Int

from cpc.data.recordings import SAMPLE_RATE_HZ, Levels, to_int16
from cpc.data.walk import DOCUMENTS, LISTS, check_file, check_name
from cpc.types import UserError

#: Suffixes shared by several formats. A file with such a suffix that libsndfile cannot read is in
#: another format, such as MPEG layer II, or NIST compressed by shorten.
AMBIGUOUS_SUFFIXES = frozenset({
    ".8svx", ".avr", ".iff", ".ircam", ".mp1", ".mp2", ".nist", ".paf", ".sf", ".snd", ".svx",
    ".voc", ".wv1", ".wv2",
})  # fmt: skip
#: Suffixes of formats that libsndfile reads.
AUDIO_SUFFIXES = AMBIGUOUS_SUFFIXES | {
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf",
    ".w64", ".rf64", ".sph",
}  # fmt: skip
#: Suffixes of files without sound that may accompany recordings, such as labels and pictures.
COMPANION_SUFFIXES = DOCUMENTS | LISTS | {
    ".ali", ".bmp", ".cha", ".ctm", ".cue", ".eaf", ".gif", ".item", ".jpeg", ".jpg", ".lab",
    ".m3u", ".mlf", ".phn", ".phones", ".png", ".rttm", ".srt", ".stm", ".svg", ".textgrid",
    ".trn", ".trs", ".uem", ".vtt", ".wrd",
}  # fmt: skip
ADVICE = "convert it, e.g. ffmpeg -i {name} {stem}.flac"
#: Margin read beyond each end of a window before resampling, which covers the filter's tails.
MARGIN_SECONDS = 0.1
#: libsndfile 1.2 returns wrong samples after a seek into the last page of a Vorbis file (libsndfile
#: issue 885), so Vorbis is decoded from this much earlier.
VORBIS_LEAD_SECONDS = 8.0
#: Limits on headers. A header with another rate, or with more frames per byte than digital silence
#: needs, is damaged and could fill memory and disk.
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
MAX_FRAMES_PER_BYTE = 8192
#: Maximum number of bytes before the samples of a WAV file, including tags.
MAX_HEADER_BYTES = 4096
#: Number of frames that libsndfile reports if the header has no frame count, as from a pipe.
UNKNOWN_FRAMES = 2**63 - 1
#: Largest plausible sample. Lossy formats decode slightly beyond full scale, 1.
MAX_BEYOND = 8.0
#: Seconds of sound used to compare channels, and the relative power below which they cancel.
CHANNEL_SECONDS, MIN_POWER = 30.0, 0.01
#: Number of values over all channels decoded at a time. A decoding error loses all of them.
BLOCK_VALUES = 2**16
#: Bit rates of MPEG layer III in kbit/s, for other versions and for version 1, by header field.
MP3_KBITS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
#: Sample rates of version 1. Version 2 has half, and version 2.5 a quarter of these rates.
MP3_RATES_HZ = (44_100, 48_000, 32_000)
#: First four bytes of a layer III frame with a valid version, sample rate and bit rate.
MP3_FRAME = re.compile(
    rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][%s][\x00-\xff]"
    % b"".join(re.escape(bytes([byte])) for byte in range(0x10, 0xF0) if byte & 12 != 12)
)
#: Maximum padding by encoders at the beginning and the end, which libsndfile removes.
MP3_PADDING_SECONDS = 0.5
#: Length of a NIST SPHERE header in bytes.
NIST_BYTES = 1024
#: Levels that leave samples unchanged, except for clipping at full scale.
UNALTERED = Levels(1, 0.0, 1.0, -1.0, 1.0, is_int16=True)


class AudioFile(NamedTuple):
    """Properties of an audio file, from its header."""

    path: Path
    num_frames: int
    rate_hz: int
    is_plain: bool  # mono 16-bit at 16 kHz, used without conversion
    lead_frames: int = 0  # frames to decode before the first wanted frame
    is_flac: bool = False  # an incomplete FLAC file counts as damaged
    is_lossy: bool = False
    is_float: bool = False  # samples may exceed full scale, and the file is then scaled down
    channel: int | None = None  # the only channel to read, or None for the mean of all channels
    missing: str = ""  # note on content that is declared by the header but missing or not read

    @property
    def num_samples(self) -> int:
        """Return the number of samples at 16 kHz."""
        return self.num_frames * SAMPLE_RATE_HZ // self.rate_hz


def open_audio(path: Path) -> AudioFile:
    """Read the header of an audio file, and raise `UserError` if it is not a recording."""
    check_name(path)
    check_file(path)
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise UserError(f"{path} is empty")
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path} is not audio: {error.error_string}") from error
    if info.format == "RAW":  # libsndfile guesses this from the suffix
        raise UserError(f"{path} is not audio: its header is missing")
    if not MIN_RATE_HZ <= info.samplerate <= MAX_RATE_HZ:
        raise UserError(f"{path} has a damaged header (got {info.samplerate} Hz): encode it again")
    num_frames = info.frames if info.frames != UNKNOWN_FRAMES else _count_frames(path)
    if num_frames > MAX_FRAMES_PER_BYTE * num_bytes:
        raise UserError(
            f"{path} is damaged ({num_frames:,} frames in {num_bytes:,} bytes): encode it again"
        )
    file = AudioFile(
        path,
        num_frames,
        info.samplerate,
        is_plain=(info.channels, info.samplerate, info.subtype) == (1, SAMPLE_RATE_HZ, "PCM_16"),
        lead_frames=int(VORBIS_LEAD_SECONDS * info.samplerate) if info.subtype == "VORBIS" else 0,
        is_flac=info.format == "FLAC",
        is_float=info.subtype in ("FLOAT", "DOUBLE"),
        is_lossy=not info.subtype.startswith(("PCM", "FLOAT", "DOUBLE", "ALAC")),
        missing=find_unread(path, info.format, num_frames, info.samplerate)
        or _find_missing(info.extra_info),
    )
    if file.num_samples <= 0 and num_bytes > MAX_HEADER_BYTES:
        raise UserError(
            f"{path} has {num_bytes:,} bytes but no samples (unfinished header): record it again"
        )
    if file.num_samples <= 0:
        raise UserError(f"{path} has no samples")
    return file


def _find_missing(log: str) -> str:
    """Return a note on header damage that libsndfile logged, or "" if it logged none."""
    sizes = r"(?:data|Riff size|riff|SSND|Data Size) *: (\d+) \(should be (\d+)\)"
    for declared, actual in re.findall(sizes, log):
        # Programs that write to a pipe declare 2 or 4 GB, give or take a header.
        of_pipe = min(abs(int(declared) - size) for size in (2**31, 2**32)) <= MAX_HEADER_BYTES
        if int(declared) > int(actual) and not of_pipe:
            return (
                f"kept, but truncated: its header declares {int(declared):,} bytes "
                f"and it has {int(actual):,}"
            )
    if "lacks an end-of-stream bit" in log or "Junk after the last page" in log:
        return "kept, but truncated: its last page is missing"
    if "Corrupted bitstream" in log or "reports a hole at" in log:
        return "kept, but damaged: a page or more are missing"
    return ""


def find_unread(path: Path, file_format: str, num_frames: int, rate_hz: int) -> str:
    """Return a note on file content that libsndfile ignores, or "" if it reads everything.

    For an MP3 file without a frame count, libsndfile assumes that all frames have the bit rate of
    the first frame. If several MP3 files or Ogg streams are joined, only the first is read. A
    truncated NIST file is read up to its end.
    """
    seconds = num_frames / rate_hz
    if file_format == "NIST":
        with path.open("rb") as file:
            declared = re.search(rb"\nsample_count -i (\d+)", file.read(NIST_BYTES))
        if declared and int(declared[1]) > num_frames:
            return (
                f"kept, but truncated: its header declares {int(declared[1]):,} samples "
                f"and it has {num_frames:,}"
            )
    if file_format not in ("MP3", "OGG"):
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if file_format == "MP3" and (total := mp3_seconds(content)) > seconds + MP3_PADDING_SECONDS:
            return f"kept, but only {seconds:,.1f} of its {total:,.1f} s are read: encode it again"
        # Find a page that begins a stream after a page that does not.
        if file_format == "OGG" and content.find(b"OggS\0\2", content.find(b"OggS\0\0")) > 0:
            return "kept, but only the first of its streams is read: encode it as one stream"
    return ""


def mp3_seconds(content: mmap.mmap | bytes) -> float:
    """Return the duration in seconds of layer III frames that directly follow another frame."""
    seconds, position, follows = 0.0, 0, False
    while 0 <= position < len(content):
        if MP3_FRAME.match(content, position):
            head = int.from_bytes(content[position : position + 4], "big")
            version, number, rate = head >> 19 & 3, head >> 12 & 15, head >> 10 & 3
            samples, rate_hz = 576 << (version == 3), MP3_RATES_HZ[rate] >> (2, 0, 1, 0)[version]
            seconds += follows * samples / rate_hz
            size = samples // 8 * 1000 * MP3_KBITS[version == 3][number] // rate_hz
            position += size + (head >> 9 & 1)
            follows = True
        elif content[position : position + 3] == b"ID3":  # a tag, which may contain an image
            a, b, c, d = content[position : position + 10].ljust(10, b"\0")[6:]
            position += 10 + (a << 21 | b << 14 | c << 7 | d)
            follows = False
        else:
            found = MP3_FRAME.search(content, position)
            position = found.start() if found else -1
            follows = False
    return seconds


def choose_channel(file: AudioFile) -> AudioFile:
    """Select the loudest channel if a file's channels cancel in the mean, as in balanced lines."""
    count, total, squares = 0, np.zeros(()), np.zeros(())
    with _open(file.path) as sound:
        if sound.channels == 1:
            return file
        while count < CHANNEL_SECONDS * file.rate_hz:
            frames = sound.read(BLOCK_VALUES // sound.channels + 1, "float64", always_2d=True)
            if not len(frames):
                break
            if np.isfinite(frames).all() and np.abs(frames).max() <= MAX_BEYOND:
                both = np.column_stack([frames, frames.mean(axis=1)])
                count += len(frames) * bool(frames.any())
                total, squares = total + both.sum(axis=0), squares + (both**2).sum(axis=0)
    if not count:
        return file
    *powers, left = np.maximum(squares / count - (total / count) ** 2, 0).tolist()
    if left >= 2 * MIN_POWER * np.mean(powers) / len(powers):
        return file
    return file._replace(channel=int(np.argmax(powers)))


def stream_mono(file: AudioFile, note: Callable[[str], object]) -> Iterator[np.ndarray]:
    """Yield a whole file at 16 kHz in short arrays, and call `note` for each alteration.

    Arrays are int16 if `file.is_plain`. Otherwise they are float32 and may exceed full scale, 1.
    Decoders of Ogg and MP3 skip damage, so such files may give fewer samples than their header
    declares.
    """
    if not file.is_plain and file.channel is None:
        file = choose_channel(file)
    if file.channel is not None:
        note(f"kept, but its channels cancel: only channel {file.channel + 1} is read")
    resampler = soxr.ResampleStream(file.rate_hz, SAMPLE_RATE_HZ, 1, dtype="float32")
    num_frames, num_samples, loudest, is_last = 0, 0, 0.0, False
    with _open(file.path) as sound:
        block = max(1, BLOCK_VALUES // sound.channels)
        while not is_last:
            wanted = min(block, file.num_frames - num_frames)
            dtype = "int16" if file.is_plain else "float32"
            try:
                frames = sound.read(wanted, dtype, always_2d=True)
            except soundfile.LibsndfileError:
                if file.is_flac or not num_frames:
                    raise
                frames = np.zeros((0, sound.channels), dtype)  # nothing decodes beyond here
            end = num_frames + len(frames)
            is_last = len(frames) < block or end == file.num_frames
            if file.is_plain:
                part = frames[:, 0]
            else:
                part = _to_mono(file, frames, num_frames)
                loudest = max(loudest, float(np.abs(part).max(initial=0)))
                if file.rate_hz != SAMPLE_RATE_HZ:
                    part = resampler.resample_chunk(part, last=is_last)
                whole = end * SAMPLE_RATE_HZ // file.rate_hz - num_samples
                part = fit_length(part, whole) if is_last else part
            num_frames, num_samples = end, num_samples + len(part)
            yield part
    if file.is_flac and num_frames < file.num_frames:
        raise _truncated(file, 0, file.num_frames, num_frames)
    if file.is_float and loudest > 1:
        note(f"kept, but divided by its peak, {loudest:.4g} times full scale")


def read_samples(
    file: AudioFile, start: int, stop: int, levels: Levels | None = None
) -> Int[np.ndarray, " s"]:
    """Return samples `[start, stop)` of a file at 16 kHz as int16.

    The samples equal those of the whole resampled file, since the filter also sees samples beyond
    both ends. The `levels` of the whole file determine the offset and scale. If `levels` is None,
    samples beyond full scale are clipped and a constant offset remains.
    """
    if file.is_plain:
        mono = _decode(file, start, stop, "int16")[:, 0]
        return to_int16(mono, levels or UNALTERED)
    divisor = gcd(file.rate_hz, SAMPLE_RATE_HZ)
    up, down = SAMPLE_RATE_HZ // divisor, file.rate_hz // divisor
    margin = int(MARGIN_SECONDS * file.rate_hz)
    first_block = max(start * down // up - margin, 0) // down
    end = min(-(-stop * down // up) + margin, file.num_frames)
    first = first_block * down
    mono = _to_mono(file, _decode(file, first, end, "float32"), first)
    if file.rate_hz != SAMPLE_RATE_HZ:
        mono = soxr.resample(mono, file.rate_hz, SAMPLE_RATE_HZ)
    mono = fit_length(mono[start - first_block * up :], stop - start)
    return to_int16(mono, levels or UNALTERED)


def fit_length(samples: Float[np.ndarray, " a"], length: int) -> Float[np.ndarray, " s"]:
    """Truncate or pad resampled sound, whose length may be rounded differently by one sample."""
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def _to_mono(
    file: AudioFile, frames: Float[np.ndarray, "a channels"], first: int
) -> Float[np.ndarray, " a"]:
    finite = np.isfinite(frames)
    if not finite.all():  # a cast would silence the value, and a resampler would spread it
        seconds = (first + int(np.argmin(finite.all(axis=1)))) / file.rate_hz
        raise UserError(f"{file.path} has NaN or infinity, first at {seconds:.3f} s: fix the file")
    loudest = float(np.abs(frames).max(initial=0))
    if loudest > MAX_BEYOND:
        raise UserError(
            f"{file.path} has samples up to {loudest:,.0f}, but full scale is 1: rescale the file"
        )
    return frames.mean(axis=1) if file.channel is None else frames[:, file.channel]


def _decode(
    file: AudioFile, start: int, stop: int, dtype: Literal["int16", "float32"]
) -> np.ndarray:
    """Return source frames (stop - start, channels), or raise `UserError` if any are missing."""
    begin = max(start - file.lead_frames, 0)
    with _open(file.path) as sound:
        if begin:
            sound.seek(begin)
        frames = sound.read(stop - begin, dtype, always_2d=True)
    if len(frames) != stop - begin:
        raise _truncated(file, begin, stop, len(frames))
    return frames[start - begin :]


def _truncated(file: AudioFile, start: int, stop: int, num: int) -> UserError:
    return UserError(
        f"{file.path} is truncated: its header declares {file.num_frames:,} frames, "
        f"but frames {start} to {stop} gave {num}"
    )


class _Sound(soundfile.SoundFile):
    """A sound file that does not seek after reads, as seeking fails if the header has no length."""

    def seekable(self) -> bool:
        return False


@contextmanager
def _open(path: Path) -> Iterator[_Sound]:
    try:
        with _Sound(path) as sound:
            yield sound
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path} does not decode: {error.error_string}") from error
    except (MemoryError, ValueError, OverflowError) as error:
        raise UserError(f"{path} does not decode: {error or 'it takes too much memory'}") from error


def _count_frames(path: Path) -> int:
    with _open(path) as sound:
        block = max(1, BLOCK_VALUES // sound.channels)
        return sum(iter(lambda: len(sound.read(block, "float32", always_2d=True)), 0))
