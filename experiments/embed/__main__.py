r"""Features of a folder of recordings, images or series, by the model of a run.

    python -m experiments.embed --workdir runs/voices --input /my/recordings --output features.npz

--output says the form: .npz (name -> array, and times_seconds; a file of that name is
times_seconds.features), .arrow (a row a file), or a folder
(a .npy a file, in the input's tree, frames by width, as ABX tools expect; times.json has the
frames' distance and the middle of the first). Recordings are of any length, rate and number of
channels. --workdir can also be a folder that was exported. --features is c or z, or any layer
before: z1, z2, ... of the encoder (z1 of audio has a frame each 5 samples), c1, ... of the context;
of a ResNet a stage counts as a layer. --features codes are the numbers of the codes that quantised
latents are, a column of them for each file.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import flags

from cpc import models
from cpc.types import UserError
from experiments.command import cli, cluster
from experiments.embed.output import Write, open_output
from experiments.pretrained import check_input, read_model
from experiments.problem import Embedding


def run(
    workdir: str | None,
    source: str | None,
    output: str | None,
    features: str = "c",
    step: str | None = None,
    device: str = "auto",
) -> None:
    """Check what was asked for, embed every file, and say how fast it went."""
    if not (workdir and source and output):
        raise UserError("give --workdir of a run, --input of a folder, and --output: see --help")
    root = pathlib.Path(source).expanduser()
    cluster.start(device)
    pretrained = read_model(pathlib.Path(workdir).expanduser(), step)
    find_codes = code_finder(pretrained) if features == "codes" else None
    layer = "z" if find_codes else features
    module, variables = models.end_at(pretrained.module, pretrained.variables, layer)
    pretrained = pretrained._replace(module=module, variables=variables)
    embed_files = check_input(pretrained, workdir).embed_files
    skipped: list[tuple[str, str]] = []
    embedding = embed_files(pretrained, root, layer.startswith("c"), skipped)
    if find_codes:
        found = ((name, find_codes(z), amount) for name, z, amount in embedding.features)
        embedding = embedding._replace(features=found)
    with open_output(output, embedding.frame_seconds) as write:
        write_all(embedding, write, skipped, root, print)
    print(f"features: {output}")


def code_finder(pretrained: models.Pretrained) -> Callable[[Any], np.ndarray]:
    """Return the function from quantised latents (t, d) to the numbers of their codes (t, 1).

    Raises:
        UserError: the model's latents are not quantised.
    """
    encoder = getattr(pretrained.module, "encoder", None)
    if not isinstance(encoder, models.QuantizedEncoder):
        raise UserError(
            "this model's latents are not quantised: choose other --features than codes"
        )
    own = models.part_of(pretrained.variables, "encoder")
    return lambda z: np.asarray(encoder.find_codes(own, jnp.asarray(z)))[:, None]


def write_all(
    embedding: Embedding,
    write: Write,
    skipped: list[tuple[str, str]],
    root: pathlib.Path,
    say: Callable[[str], Any],
) -> None:
    """Write the features of every file, and say what was skipped, and why."""
    total, unit = embedding.total, embedding.unit
    begin = last = time.perf_counter()
    done, count = 0.0, 0
    for name, array, amount in embedding.features:
        write(name, np.asarray(array, np.float32))
        done, count, now = done + amount, count + 1, time.perf_counter()
        if now > last + 10:
            last, rate = now, done / (now - begin)
            say(
                f"{done:,.4g} of {total:,.4g} {unit}, {rate:.3g} {unit}/s, "
                f"{max(0.0, total - done) / rate:,.0f} s left"
            )
    for name, reason in skipped:
        say(f"skipped {name}: {reason}")
    if not count:
        raise UserError(f"no file in {root} can be read: {skipped[0][1]}")
    seconds = time.perf_counter() - begin
    say(
        f"{count:,} files, {len(skipped):,} skipped, {done:,.4g} {unit} in {seconds:.1f} s: "
        f"{done / seconds:.3g} {unit}/s"
    )


if __name__ == "__main__":
    INPUT = flags.DEFINE_string("input", None, "Folder of files, at any depth.")
    OUTPUT = flags.DEFINE_string("output", None, "features.npz, features.arrow, or a folder/.")
    LAYER = flags.DEFINE_string(
        "features", "c", "c, the contexts; z, the latents; a layer, such as z2; or codes."
    )
    STEP = cli.define_step()
    cli.run(
        lambda: run(
            cli.WORKDIR.value,
            INPUT.value,
            OUTPUT.value,
            LAYER.value,
            STEP.value,
            cli.DEVICE.value,
        )
    )
