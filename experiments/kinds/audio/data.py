"""From the data section of an audio config to recordings, their split and their labels."""

import hashlib
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpc import data
from cpc.data import Recordings, align, select
from cpc.data.phones import MOST_EXTRA
from cpc.data.recordings import explain_ids, ids_of
from cpc.data.sources.voices import prepare_voices
from cpc.data.walk import Skipped, count_names
from cpc.models import Model
from cpc.types import Item, UserError
from experiments.command.config import Config
from experiments.command.run_dir import Fingerprint
from experiments.training import checks
from experiments.training.checks import data_root, name_of

#: The synthetic source: small enough for tests that take seconds.
SYNTHETIC_SPEAKERS, SYNTHETIC_UTTERANCES, SYNTHETIC_PHONES = 4, 500, 8
#: Labels have 10 ms each.
LABEL_SAMPLES = data.SAMPLE_RATE_HZ // 100


class Phones(NamedTuple):
    """Phone labels of some of the utterances."""

    labels: dict[str, np.ndarray]
    """Utterance id -> int32, one label each 10 ms, -1 where unlabelled."""
    names: tuple[str, ...]


class AudioData(NamedTuple):
    """What an audio experiment is run on."""

    train: data.Recordings
    test: data.Recordings
    phones: dict[str, Phones]
    """Name of a labelled set -> its phones."""
    items: dict[str, list[Item]] = {}  # noqa: RUF012 (never written to)
    """Name of an item file -> its tokens."""
    name: str = ""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What was left out, and why."""
        return (*self.train.skipped, *self.train.shortened)

    def fingerprint(self) -> dict[str, Fingerprint]:
        """Return what tells the parts of these data from those of others."""
        return {"train": fingerprint(self.train), "test": fingerprint(self.test)}


def load_data(config: Config, log: Callable[[str], object]) -> AudioData:
    """Read, pack and split the recordings of `config.data`."""
    options = config.data
    if options.source == "synthetic":
        return _synthetic(config)
    lists = (options.train_list, options.test_list)
    if options.source == "voices":
        root, speaker_level = prepare_voices(data.cache_dir(), log), 1
        lists = lists if any(lists) else (root / "train_split.txt", root / "test_split.txt")
    else:
        root, speaker_level = data_root(config), options.speaker_level
    phones, items = _read_labels(options, root)
    recordings = _pack(options, root, speaker_level, log)
    phones, items = without_lost(phones, items, recordings, log)
    if options.phones:
        name = pathlib.Path(options.phones).stem
        describe_labels(name, phones[name].labels, recordings.names, log)
    if lists[0] and lists[1]:
        files = (pathlib.Path(name).expanduser() for name in lists)
        train, test = data.split_by_lists(recordings, *map(data.read_list, files))
    else:
        train, test = data.split_by_utterance(recordings, options.test_fraction, config.seed)
    if not len(test):
        raise UserError(
            f"no utterance of {root} is left to test on: a speaker with a single file trains only; "
            "cut the files up, or name test utterances in data.test_list (and data.train_list)"
        )
    _describe(train, test, options.window_samples, log)
    return AudioData(train, test, phones, items, name_of(config))


def _read_labels(options, root):
    """Return the phones by the name of their set, and the tokens by the name of their file."""
    phones, items = {}, {}
    if options.source == "voices":
        for name in ("festvox_ru", "asterisk_en"):
            phones[name] = Phones(*data.read_alignments(root / f"phones_{name}.txt"))
    if options.phones:
        file = pathlib.Path(options.phones).expanduser()
        phones[pathlib.Path(options.phones).stem] = Phones(*data.read_alignments(file))
    if options.item_file:
        file = pathlib.Path(options.item_file).expanduser()
        items[file.name] = data.read_items(file)
        if file.stem in phones:
            raise UserError(
                f"the tokens of the labels {file.stem} and of data.item_file would both be probes/"
                f"{file.stem}.item: rename one of the two files"
            )
    return phones, items


def _pack(options, root, speaker_level, log):
    """Return the recordings of a folder, packed in the cache."""
    which = f"{root.resolve()} {options.source} {options.split} {options.speaker_level}"
    key = hashlib.sha256(which.encode(errors="surrogateescape")).hexdigest()[:12]
    path = data.cache_dir() / "packs" / f"{root.name}-{key}"
    allowed = options.max_skipped_fraction
    if options.source == "librispeech_tfds":
        recordings = data.read_librispeech_tfds(root, options.split, log)
        return data.pack(recordings, path, log, max_skipped_fraction=allowed)
    return data.pack_folder(
        root, path, log, speaker_level=speaker_level, max_skipped_fraction=allowed
    )


def describe_labels(
    name: str, labels: Collection[str], recordings: Sequence[str], log: Callable[[str], object]
) -> None:
    """Log which labels are of no recording: a space or an ending in an id loses all of them."""
    if lost := sorted(set(labels) - set(recordings)):
        some = ", ".join(lost[:3]) + ", ..." * (len(lost) > 3)
        log(
            f"{name}: {len(lost):,} of {len(labels):,} labelled utterances are none of these "
            f"recordings ({some}); {len(labels) - len(lost):,} of {len(recordings):,} recordings "
            f"have labels; {explain_ids(lost, recordings)}"
        )


def without_lost(
    phones: dict[str, Phones],
    items: dict[str, list[Item]],
    recordings: data.Recordings,
    log: Callable[[str], object],
) -> tuple[dict[str, Phones], dict[str, list[Item]]]:
    """Leave out labels and items of sound that a damaged recording lost, and say so."""
    damages = (*recordings.skipped, *recordings.shortened)
    damaged = {one for path, _ in damages for one in ids_of(path)}
    lengths = dict(zip(recordings.names, recordings.lengths.tolist(), strict=True))

    def exists(name: str, num_samples: float) -> bool:
        # A few labels too many are no loss, as in `align`.
        most = lengths.get(name, 0) + MOST_EXTRA * LABEL_SAMPLES
        return name not in damaged or num_samples <= most

    kept_phones, kept_items = {}, {}
    for name, (all_labels, names) in phones.items():
        labels = {u: own for u, own in all_labels.items() if exists(u, len(own) * LABEL_SAMPLES)}
        kept_phones[name] = Phones(labels, names)
        if number := len(all_labels) - len(labels):
            log(f"{name}: the labels of {number:,} damaged recordings are left out")
    for name, listed in items.items():
        own = [one for one in listed if exists(one.file, one.offset * data.SAMPLE_RATE_HZ)]
        kept_items[name] = own
        if number := len(listed) - len(own):
            log(f"{name}: {number:,} items of damaged recordings are left out")
    return kept_phones, kept_items


def _synthetic(config: Config) -> AudioData:
    made = data.make_synthetic(
        num_speakers=SYNTHETIC_SPEAKERS,
        utterances_per_speaker=SYNTHETIC_UTTERANCES,
        # One window an utterance, or where frames begin in a window would be information, too.
        seconds=config.data.window_samples / data.SAMPLE_RATE_HZ,
        chain=data.phone_chain(SYNTHETIC_PHONES),
        seed=config.seed,
    )
    train, test = data.split_by_utterance(made.recordings, config.data.test_fraction, config.seed)
    phones = {"synthetic": Phones(made.labels, made.label_names)}
    return AudioData(train, test, phones, name=name_of(config))


def known_nats(num_offsets: int, receptive_field: int, stride: int) -> dict[int, float]:
    """Return the most that c_t can tell of z_(t+k) on the synthetic source, in nats, by offset k.

    Past and latent share the speaker, and phones k - before frames apart, if a latent sees `before`
    frames before its own. Smaller offsets see the same samples and have no limit.
    """
    chain = data.phone_chain(SYNTHETIC_PHONES)
    before = -(-receptive_field // stride) - 1
    return {
        k: data.synthetic_information(k - before, chain, SYNTHETIC_SPEAKERS)
        for k in range(before + 1, num_offsets + 1)
    }


def labels_at(labels: np.ndarray, start: int, num_frames: int, stride: int) -> np.ndarray:
    """Return the label at the middle of each of an encoder's frames; -1 after the last label.

    Labels have 10 ms each, frames `stride` samples, the first of them from sample `start` on.

    >>> labels = np.array([5, 6, 7], np.int32)
    >>> labels_at(labels, 90, 3, 160), labels_at(labels, 0, 2, 240), labels_at(labels, 0, 6, 80)
    (array([ 6,  7, -1]), array([5, 7]), array([5, 5, 6, 6, 7, 7]))
    """
    middles = start + stride * np.arange(num_frames) + stride // 2
    index = np.minimum(middles // LABEL_SAMPLES, len(labels))
    return np.append(labels, data.UNLABELLED)[index]


def num_labels(num_samples: int) -> int:
    """Return the number of labels, each of 10 ms, of so many samples."""
    return max(1, int(num_samples) // LABEL_SAMPLES)


def frame_samples(feature: str, model: Model) -> int:
    """Return the samples from frame to frame of a feature: 10 ms of MFCC, else the encoder's."""
    return data.SAMPLE_RATE_HZ // 100 if "mfcc" in feature else model.module.encoder.stride


def labels_of_frames(
    recordings: data.Recordings, labels: Sequence[np.ndarray], stride: int
) -> list[np.ndarray]:
    """Return the label of each of a feature's frames, of recordings with a label every 10 ms."""
    return [
        labels_at(own, 0, max(1, int(length) // stride), stride)
        for own, length in zip(labels, recordings.lengths, strict=True)
    ]


def label_frames(
    audio: AudioData, utterances: np.ndarray, starts: np.ndarray, num_frames: int, stride: int
) -> np.ndarray:
    """Return phones (b, frames) of windows of training utterances, -1 without a label."""
    labels = np.full((len(utterances), num_frames), data.UNLABELLED, np.int32)
    for row, (utterance, start) in enumerate(zip(utterances, starts, strict=True)):
        first = 0
        for phones in audio.phones.values():
            found = phones.labels.get(audio.train.names[int(utterance)])
            if found is not None:
                part = labels_at(found, int(start), num_frames, stride)
                labels[row] = np.where(part >= 0, first + part, labels[row])
            first += len(phones.names)
    return labels


def first_minutes(
    recordings: data.Recordings, minutes: float, by_speaker: bool = True
) -> data.Recordings:
    """Utterances, drawn at random, up to so many minutes of each speaker, or of all; 0: all."""
    if not minutes:
        return recordings
    kept, used = [], dict.fromkeys((*recordings.speakers, ""), 0.0)
    for i in np.random.default_rng(0).permutation(len(recordings)):
        speaker = recordings.speakers[i] if by_speaker else ""
        if used[speaker] < minutes:
            kept.append(int(i))
            used[speaker] += float(recordings.lengths[i]) / data.SAMPLE_RATE_HZ / 60
    return data.select(recordings, sorted(kept))


def places_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return what scores call recordings, labels and items, and where each is, and of what."""
    options, ((name, root),) = config.data, checks.places_of(config).items()
    files = {
        pathlib.Path(options.phones).stem: options.phones,
        pathlib.Path(options.item_file).name: options.item_file,
    }
    return {name: root} | {name: (file, *root) for name, file in files.items() if file}


def _describe(train, test, window_samples, log):
    is_short = train.lengths < window_samples
    hours, short_hours = (
        lengths.sum() / data.SAMPLE_RATE_HZ / 3600
        for lengths in (train.lengths, train.lengths[is_short])
    )
    log(
        f"data: {len(set(train.speakers))} speakers, {len(train):,} training utterances "
        f"({hours:.2f} h; {is_short.sum():,} of them, {short_hours:.2f} h, are shorter than a "
        "window and filled up), "
        f"{len(test):,} test utterances; {count_names(train.skipped, 'skipped')}, "
        f"{count_names(train.shortened, 'kept incomplete or altered')}"
    )


def fingerprint(part: data.Recordings) -> Fingerprint:
    """Return names, lengths and loudness, which another version may decode otherwise."""
    loudness = np.round(np.zeros(0) if part.rms is None else part.rms, 5)  # sums differ by CPU
    lengths = part.lengths.tobytes()
    return Fingerprint(len(part), repr(part.names).encode(), exact=lengths + loudness.tobytes())


#: Features that are networks trained on the labels, which answer by themselves.
TRAINED = {"supervised": "trained on", "tuned": "fine-tuned to"}


class Frames(NamedTuple):
    """A feature of utterances: the `values` of audio's feature sets."""

    by_utterance: Mapping[str, Any]
    """Utterance -> (frames, width); empty for features that are made of a task's labels."""
    stride: int
    """Samples from frame to frame."""


def labelled_sets(
    data: AudioData, task: str, which: tuple[str, ...] = ("training", "test")
) -> Iterator[tuple[str, Phones, tuple[Recordings, ...]]]:
    """Yield each labelled set: its name, phones, and the utterances that these are of."""
    if not data.phones:
        raise UserError(
            f"there are no phone labels for a probe of {task}: set data.phones to an alignment "
            f"file, or take {task} out of probe.tasks"
        )
    recordings = {"training": data.train, "test": data.test}
    for name, phones in data.phones.items():
        parts = tuple(
            select(recordings[kind], [i for i, own in enumerate(recordings[kind].names)
                                      if own in phones.labels])
            for kind in which
        )  # fmt: skip
        for kind, part in zip(which, parts, strict=True):
            if not len(part):
                raise UserError(
                    f"no {kind} utterance has labels in {name}: do its utterance ids belong to "
                    "these recordings?"
                )
        yield name, phones, parts


def aligned(part: Recordings, phones: Phones) -> list[np.ndarray]:
    """Return the labels of utterances, one every 10 ms."""
    return [
        align(phones.labels[utterance], num_labels(length), utterance)
        for utterance, length in zip(part.names, part.lengths, strict=True)
    ]


def check_trained(config: Config, part: Recordings, name: str) -> None:
    """Check that the networks trained on labels have an utterance more to stop by."""
    for feature in TRAINED:
        if feature in config.probe.features and len(part) < 2:
            raise UserError(
                f"{name} has one labelled training utterance, but the {feature} network needs "
                f"another to stop by: take {feature} out of probe.features, or label more"
            )
