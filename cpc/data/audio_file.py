"""One audio file as mono at 16 kHz: any part of it, by seeking, or all from its beginning."""

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

#: Endings of files that hold another format of the same name if libsndfile does not read them:
#: layer II, and NIST files of which some are compressed by shorten.
AMBIGUOUS_SUFFIXES = frozenset({
    ".8svx", ".avr", ".iff", ".ircam", ".mp1", ".mp2", ".nist", ".paf", ".sf", ".snd", ".svx",
    ".voc", ".wv1", ".wv2",
})  # fmt: skip
#: Endings of files that libsndfile reads.
AUDIO_SUFFIXES = AMBIGUOUS_SUFFIXES | {
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf",
    ".w64", ".rf64", ".sph",
}  # fmt: skip
#: Endings of files next to recordings that hold no sound: labels, transcripts and pictures.
COMPANION_SUFFIXES = DOCUMENTS | LISTS | {
    ".ali", ".bmp", ".cha", ".ctm", ".cue", ".eaf", ".gif", ".item", ".jpeg", ".jpg", ".lab",
    ".m3u", ".mlf", ".phn", ".phones", ".png", ".rttm", ".srt", ".stm", ".svg", ".textgrid",
    ".trn", ".trs", ".uem", ".vtt", ".wrd",
}  # fmt: skip
ADVICE = "convert it, e.g. ffmpeg -i {name} {stem}.flac"
#: Source read beyond each end of a window before resampling: the filter's tails are inside it.
MARGIN_SECONDS = 0.1
#: libsndfile 1.2 returns other samples than asked for after a seek into the last page of a Vorbis
#: file (libsndfile issue 885), so those are decoded from this much earlier.
VORBIS_LEAD_SECONDS = 8.0
#: Headers that promise other rates, or more frames a byte than silence takes, are wrong: to believe
#: them would fill memory and disk.
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
MAX_FRAMES_PER_BYTE = 8192
#: What precedes the sound of a WAV, tags and all, is rarely longer.
MOST_HEADER_BYTES = 4096
#: libsndfile's number of frames where a header leaves it open, as encoders that write to a pipe do.
UNKNOWN_FRAMES = 2**63 - 1
#: Lossy formats decode a little beyond full scale, 1; what goes further is on another scale.
MOST_BEYOND = 8.0
#: Seconds with sound by which channels are compared, and the power that is left if two cancel.
CHANNEL_SECONDS, MIN_POWER = 30.0, 0.01
#: Numbers, of all channels, that are decoded at a time, and lost where one of them does not decode.
BLOCK_VALUES = 2**16
#: kbit/s of layer III, by MPEG version 1 or not, and the number in a frame's header.
MP3_KBITS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
#: Of version 1; version 2 has a half, and 2.5 a quarter of it.
MP3_RATES_HZ = (44_100, 48_000, 32_000)
#: First four bytes of a frame of layer III, with a version, rate and number of kbit/s that exist.
MP3_FRAME = re.compile(
    rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][%s][\x00-\xff]"
    % b"".join(re.escape(bytes([byte])) for byte in range(0x10, 0xF0) if byte & 12 != 12)
)
#: Encoders fill up beginning and end, which libsndfile takes away.
MP3_PADDING_SECONDS = 0.5
#: A header of NIST's SPHERE.
NIST_BYTES = 1024
#: Levels by which samples stay as they are, and are clipped at full scale.
UNALTERED = Levels(1, 0.0, 1.0, -1.0, 1.0, is_int16=True)


class AudioFile(NamedTuple):
    """What the header says."""

    path: Path
    num_frames: int
    rate_hz: int
    is_plain: bool  # mono 16-bit at 16 kHz: samples are taken as they are
    lead_frames: int = 0  # decode from so many frames before what is wanted
    is_flac: bool = False  # all of it decodes, or it is damaged
    is_lossy: bool = False  # decoded is something like what was encoded
    is_float: bool = False  # samples may exceed full scale, and are all scaled then
    channel: int | None = None  # the channel that is read alone; None: the mean of all
    missing: str = ""  # what the header promises and the file lacks, or what stays unread

    @property
    def num_samples(self) -> int:
        """Samples at 16 kHz."""
        return self.num_frames * SAMPLE_RATE_HZ // self.rate_hz


def open_audio(path: Path) -> AudioFile:
    """Read the header; `UserError` says why the file is no recording."""
    check_name(path)
    check_file(path)
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise UserError(f"{path} is empty")
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path} is not audio: {error.error_string}") from error
    if info.format == "RAW":  # guessed by the ending
        raise UserError(f"{path} is not audio: it has no header")
    if not MIN_RATE_HZ <= info.samplerate <= MAX_RATE_HZ:
        raise UserError(
            f"{path} says {info.samplerate} Hz, not {MIN_RATE_HZ:,} to {MAX_RATE_HZ:,}: "
            "its header is damaged"
        )
    num_frames = info.frames if info.frames != UNKNOWN_FRAMES else _count_frames(path)
    if num_frames > MAX_FRAMES_PER_BYTE * num_bytes:
        raise UserError(
            f"{path} promises {num_frames:,} frames, more than its {num_bytes:,} bytes can hold: "
            "its header is damaged"
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
    if file.num_samples <= 0 and num_bytes > MOST_HEADER_BYTES:
        raise UserError(
            f"{path} holds no samples by its header, and {num_bytes:,} bytes: what wrote it was "
            "stopped before it completed the header"
        )
    if file.num_samples <= 0:
        raise UserError(f"{path} has no samples")
    return file


def _find_missing(log: str) -> str:
    """What libsndfile noted while it read a header, and goes on without.

    >>> _find_missing("data : 96000 (should be 47978)")
    'kept, but cut short: its header promises 96,000 bytes, and there are 47,978'
    """
    sizes = r"(?:data|Riff size|riff|SSND|Data Size) *: (\d+) \(should be (\d+)\)"
    for promised, there in re.findall(sizes, log):
        # What writes to a pipe promises 2 or 4 GB, give or take a header.
        of_pipe = min(abs(int(promised) - size) for size in (2**31, 2**32)) <= MOST_HEADER_BYTES
        if int(promised) > int(there) and not of_pipe:
            return (
                f"kept, but cut short: its header promises {int(promised):,} bytes, "
                f"and there are {int(there):,}"
            )
    if "lacks an end-of-stream bit" in log or "Junk after the last page" in log:
        return "kept, but cut short: its last page is missing"
    if "Corrupted bitstream" in log or "reports a hole at" in log:
        return "kept, but damaged: a page or more are missing"
    return ""


def find_unread(path: Path, file_format: str, num_frames: int, rate_hz: int) -> str:
    """Say what a file holds, or promises, beyond the frames that are read; nothing if empty.

    An MP3 without a count of its frames is taken to have the first one's bit rate throughout, and
    of several that were joined, or Ogg streams in a row, the first one's length is read. Of a NIST
    file that is cut short as many samples are read as are there.
    """
    seconds = num_frames / rate_hz
    if file_format == "NIST":
        with path.open("rb") as file:
            promised = re.search(rb"\nsample_count -i (\d+)", file.read(NIST_BYTES))
        if promised and int(promised[1]) > num_frames:
            return (
                f"kept, but cut short: its header promises {int(promised[1]):,} samples, and there "
                f"are {num_frames:,}"
            )
    if file_format not in ("MP3", "OGG"):
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if file_format == "MP3" and (there := mp3_seconds(content)) > seconds + MP3_PADDING_SECONDS:
            return f"kept, but only {seconds:,.1f} of its {there:,.1f} s are read: encode it again"
        # A page that begins a stream, after one that does not.
        if file_format == "OGG" and content.find(b"OggS\0\2", content.find(b"OggS\0\0")) > 0:
            return "kept, but only the first of its streams is read: encode it again, as one"
    return ""


def mp3_seconds(content: mmap.mmap | bytes) -> float:
    """Return the duration of all frames of layer III that follow another one."""
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
        elif content[position : position + 3] == b"ID3":  # a tag, which may hold an image
            a, b, c, d = content[position : position + 10].ljust(10, b"\0")[6:]
            position += 10 + (a << 21 | b << 14 | c << 7 | d)
            follows = False
        else:
            found = MP3_FRAME.search(content, position)
            position = found.start() if found else -1
            follows = False
    return seconds


def choose_channel(file: AudioFile) -> AudioFile:
    """Choose the loudest channel of a file whose channels cancel, as balanced lines do."""
    count, total, squares = 0, np.zeros(()), np.zeros(())
    with _open(file.path) as sound:
        if sound.channels == 1:
            return file
        while count < CHANNEL_SECONDS * file.rate_hz:
            frames = sound.read(BLOCK_VALUES // sound.channels + 1, "float64", always_2d=True)
            if not len(frames):
                break
            if np.isfinite(frames).all() and np.abs(frames).max() <= MOST_BEYOND:
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
    """Yield the whole file at 16 kHz in small parts, without seams; note how it is altered.

    Parts are int16 if `file.is_plain`, else float32, which may exceed full scale, 1. Ogg and MP3,
    which skip damage, may have fewer samples than the header says.
    """
    if not file.is_plain and file.channel is None:
        file = choose_channel(file)
    if file.channel is not None:
        note(f"kept, but its channels cancel: channel {file.channel + 1} is read alone")
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
                frames = np.zeros((0, sound.channels), dtype)  # the end of what decodes
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
                part = _fit(part, whole) if is_last else part
            num_frames, num_samples = end, num_samples + len(part)
            yield part
    if file.is_flac and num_frames < file.num_frames:
        raise _truncated(file, 0, file.num_frames, num_frames)
    if file.is_float and loudest > 1:
        note(f"kept, divided by its peak, which is {loudest:.4g} times full scale")


def read_samples(
    file: AudioFile, start: int, stop: int, levels: Levels | None = None
) -> Int[np.ndarray, " s"]:
    """Return samples `[start, stop)` at 16 kHz as int16.

    They equal that part of the whole file resampled, as the filter sees the samples beyond both
    ends, and with `levels`, those of the whole file, also brought into 16 bits. Without, samples
    beyond full scale are clipped and an offset stays.
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
    mono = _fit(mono[start - first_block * up :], stop - start)
    return to_int16(mono, levels or UNALTERED)


def _fit(samples: Float[np.ndarray, " a"], length: int) -> Float[np.ndarray, " s"]:
    """The resampler rounds the number of samples its own way, by one at the very end."""
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def _to_mono(
    file: AudioFile, frames: Float[np.ndarray, "a channels"], first: int
) -> Float[np.ndarray, " a"]:
    finite = np.isfinite(frames)
    if not finite.all():  # a cast would make silence of it, a resampler spread it
        seconds = (first + int(np.argmin(finite.all(axis=1)))) / file.rate_hz
        raise UserError(f"{file.path} has NaN or infinity in it, first at {seconds:.3f} s")
    loudest = float(np.abs(frames).max(initial=0))
    if loudest > MOST_BEYOND:
        raise UserError(
            f"{file.path} has samples of up to {loudest:,.0f}, and full scale is 1: divide them by "
            "32768, if they are of 16 bits"
        )
    return frames.mean(axis=1) if file.channel is None else frames[:, file.channel]


def _decode(
    file: AudioFile, start: int, stop: int, dtype: Literal["int16", "float32"]
) -> np.ndarray:
    """Source frames (stop - start, channels); `UserError` where the file is cut or damaged."""
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
        f"{file.path} is truncated: its header promises {file.num_frames:,} frames, "
        f"but frames {start} to {stop} gave {num}"
    )


class _Sound(soundfile.SoundFile):
    """Does not seek to where a read has ended, which fails at an end that no header names."""

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
    """Frames of a file whose header does not say: all of it is decoded."""
    num = 0
    with _open(path) as sound:
        block = max(1, BLOCK_VALUES // sound.channels)
        while found := len(sound.read(block, "float32", always_2d=True)):
            num += found
    return num
