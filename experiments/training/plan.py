"""What a config means: its loss, negatives and sizes, interpreted once and checked here.

Its config and geometry are plain values: two plans are compared, and one is printed, without JAX.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from cpc import negatives
from cpc.losses import LOSSES, AnchorLoss, Description, describe, describe_aligned
from cpc.types import NegativeSampler, Position, Rule, UserError
from experiments.command.config import Config


class Branch(NamedTuple):
    """A set of predictions with its own loss term."""

    name: str
    offsets: tuple[int, ...]
    """How far ahead each prediction is of, in latents."""


class Geometry(NamedTuple):
    """How many latents and predictions a config makes of one sequence or image."""

    num_latents: int
    width: int
    """Width of a latent."""
    branches: tuple[Branch, ...]
    is_window: bool = True
    """Whether the latents follow each other in one window of time."""
    apart: int = 0
    """Length of a window of which no overlapping one is a negative; 0 allows them."""
    excludes_anchor: bool = False
    """Whether the latent at the anchor's own time is no negative."""

    @property
    def num_offsets(self) -> int:
        """Number of predictions per latent, over all branches."""
        return sum(len(branch.offsets) for branch in self.branches)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config with all that follows from it.

    Two plans are equal if their configs and geometries are: the rest is made from these.
    """

    config: Config
    """Every key of the run; cannot be changed."""
    geometry: Geometry
    rule: Rule = dataclasses.field(compare=False)
    """Which latents may be negatives."""
    choose: NegativeSampler | None = dataclasses.field(compare=False)
    """Which of the negatives that the rule allows are used; None for all."""
    loss: AnchorLoss = dataclasses.field(compare=False, repr=False)
    """Loss of an anchor, its options bound; the temperature comes before."""
    description: Description
    """What the loss learns, and whether log N - L means anything."""
    negatives: str
    """Rule, sampler and queue in words, for records."""
    is_bound: bool
    """Whether log N - L is a lower bound on mutual information."""

    @property
    def is_aligned(self) -> bool:
        """Whether predictions are aligned to latents (ACPC)."""
        return self.config.loss.get("align_to", 0) > 0


def make_plan(config: Config, geometry: Geometry) -> Plan:
    """Interpret a config's loss and negatives.

    Raises:
        UserError: they do not go together; names the keys to change.
    """
    options = config.negatives
    own, choose, loss = make_rule(config), make_sampler(options), make_anchor_loss(config.loss)
    rule = own & negatives.outside_overlap(geometry.apart) if geometry.apart else own
    rule = rule & negatives.outside_anchor() if geometry.excludes_anchor else rule
    check_loss(config.loss)
    check_groups(config)
    check_temperature(options)
    description = describe(loss)
    if config.loss.get("align_to", 0) > 0:
        check_alignment(config)
        description = describe_aligned(description)
    if geometry.is_window:
        check_window(config, own, geometry)
    # A bound needs independent draws from the marginal.
    of_batch = rule.is_bound and not options.queue and not options.momentum
    is_independent = of_batch and (choose is None or options.choose == "uniform")
    return Plan(
        config=FrozenConfigDict(config.to_dict()),  # a copy, of which nobody holds a reference
        geometry=geometry,
        rule=rule,
        choose=choose,
        loss=loss,
        description=description,
        negatives=name_negatives(own, choose, options),
        is_bound=description.is_bound(is_independent),
    )


def check_alignment(config: Config) -> None:
    """Check that predictions are aligned to as many frames or more, by InfoNCE of one batch."""
    options, num_offsets = config.loss, config.model.num_offsets
    if options.align_to < num_offsets:
        raise UserError(
            f"loss.align_to is {options.align_to} and there are {num_offsets} predictions, each of "
            "which takes a frame: raise it, or lower model.num_offsets"
        )
    if options.name != "info_nce":
        raise UserError(
            f"loss.align_to adds up log-probabilities, and loss.name is {options.name!r}: choose "
            "info_nce, or loss.align_to=0"
        )
    if config.negatives.queue:
        raise UserError(
            "loss.align_to takes its negatives from the batch alone: set negatives.queue=0"
        )


def check_groups(config: Config) -> None:
    """Check that SupCon gets all of the rule's candidates, some of them of other groups."""
    if config.loss.name != "sup_con":
        return
    options = config.negatives
    if options.rule in ("same_group", "own_sequence"):
        raise UserError(
            f"loss.name is sup_con, and under negatives.rule={options.rule} all candidates are of "
            "the positive's group: choose batch, excluding_sequence or one_per_sequence"
        )
    if options.num_sampled or options.choose != "uniform":
        raise UserError(
            "loss.name is sup_con, which takes all candidates of other groups as negatives: set "
            "negatives.num_sampled=0 and negatives.choose=uniform"
        )


def check_temperature(options: Config) -> None:
    """Check that the temperature is above 0 and starts within the limits of its rule."""
    if options.temperature <= 0:
        raise UserError(f"negatives.temperature is {options.temperature}: it must be above 0")
    low, high = options.temperature_low, options.temperature_high
    if not 0 < low < high:
        raise UserError(
            f"negatives.temperature_low is {low} and temperature_high {high}: they must be above 0 "
            "and ascend"
        )
    if options.temperature_rule != "fixed" and not low < options.temperature < high:
        raise UserError(
            f"negatives.temperature is {options.temperature}: under the rule "
            f"{options.temperature_rule} it starts between temperature_low ({low}) and "
            f"temperature_high ({high})"
        )


def name_negatives(rule: Rule, choose: NegativeSampler | None, options: Config) -> str:
    """Return rule, sampler and queue in words, for records."""
    has_number = "num_sampled" in negatives.SAMPLERS[options.choose].options
    number = f"{options.num_sampled} " if has_number else ""
    chosen = "" if choose is None else f", {number}{options.choose}"
    return f"{rule.name}{chosen}" + (f", queue of {options.queue:,}" if options.queue else "")


def make_rule(config: Config) -> Rule:
    """Return the negative rule of a config, with its window and its shards."""
    options, batch_size = config.negatives, config.data.batch_size
    word = "batch" if options.rule == "auto" else options.rule  # until a kind knows its data
    rule = negatives.RULES[word]
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.queue and (options.rule == "own_sequence" or options.shards != 1):
        key = "rule=own_sequence" if options.rule == "own_sequence" else f"shards={options.shards}"
        raise UserError(
            f"negatives.queue is {options.queue}, and negatives.{key} takes none of its latents: "
            "set negatives.queue=0, or take negatives from other batches, too"
        )
    if options.shards != 1:
        rule = rule & negatives.within_shards(options.shards, batch_size)
    return rule


def make_anchor_loss(options: Config) -> AnchorLoss:
    """Return the loss of an anchor, its options bound; the temperature comes before."""
    return LOSSES[options.name].bind(dict(options))


def check_loss(options: Config) -> None:
    """Check that the options of the loss go together.

    Raises:
        UserError: saying which key to set instead.
    """
    about = LOSSES[options.name].description
    if about.needs_cosines and not options.cosine:
        raise UserError(
            f"loss.name is {options.name!r}, whose scores are cosines: set loss.cosine=True"
        )
    if about.has_floor and (options.bias or options.learn_bias):
        raise UserError(
            f"loss.name is {options.name!r}, whose floor is that of cosines without a bias: set "
            "loss.bias=0 and loss.learn_bias=False, or choose sigmoid or nce"
        )


def make_sampler(options: Config) -> NegativeSampler | None:
    """Return what chooses among the allowed negatives of an anchor; None for all.

    With a queue they may be more than a batch has: where there is none, in the audit and in
    evaluations, those of the batch are all that there are.
    """
    choose, k = sampler_of(options), options.num_sampled
    if choose is None or not options.queue:
        return choose

    def choose_of_fewer(rng, positive, scores, where):
        more = [(0, 0), (0, max(0, k - scores.shape[-1]))]
        return choose(rng, positive, jnp.pad(scores, more), jnp.pad(where, more))

    return choose_of_fewer


def sampler_of(options: Config) -> NegativeSampler | None:
    """Return the sampler that `negatives.choose` names; None for all negatives."""
    word = options.choose
    sampler = negatives.SAMPLERS[word]
    if "num_sampled" not in sampler.options or options.num_sampled:
        return sampler.make(*(options[name] for name in sampler.options))
    if word == "uniform":
        return None
    raise UserError(f"negatives.choose is {word}, which needs a number: set negatives.num_sampled")


def check_window(config: Config, rule: Rule, geometry: Geometry) -> None:
    """Check that at every offset up to the furthest some anchor of a window has a negative.

    Rules look at how far two latents lie apart, and at whether their windows, and shards, are the
    same. So it is enough to ask about the first and the last anchor, about candidates at both ends
    and around the positive, and about a window near and one far away.
    """
    length = geometry.num_latents
    furthest = max(max(branch.offsets) for branch in geometry.branches)
    if length < 2:
        key = next(f"data.{name}" for name in config.data if name.startswith("window_"))
        raise UserError(f"a window has {length} latent, so no other is ahead of it: raise {key}")
    batch_size = config.data.batch_size
    sequence = np.unique([0, min(1, batch_size - 1), batch_size - 1])[:, None]
    for k in range(1, min(furthest, length - 1) + 1):
        first = np.array([0, length - 1 - k])[:, None, None]
        time = np.clip([0, 1, k - 1, k, k + 1, length - 2, length - 1], 0, length - 1)
        anchors = Position(0 * first, first, 0 * first, 0 * first)
        candidates = Position(sequence, time, 0 * time, 0 * time)
        if not np.any(rule(anchors, candidates, k)):
            raise UserError(
                f"the rule {rule.name} leaves a batch of {batch_size} windows no negatives at "
                f"offset {k}: raise data.batch_size, or choose another rule or window"
            )
