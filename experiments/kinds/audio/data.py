"""Loading, splitting and labelling the recordings of an audio config."""

import hashlib
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc import data
from cpc.data import Recordings, align, select
from cpc.data.audio_file import AUDIO_SUFFIXES
from cpc.data.phones import MAX_EXTRA
from cpc.data.recordings import explain_ids, ids_of
from cpc.data.sources.voices import prepare_voices
from cpc.data.walk import Skipped, count_names
from cpc.evaluate import read_rows
from cpc.models import Model
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.command.run_dir import Fingerprint
from experiments.training import checks
from experiments.training.checks import data_root, name_of
from experiments.training.probes import lacks
from experiments.training.sequences import read_file_labels

#: Size of the synthetic source, small enough for tests that take seconds.
SYNTHETIC_SPEAKERS, SYNTHETIC_UTTERANCES, SYNTHETIC_PHONES = 4, 500, 8
#: Samples per label, which covers 10 ms.
LABEL_SAMPLES = data.SAMPLE_RATE_HZ // 100


class Phones(NamedTuple):
    """The phone labels of a data set. Some utterances may have none."""

    labels: dict[str, np.ndarray]
    """Int32 labels by utterance id, one every 10 ms. Unlabelled frames have label -1."""
    names: tuple[str, ...]


class AudioData(NamedTuple):
    """The recordings and labels of an audio experiment."""

    train: data.Recordings
    test: data.Recordings
    phones: dict[str, Phones]
    """Phone labels by the name of their source."""
    items: dict[str, list[Item]] = {}  # noqa: RUF012 (never written to)
    """ABX items, which are phone tokens, by item file name."""
    name: str = ""
    file_labels: dict[str, str] = {}  # noqa: RUF012 (never written to)
    """The label of each labelled utterance in `data.file_labels`."""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """Skipped and shortened recordings, each with the reason."""
        return (*self.train.skipped, *self.train.shortened)

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return fingerprints of the training and test recordings."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> AudioData:
    """Read, pack and split the recordings of `config.data`."""
    options = config.data
    if options.source == "synthetic":
        return _synthetic(config)
    lists = (options.train_list, options.test_list)
    if options.source == "voices":
        root, speaker_level = prepare_voices(log), 1
        lists = lists if any(lists) else (root / "train_split.txt", root / "test_split.txt")
    else:
        root, speaker_level = data_root(config), options.speaker_level
    phones, items = _read_labels(options, root)
    recordings = _pack(options, root, speaker_level, log)
    phones, items = drop_damaged(phones, items, recordings, log)
    if options.phones:
        name = pathlib.Path(options.phones).stem
        describe_labels(name, phones[name].labels, recordings.names, log)
    if lists[0] and lists[1]:
        files = (pathlib.Path(name).expanduser() for name in lists)
        train, test = data.split_by_lists(recordings, *map(data.read_list, files))
    else:
        train, test = data.split_by_utterance(recordings, options.test_fraction, config.seed)
    if not len(test):
        advice = "split the files, or set data.train_list and data.test_list"
        raise UserError(f"{root} has no test utterances, as speakers have one file each: {advice}")
    _describe(train, test, options.window_samples, log)
    labels: dict[str, str] = {}
    if options.file_labels:
        read = read_file_labels(options.file_labels, recordings.names, AUDIO_SUFFIXES)
        labels = {n: str(own) for n, own in zip(recordings.names, read, strict=True) if own}
    return AudioData(train, test, phones, items, name_of(config), labels)


def _read_labels(options, root):
    files, items = {}, {}
    if options.source == "voices":
        files |= {name: root / f"phones_{name}.txt" for name in ("festvox_ru", "asterisk_en")}
    if options.phones:
        files[pathlib.Path(options.phones).stem] = pathlib.Path(options.phones).expanduser()
    phones = {name: Phones(*data.read_alignments(file)) for name, file in files.items()}
    if options.item_file:
        file = pathlib.Path(options.item_file).expanduser()
        items[file.name] = data.read_items(file)
        if file.stem in phones:
            both = f"data.phones and data.item_file would both write probes/{file.stem}.item"
            raise UserError(f"{both}: rename one of the two files")
    return phones, items


def _pack(options, root, speaker_level, log):
    which = f"{root.resolve()} {options.source} {options.split} {options.speaker_level}"
    key = hashlib.sha256(which.encode(errors="surrogateescape")).hexdigest()[:12]
    path = data.cache_dir() / "packs" / f"{root.name}-{key}"
    how = {"max_skipped_fraction": options.max_skipped_fraction}
    if options.source == "librispeech_tfds":
        return data.pack(data.read_librispeech_tfds(root, options.split, log), path, log, **how)
    return data.pack_folder(root, path, log, speaker_level=speaker_level, **how)


def describe_labels(
    name: str, labels: Collection[str], recordings: Sequence[str], log: Callable[[str], object]
) -> None:
    """Log labelled utterances without a recording, often due to spaces or suffixes in the ids."""
    if lost := sorted(set(labels) - set(recordings)):
        some = ", ".join(lost[:3]) + ", ..." * (len(lost) > 3)
        log(
            f"{name}: {len(lost):,} of {len(labels):,} labelled utterances have no recording "
            f"({some}); {len(labels) - len(lost):,} of {len(recordings):,} recordings have "
            f"labels; {explain_ids(recordings)}"
        )


def drop_damaged(
    phones: dict[str, Phones],
    items: dict[str, list[Item]],
    recordings: data.Recordings,
    log: Callable[[str], object],
) -> tuple[dict[str, Phones], dict[str, list[Item]]]:
    """Drop and log labels and items that extend beyond the end of a damaged recording."""
    damages = (*recordings.skipped, *recordings.shortened)
    damaged = {one for path, _ in damages for one in ids_of(path)}
    lengths = dict(zip(recordings.names, recordings.lengths.tolist(), strict=True))

    def has_sound(name: str, num_samples: float) -> bool:
        # `align` also accepts a few extra labels.
        max_samples = lengths.get(name, 0) + MAX_EXTRA * LABEL_SAMPLES
        return name not in damaged or num_samples <= max_samples

    kept_phones, kept_items = {}, {}
    for name, (all_labels, names) in phones.items():
        labels = {u: own for u, own in all_labels.items() if has_sound(u, len(own) * LABEL_SAMPLES)}
        kept_phones[name] = Phones(labels, names)
        if number := len(all_labels) - len(labels):
            log(f"{name}: dropped the labels of {number:,} damaged recordings")
    for name, listed in items.items():
        own = [one for one in listed if has_sound(one.file, one.offset * data.SAMPLE_RATE_HZ)]
        kept_items[name] = own
        if number := len(listed) - len(own):
            log(f"{name}: dropped {number:,} items of damaged recordings")
    return kept_phones, kept_items


def _synthetic(config: Config) -> AudioData:
    made = data.make_synthetic(
        num_speakers=SYNTHETIC_SPEAKERS,
        utterances_per_speaker=SYNTHETIC_UTTERANCES,
        # Each utterance is one window, as positions in longer ones carry information too.
        seconds=config.data.window_samples / data.SAMPLE_RATE_HZ,
        chain=data.phone_chain(SYNTHETIC_PHONES),
        seed=config.seed,
    )
    train, test = data.split_by_utterance(made.recordings, config.data.test_fraction, config.seed)
    phones = {"synthetic": Phones(made.labels, made.label_names)}
    return AudioData(train, test, phones, name=name_of(config))


def known_nats(num_offsets: int, receptive_field: int, stride: int) -> dict[int, float]:
    """Return the mutual information in nats between the past and z_(t+k) for each offset k.

    The values are exact for the synthetic source. Past and latent share the speaker. If a latent
    sees `before` frames before its own, the nearest phones are k - before frames apart. Offsets
    whose latents share samples with the past have no finite limit and are omitted.
    """
    chain = data.phone_chain(SYNTHETIC_PHONES)
    before = -(-receptive_field // stride) - 1
    return {
        k: data.synthetic_information(k - before, chain, SYNTHETIC_SPEAKERS)
        for k in range(before + 1, num_offsets + 1)
    }


def frame_labels(labels: np.ndarray, start: int, num_frames: int, stride: int) -> np.ndarray:
    """Return the label at each encoder frame's middle sample.

    Labels are 10 ms apart. Frames are `stride` samples apart, and the first begins at sample
    `start`. Frames after the last label have label -1.

    >>> labels = np.array([5, 6, 7], np.int32)
    >>> frame_labels(labels, 90, 3, 160), frame_labels(labels, 0, 2, 240)
    (array([ 6,  7, -1]), array([5, 7]))
    """
    middles = start + stride * np.arange(num_frames) + stride // 2
    index = np.minimum(middles // LABEL_SAMPLES, len(labels))
    return np.append(labels, data.UNLABELLED)[index]


def num_labels(num_samples: int) -> int:
    """Return the number of 10 ms labels in `num_samples` samples, at least 1."""
    return max(1, int(num_samples) // LABEL_SAMPLES)


def frame_samples(feature: str, model: Model) -> int:
    """Return a feature's frame distance in samples: 10 ms for MFCC, else the encoder stride."""
    return data.SAMPLE_RATE_HZ // 100 if "mfcc" in feature else model.module.encoder.stride


def labels_of_frames(
    recordings: data.Recordings, labels: Sequence[np.ndarray], stride: int
) -> list[np.ndarray]:
    """Return each recording's frame labels, computed from `labels`, which are 10 ms apart."""
    return [
        frame_labels(own, 0, max(1, int(length) // stride), stride)
        for own, length in zip(labels, recordings.lengths, strict=True)
    ]


def label_frames(
    audio: AudioData, utterances: np.ndarray, starts: np.ndarray, num_frames: int, stride: int
) -> np.ndarray:
    """Return phone labels (b, frames) for training windows, with -1 for unlabelled frames."""
    labels = np.full((len(utterances), num_frames), data.UNLABELLED, np.int32)
    for row, (utterance, start) in enumerate(zip(utterances, starts, strict=True)):
        first = 0
        for phones in audio.phones.values():
            found = phones.labels.get(audio.train.names[int(utterance)])
            if found is not None:
                part = frame_labels(found, int(start), num_frames, stride)
                labels[row] = np.where(part >= 0, first + part, labels[row])
            first += len(phones.names)
    return labels


def subset_minutes(
    recordings: data.Recordings, minutes: float, by_speaker: bool = True
) -> data.Recordings:
    """Draw utterances until each speaker has `minutes` of speech.

    If `by_speaker` is False, `minutes` is the total. If `minutes` is 0, all utterances are kept.
    """
    if not minutes:
        return recordings
    kept, used = [], dict.fromkeys((*recordings.speakers, ""), 0.0)
    for i in np.random.default_rng(0).permutation(len(recordings)):
        speaker = recordings.speakers[i] if by_speaker else ""
        if used[speaker] < minutes:
            kept.append(int(i))
            used[speaker] += float(recordings.lengths[i]) / data.SAMPLE_RATE_HZ / 60
    return data.select(recordings, sorted(kept))


def data_locations(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the paths of recordings, phone labels and item files, keyed by name in scores."""
    options, ((name, root),) = config.data, checks.data_locations(config).items()
    files = {
        pathlib.Path(options.phones).stem: options.phones,
        pathlib.Path(options.item_file).name: options.item_file,
        pathlib.Path(options.file_labels).name: options.file_labels,
    }
    return {name: root} | {name: (file, *root) for name, file in files.items() if file}


def _describe(train, test, window_samples, log):
    hours, is_short = train.lengths / data.SAMPLE_RATE_HZ / 3600, train.lengths < window_samples
    log(
        f"data: {len(set(train.speakers))} speakers, {len(train):,} training utterances "
        f"({hours.sum():.2f} h; {is_short.sum():,} of them, {hours[is_short].sum():.2f} h, are "
        f"shorter than a window and padded), {len(test):,} test utterances; "
        f"{count_names(train.skipped, 'skipped')}, "
        f"{count_names(train.shortened, 'kept incomplete or altered')}"
    )


def fingerprint(part: data.Recordings) -> Fingerprint:
    """Return a fingerprint of recording names, lengths and loudness.

    Lengths and loudness may differ between audio decoders.
    """
    loudness = np.round(np.zeros(0) if part.rms is None else part.rms, 5)  # sums vary by CPU
    lengths = part.lengths.tobytes()
    return Fingerprint(len(part), repr(part.names).encode(), exact=lengths + loudness.tobytes())


#: Features that are networks trained on the labels and predict them without a probe.
TRAINED = {"supervised": "trained on", "tuned": "fine-tuned to"}


class Frames(NamedTuple):
    """A feature's frames for all utterances, used as `values` of an audio `FeatureSet`."""

    by_utterance: Mapping[str, Any]
    """Arrays (frames, width) by utterance. Empty for features fitted to a task's labels."""
    stride: int
    """Distance between frames in samples."""

    def read(self, names: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the frames of each utterance as an array."""
        return (read_rows(self.by_utterance[name]) for name in names)


def labelled_sets(
    data: AudioData, task: str, which: tuple[str, ...] = ("training", "test")
) -> Iterator[tuple[str, Phones, tuple[Recordings, ...]]]:
    """Yield each set of phone labels by name, with its labelled utterances for each `which`."""
    if not data.phones:
        problem = f"a probe of {task} needs phone labels"
        raise lacks(task, problem, "set data.phones to an alignment file")
    recordings = {"training": data.train, "test": data.test}
    for name, phones in data.phones.items():
        parts = tuple(select_named(recordings[kind], phones.labels) for kind in which)
        for kind, part in zip(which, parts, strict=True):
            if not len(part):
                raise UserError(f"no {kind} utterance has labels in {name}: check its ids")
        yield name, phones, parts


def select_named(part: Recordings, names: Collection[str]) -> Recordings:
    """Return the recordings with the given names."""
    return select(part, [i for i, name in enumerate(part.names) if name in names])


def aligned(part: Recordings, phones: Phones) -> list[np.ndarray]:
    """Return each utterance's phone labels, one every 10 ms."""
    return [
        align(phones.labels[utterance], num_labels(length), utterance)
        for utterance, length in zip(part.names, part.lengths, strict=True)
    ]


def check_trained(config: Config, part: Recordings, name: str) -> None:
    """Check that networks trained on labels can hold out an utterance for early stopping."""
    for feature in TRAINED:
        if feature in config.probe.features and len(part) < 2:
            problem = f"{name} has one labelled training utterance, but early stopping needs two"
            raise UserError(f"{problem}: remove {feature} from probe.features, or label more")
