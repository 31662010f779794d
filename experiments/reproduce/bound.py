"""Measurement of log N - L by the number of negatives, on a run's held-out windows."""

import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cpc.data import make_batches
from cpc.losses import streaming_info_nce
from cpc.results import over_seeds
from cpc.train import restore_params
from cpc.types import Batch, CPCOutputs, Position, UserError
from experiments.command.config import subset
from experiments.kinds.registry import read_contrastive
from experiments.training.contrastive import interpret
from experiments.training.objective import scored, temperature
from experiments.training.problem import model_variables

#: Number of windows whose latents are anchors, and over which intervals are computed.
NUM_ANCHOR_WINDOWS = 16
#: Maximum number of batches drawn.
MAX_BATCHES = 512
#: Maximum number of recordings that each provide one independent negative.
WANTED_RECORDINGS = 1023
#: Sequence number of the candidates, which no anchor has.
POOL = -1


def measure_bound(folder: pathlib.Path, log2_sizes: range) -> dict[str, Any]:
    """Estimate log N - L by offset, for each N = 2**p with enough held-out latents.

    The candidates of an anchor are its positive and N - 1 latents of other recordings. They include
    one latent per recording, for which log N - L is a bound, before further latents. Intervals are
    computed over windows.
    """
    kind, config = read_contrastive(folder)
    arrays, _, step = restore_params(folder / "checkpoints")
    variables = model_variables(**arrays)
    data = kind.load_data(config, print)
    problem = kind.make_problem(interpret(kind, config), data)
    plan, encoder = problem.plan, problem.model.module.encoder
    branch, *others = plan.geometry.branches
    if others:
        names = ", ".join(one.name for one in plan.geometry.branches)
        raise UserError(
            f"the bound by N needs a network with one branch (got {names} in {folder}): set one "
            "model.directions and model.modules=1"
        )
    # Checkpoints omit empty entries.
    params, state = (arrays[part].get("objective", {}) for part in ("params", "extra"))
    tau, window_samples = temperature(plan, params, state), config.data.window_samples
    sizes = subset(config.data, "window_samples", "batch_size")
    draw = make_batches(data.test, **sizes, seed=config.seed + 2)

    @jax.jit
    def forward(x):
        outputs = scored(plan, problem.model.apply(variables, {"x": x}, False)[0])
        return outputs._replace(predictions=outputs.predictions / tau)

    drawn = different_windows(draw, forward, encoder.num_existing, window_samples)
    whole = encoder.num_latents(window_samples)
    # Clips shorter than a window are not anchors.
    wholes = ((one, outputs) for one, outputs in drawn if len(outputs.z) == whole)
    anchors = list(itertools.islice(wholes, NUM_ANCHOR_WINDOWS))
    known = {utterance for utterance, _ in anchors}
    pool = ((utterance, outputs.z) for utterance, outputs in drawn if utterance not in known)
    latents, num_independent = gather(pool, 2 ** log2_sizes[-1] - 1)
    sizes = [2**p for p in log2_sizes if 2**p - 1 <= len(latents)]
    if not sizes or not anchors:
        raise UserError(
            f"{folder} has too few held-out latents for N = {2 ** log2_sizes[0]} "
            f"(got {len(latents)} negatives): add test recordings"
        )
    z = np.stack([outputs.z for _, outputs in anchors])
    given = z, np.stack([outputs.predictions for _, outputs in anchors]), branch.offsets
    found = [estimates(*given, latents[: n - 1], n - 1 <= num_independent) for n in sizes]
    return {"step": step, "rows": [row for rows in found for row in rows]}


def different_windows(
    draw: Callable[[int], Batch],
    forward: Callable[[Any], CPCOutputs],
    num_existing: Callable[[np.ndarray], np.ndarray],
    window_samples: int,
) -> Iterator[tuple[int, CPCOutputs]]:
    """Yield each distinct window's utterance and its outputs, without padding."""
    seen = set()
    for number in range(MAX_BATCHES):
        batch = draw(number)
        starts = list(zip(batch["utterance"].tolist(), batch["start"].tolist(), strict=True))
        if seen.issuperset(starts):
            continue
        outputs = jax.device_get(forward(batch["x"]))
        real = batch.get("num_samples", np.full(len(starts), window_samples))
        numbers = num_existing(real).tolist()
        for row, start in enumerate(starts):
            if start not in seen:
                seen.add(start)
                exist = row, slice(numbers[row])
                yield start[0], jax.tree.map(lambda leaf, exist=exist: leaf[exist], outputs)


def gather(pool: Iterator[tuple[int, Any]], number: int) -> tuple[np.ndarray, int]:
    """Return up to `number` latents, beginning with one per utterance, and the utterance count."""
    rng, first, others = np.random.default_rng(0), {}, []
    for utterance, z in pool:
        order = rng.permutation(len(z))
        if utterance not in first:
            first[utterance], order = z[order[0]], order[1:]
        others.extend(z[order])
        wanted = min(number, WANTED_RECORDINGS)
        if len(first) >= wanted and len(first) + len(others) >= number:
            break
    mixed = [others[i] for i in rng.permutation(len(others))]
    return np.asarray([*first.values(), *mixed], np.float32)[:number], len(first)


def estimates(
    z: np.ndarray,
    predictions: np.ndarray,
    offsets: Sequence[int],
    latents: np.ndarray,
    is_bound: bool,
) -> list[dict[str, Any]]:
    """Return log N - L by offset for anchors with z (b, t, d) and predictions (b, t, k, d)."""
    b, t, d = z.shape
    n = len(latents) + 1
    sequence, time = np.repeat(np.arange(b), t), np.tile(np.arange(t), b)
    keys = jnp.concatenate([z.reshape(-1, d), latents])
    pool, order = np.full(len(latents), POOL), np.arange(len(latents))
    of_keys = np.concatenate([sequence, pool]), np.concatenate([time, order])
    candidates = Position(*of_keys, *np.zeros((2, len(keys)), int))

    def is_candidate(anchor, candidate, offset):  # the positive is added separately
        return candidate.sequence == POOL

    @jax.jit  # offsets only shift the anchors, so that all offsets share one program
    def losses(queries, moved):
        anchors = Position(sequence, moved, *np.zeros((2, b * t), int))
        return streaming_info_nce(queries, keys, anchors, candidates, is_candidate, 0)

    rows = []
    for i, k in enumerate(offsets):
        loss, _ = losses(predictions[:, :, i].reshape(-1, d), time + k)
        nats = np.log(n) - np.asarray(loss).reshape(b, t)[:, : t - k]
        value, low, high = over_seeds(nats.mean(axis=1).tolist())[:3]
        interval = {"value": value, "low": low, "high": high, "is_bound": bool(is_bound)}
        rows.append({"offset": k, "n": n, **interval})
    return rows
