r"""Evaluate pretrained audio weights with all audio probes, next to MFCC and an untrained network.

    cpc evaluate --checkpoint 60k_epoch4.pt --data /my/recordings \
        --phones labels.txt --items dev-clean.item --workdir runs/60k
    cpc evaluate --checkpoint runs/a --data clips --data.file_labels=labels.csv --workdir runs/b

--checkpoint is an exported folder, a run, a repository of the Hugging Face hub, or a checkpoint of
facebookresearch/CPC_audio. The latter is a .pt file from its hub or from training, which needs
torch, or an .npz or .safetensors file with its state dict. --data is a folder of recordings.
--phones is an alignment of some of them, which the tasks phones, ctc and abx use. --items is a
ZeroSpeech item file for abx. --data.file_labels is a CSV file with lines name,label for the task
files. By default all possible tasks are evaluated, including speakers if there are at least two.
Recordings are scaled to the loudness of the training data, or unchanged for CPC_audio. --layer c1
evaluates the first layer of the context network instead of the last. --data.key=value and
--probe.key=value set further keys, as for `cpc probe`; published ABX errors use
--probe.lose_last_frame=True. The same command again adds missing tasks and rewrites the page.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from configs.keys import make_config
from cpc import models, report
from cpc.data import SAMPLE_RATE_HZ, at_loudness
from cpc.files import plain, read_object, write_sealed
from cpc.report.engine import Section
from cpc.results import Run, digest
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.command.config import (
    Config,
    check_config,
    evaluation_config,
    load_config,
    with_settings,
)
from experiments.command.run_dir import open_run, write_skipped
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio.data import AudioData
from experiments.kinds.registry import check_input, read_model
from experiments.training.contrastive import make_probe
from experiments.training.sequences import CONTEXTS

#: File with the identity of the evaluated weights.
RECORD = "checkpoint.json"
#: File with the finished tasks and their options.
DONE = "probes/done.json"


def run(
    checkpoint: str | None,
    folder: str | None,
    workdir: str | None,
    phones: str = "",
    items: str = "",
    tasks: Sequence[str] = (),
    layer: str = "c",
    settings: Sequence[str] = (),
    device: str = "auto",
) -> None:
    """Read weights and recordings, evaluate the missing tasks, and write the page."""
    if not (checkpoint and folder and workdir):
        raise UserError(
            "--checkpoint, --data and --workdir are required, e.g. --checkpoint 60k_epoch4.pt "
            "--data recordings --workdir runs/60k"
        )
    known = audio.KEYS["probe"]["tasks"].words
    if unknown := [task for task in tasks if task not in known]:
        raise UserError(f"--tasks must be some of {', '.join(known)} (got {unknown[0]!r})")
    pretrained = read_weights(checkpoint, layer)
    given = {"source": "folder", "path": folder, "phones": phones, "item_file": items}
    flags_given = [f"--config.data.{name}={value}" for name, value in given.items()]
    config = evaluation_config(config_of(pretrained), audio.KEYS, [*flags_given, *settings])
    config.probe.tasks = tuple(tasks)
    check_config(config, audio.KEYS)
    mesh = cluster.start(device, config, workdir)
    data = load(config, pretrained)
    config.probe.tasks = tuple(tasks) or possible(data)
    audio.geometry(config)  # validates the config
    with open_run(workdir, config, mesh) as path:
        options = plain(config.probe)
        wanted = options.pop("tasks")
        found = read_object(path / DONE, []) or {}
        done = found["tasks"] if found.get("options") == options else []
        left = tuple(task for task in wanted if task not in done)
        missing = with_settings(config, {"probe.tasks": left})
        # This also validates the data, before anything is written.
        probe = make_probe(audio, missing, path, data, models.make_model(pretrained.module))
        record(path, checkpoint, layer, pretrained)
        write_skipped(path, data.skipped)
        if left:
            probe(pretrained.variables, pretrained.about.get("step", 0))
            write_sealed(path / DONE, {"options": options, "tasks": [*done, *left]})
        else:
            print(f"already evaluated: {', '.join(config.probe.tasks)}")
        sections = (weights_section, *audio.PAGE.sections)
        print(f"report: {report.write_report(path, audio.PAGE.words, sections)}")


def read_weights(checkpoint: str, layer: str) -> models.Pretrained:
    """Return an audio model whose context c is the output of `layer`."""
    pretrained = read_model(checkpoint, None)
    if check_input(pretrained, checkpoint) is not audio:
        kind = pretrained.input["kind"]
        raise UserError(f"--checkpoint {checkpoint} must be an audio model (got {kind})")
    if not layer.startswith("c"):
        raise UserError(f"--layer must be c or a layer of the context, such as c1 (got {layer!r})")
    module, variables = models.end_at(pretrained.module, pretrained.variables, layer)
    return pretrained._replace(module=module, variables=variables)


def config_of(pretrained: models.Pretrained) -> Config:
    """Return the config that trained a model.

    If none is recorded, the network and the window length are set to those of the model.
    """
    recorded = pretrained.about.get("config")
    module: Any = pretrained.module
    encoder, context = module.encoder, module.context
    config = load_config(recorded, audio.KEYS) if recorded else make_config(audio.KEYS)
    network = {"context_layers": context.num_layers}
    if not recorded:
        network |= {name: getattr(encoder, name) for name in ("width", "norm", "padding")}
        kinds = ("encoder", encoder, models.AUDIO_ENCODERS), ("context", context, CONTEXTS)
        for part, own, known in kinds:
            network[part] = next(
                word for word, kind in known.items() if isinstance(own, getattr(kind, "func", kind))
            )
        if number := getattr(encoder, "num_cepstra", 0):
            network |= {"encoder": "cepstra", "num_cepstra": number}
        network |= {
            "context_width": context.width,
            "context_blocks": getattr(context, "blocks", 1),
            "num_offsets": module.predictor.num_offsets,
        }
    settings = {f"model.{name}": value for name, value in network.items()}
    return with_settings(config, {**settings, "data.window_samples": pretrained.input["shape"][0]})


def load(config: Config, pretrained: models.Pretrained) -> AudioData:
    """Return the recordings, scaled to the loudness of the model's training data."""
    if (rate := pretrained.input["sample_rate_hz"]) != SAMPLE_RATE_HZ:
        raise UserError(f"--checkpoint must take recordings at 16,000 Hz (got {rate} Hz)")
    data = cluster.load_in_turn(lambda: audio.load_data(config, print))
    rms = pretrained.input["rms"]
    return data._replace(train=at_loudness(data.train, rms), test=at_loudness(data.test, rms))


def possible(data: AudioData) -> tuple[str, ...]:
    """Return the tasks for which the data have labels."""
    found = (
        *(("phones", "ctc") if data.phones else ()),
        *(("speakers",) if len({*data.train.speakers}) > 1 else ()),
        *(("files",) if data.file_labels else ()),
        *(("abx",) if data.phones or data.items else ()),
    )
    if not found:
        problem = f"the recordings have one speaker ({data.train.speakers[0]}) and no labels"
        advice = "pass --data.file_labels, --phones or --items, or set --data.speaker_level"
        raise UserError(f"{problem}: {advice}")
    return found


def record(path: pathlib.Path, checkpoint: str, layer: str, pretrained: models.Pretrained) -> None:
    """Record the identity of the evaluated weights in a directory.

    Raises UserError if the directory is a run directory or has scores of other weights.
    """
    leaves, _ = jax.tree.flatten(pretrained.variables)
    known = {
        "checkpoint": pathlib.Path(checkpoint).expanduser().resolve().name,
        "digest": digest(*map(np.asarray, leaves)),
        "layer": layer,
        "rms": pretrained.input["rms"],
        "step": pretrained.about.get("step", 0),
        "format": pretrained.about.get("format_read", "cpc"),
    }
    found = read_object(path / RECORD, [])
    if found is None and (path / "checkpoints").exists():
        raise UserError(f"{path} is a run directory: choose another --workdir")
    if found is not None and {**found, "checkpoint": ""} != {**known, "checkpoint": ""}:
        other = f"{found.get('checkpoint')}, layer {found.get('layer')}"
        raise UserError(f"{path} has scores of other weights ({other}): choose another --workdir")
    write_sealed(path / RECORD, known, is_durable=True)


def weights_section(run: Run) -> Section | None:
    """Return the page section on the evaluated weights, or None if none are recorded."""
    found = read_object(run.workdir / RECORD, [])
    if found is None:
        return None
    layer = "the last layer" if found["layer"] == "c" else f"layer {found['layer']}"
    loudness = "as they are" if found["rms"] is None else f"at a root mean square of {found['rms']}"
    return Section(
        "Evaluated weights",
        [
            f"c comes from {found['checkpoint']} (format {found['format']}, step "
            f"{found['step']:,}), {layer} of its context; random c comes from an untrained network "
            "of the same shape.",
            f"All networks and MFCC take whole recordings {loudness}.",
        ],
    )


if __name__ == "__main__":
    SETTINGS = cli.take_settings("data", "probe")
    CHECKPOINT = flags.DEFINE_string("checkpoint", None, "File, exported folder, or run.")
    DATA = flags.DEFINE_string("data", None, "Folder of recordings.")
    PHONES = flags.DEFINE_string(
        "phones", "", 'Alignment: "utterance-id label label ...", one label every 10 ms.'
    )
    ITEMS = flags.DEFINE_string("items", "", "ZeroSpeech item file.")
    TASKS = flags.DEFINE_list(
        "tasks", [], "phones, speakers, files, ctc, abx; by default all possible."
    )
    LAYER = flags.DEFINE_string("layer", "c", "c, or a layer of the context, such as c1.")
    cli.run(
        lambda: run(
            CHECKPOINT.value, DATA.value, cli.WORKDIR.value, PHONES.value, ITEMS.value,
            TASKS.value, LAYER.value, SETTINGS, cli.DEVICE.value,
        )
    )  # fmt: skip
