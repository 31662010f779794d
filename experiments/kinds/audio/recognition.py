"""The task "ctc": phones of whole utterances in their order, by a head trained without times."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from cpc.data import SAMPLE_RATE_HZ, SILENCES, Recordings, read_all
from cpc.evaluate import (
    Edits,
    beam_decode,
    bootstrap_interval,
    count_edits,
    greedy_decode,
    read_rows,
)
from cpc.results import Outcomes, Score, digest
from cpc.types import UserError
from experiments.command.config import Config
from experiments.kinds.audio.ctc_head import Labelled, Network, fit_head, frozen, pick
from experiments.kinds.audio.data import AudioData, Phones, first_minutes
from experiments.kinds.audio.supervised import contexts_of
from experiments.kinds.audio.tasks import TRAINED, aligned, labelled_sets
from experiments.training.probes import FeatureSet, ProbeContext, ProbeTask


def recognition_tasks(config: Config, data: AudioData) -> list[ProbeTask]:
    """Return the task of phones in their order, for every labelled set."""
    return [
        recognition_task(config, name, phones, *parts)
        for name, phones, parts in labelled_sets(data, "ctc")
    ]


def recognition_task(
    config: Config, name: str, phones: Phones, train: Recordings, test: Recordings
) -> ProbeTask:
    """Return the task of one labelled set, of as much of it as the most minutes take."""
    minutes = config.probe.ctc_minutes
    for part in (train, test):
        aligned(part, phones)  # which checks them
    train = first_minutes(train, 0 if 0 in minutes else max(minutes), by_speaker=False)
    parts, subsets = (train, test), subsets_of(train, minutes)
    in_order = [
        [phones_in_order(phones.labels[own], phones.names) for own in part.names] for part in parts
    ]
    check_phones(in_order, subsets, name)

    def answer(context: ProbeContext, features: FeatureSet) -> list[Score]:
        first, last = (
            Labelled(inputs_of(part, features), own)
            for part, own in zip(parts, in_order, strict=True)
        )
        given = first, last, len(phones.names), subsets
        return list(recognise(context, features.name, name, *given))

    return ProbeTask("ctc", answer, parts=parts)


def inputs_of(part: Recordings, features: FeatureSet) -> list[np.ndarray]:
    """Return the frames of utterances, or their samples for networks that take these."""
    if features.name in TRAINED:
        return [read_all(part, i) for i in range(len(part))]
    return [read_rows(features.values.by_utterance[name]) for name in part.names]


def recognise(
    context: ProbeContext,
    feature: str,
    data: str,
    train: Labelled,
    test: Labelled,
    num_phones: int,
    subsets: Mapping[str, Sequence[int]],
) -> Iterator[Score]:
    """Yield phone error rates on test utterances after training on each of the subsets."""
    config = context.config
    counts = np.array([len(phones) for phones in test.phones])
    items = digest("ctc", np.concatenate(test.phones), counts)
    head, width = config.probe.ctc_head, config.probe.ctc_beam
    decoders = {head: greedy_decode}
    if width > 1:
        decoders[f"{head}, beam {width}"] = functools.partial(beam_decode, width=width)
    for length, subset in subsets.items():
        part = pick(train, subset)
        print(f"CTC on {feature} of {data}, {length} in {len(subset)} utterances:")
        folder = context.folder_of(f"ctc-{feature}-{data}-{len(subset)}")
        network = network_of(context, feature, part.inputs)
        answer, words = fit_head(config, network, part, num_phones, folder)
        given = answer(test.inputs)
        for method, decode in decoders.items():
            edits = np.array(
                [count_edits(own, decode(one)) for own, one in zip(test.phones, given, strict=True)]
            )
            kinds = zip(Edits._fields, edits.sum(axis=0) / counts.sum(), strict=True)
            print(f"{method}, {words}: " + ", ".join(f"{rate:.1%} {kind}" for kind, rate in kinds))
            low, high = bootstrap_interval(edits.sum(axis=1).astype(float), counts)
            yield Score(
                "CTC", data, "phone", feature, method, "phone error rate",
                float(edits.sum() / counts.sum()), low, high, higher_is_better=False,
                num_train=sum(map(len, part.phones)), num_test=int(counts.sum()),
                setting=length, outcomes=Outcomes(edits.sum(axis=1), counts, items),
            )  # fmt: skip


def network_of(context: ProbeContext, feature: str, inputs: Sequence[np.ndarray]) -> Network:
    """Return what lies under the head: nothing but a scale, or the network that is trained on."""
    config, model, variables, layer_decay = context.config, context.model, context.variables, 1.0
    if feature not in TRAINED:
        return frozen(inputs)
    if feature == "tuned":
        layer_decay = config.probe.layer_decay
    else:
        window = np.zeros((1, config.data.window_samples), np.float32)
        variables = model.init(jax.random.key(config.seed + 2), {"x": window})
    encoder = model.module.encoder
    ahead = encoder.frames_around[1]
    return Network(contexts_of(model), variables, encoder.stride, layer_decay, ahead)


def phones_in_order(labels: np.ndarray, names: Sequence[str]) -> list[int]:
    """Return the phones of an alignment of one label each 10 ms, without silences.

    A phone that follows itself is one phone: an alignment does not tell. A silence between is told.

    >>> phones_in_order(np.array([2, 2, 0, 0, 1, -1, 1, 2, 2]), ["a", "b", "pau"])
    [0, 1, 1]
    """
    silent = [i for i, name in enumerate(names) if name in SILENCES]
    changes = np.append(True, labels[1:] != labels[:-1])[: len(labels)]
    kept = labels[changes]
    return kept[(kept >= 0) & ~np.isin(kept, silent)].tolist()


def subsets_of(recordings: Recordings, minutes: Sequence[float]) -> dict[str, list[int]]:
    """Return the numbers of utterances drawn up to each of so many minutes, by these.

    By the length that there is where it is less: the last utterance drawn, which goes beyond what
    was asked for, differs by seed.
    """
    numbers = {name: i for i, name in enumerate(recordings.names)}
    found: dict[str, list[int]] = {}
    for most in minutes:
        part = first_minutes(recordings, most, by_speaker=False)
        length = float(part.lengths.sum()) / SAMPLE_RATE_HZ / 60
        words = f"{most:g}" if 0 < most <= length else f"{length:.{int(length < 10)}f}"
        drawn = [numbers[name] for name in part.names]
        if found.get(f"{words} min", drawn) != drawn:  # 10 minutes, of 10.4 in all
            words = f"{length:.2f}"
        found[f"{words} min"] = drawn
    return found


def check_phones(
    parts: Sequence[Sequence[Sequence[int]]], subsets: Mapping[str, Sequence[int]], name: str
) -> None:
    """Check that there is something to recognise, and to learn it from."""
    for which, phones in zip(("training", "test"), parts, strict=True):
        if not sum(len(own) for own in phones):
            raise UserError(f"the {which} utterances of {name} have no phones but silence")
    if min(map(len, subsets.values())) < 2:
        raise UserError(
            f"the fewest of probe.ctc_minutes hold one labelled training utterance of {name}, but "
            "a CTC head needs another to stop by: give more minutes, or label more"
        )
