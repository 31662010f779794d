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
from experiments.training.checks import reject


class Branch(NamedTuple):
    """A set of predictions with its own loss term."""

    name: str
    offsets: tuple[int, ...]
    """How far ahead each prediction is of, in latents."""
    shared: tuple[float, ...] = ()
    """Fraction of each target's input that its context has seen; () if unknown."""


class Geometry(NamedTuple):
    """How many latents and predictions a config makes of one sequence or image."""

    num_latents: int
    width: int
    """Width of a latent."""
    branches: tuple[Branch, ...]
    window: str = ""
    """Key of the window in which the latents follow each other; "" if they do not."""
    apart: int = 0
    """Length of a window of which no overlapping one is a negative; 0 allows them."""
    excludes_anchor: bool = False
    """Whether the latent at the anchor's own time is no negative."""
    is_aligned: bool = False
    """Whether predictions are aligned, in order, to the latents up to the last offset (ACPC)."""

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


def make_plan(config: Config, geometry: Geometry) -> Plan:
    """Interpret a config's loss and negatives."""
    options = config.negatives
    check_objective(config)
    own, choose = make_rule(config), make_sampler(options)
    rule = own & negatives.outside_overlap(geometry.apart) if geometry.apart else own
    rule = rule & negatives.outside_anchor() if geometry.excludes_anchor else rule
    loss = LOSSES[config.loss.name].bind(dict(config.loss))
    description = describe(loss)
    description = describe_aligned(description) if geometry.is_aligned else description
    if geometry.window:
        check_window(config, own, geometry)
    number = f"{options.num_sampled} " if takes_number(options) else ""
    words = own.name if choose is None else f"{own.name}, {number}{options.choose}"
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
        negatives=words + (f", queue of {options.queue:,}" if options.queue else ""),
        is_bound=description.is_bound(is_independent),
    )


def check_objective(config: Config) -> None:
    """Check that the keys of the loss and of the negatives go together."""
    loss, options = config.loss, config.negatives
    about, is_sup_con = LOSSES[loss.name].description, loss.name == "sup_con"
    low, high = options.temperature_low, options.temperature_high
    needs_number = options.choose != "uniform" and takes_number(options)
    reject(config,
        (about.needs_cosines and not loss.cosine, "loss.name",
         "its scores are cosines; set loss.cosine=True"),
        (about.has_floor and (loss.bias or loss.learn_bias), "loss.name",
         "its floor is that of cosines without a bias; set loss.bias=0 and "
         "loss.learn_bias=False, or choose sigmoid or nce"),
        (is_sup_con and options.rule in ("same_group", "own_sequence"), "loss.name negatives.rule",
         "all candidates are of the positive's group; choose batch, excluding_sequence or "
         "one_per_sequence"),
        (is_sup_con and (options.num_sampled or options.choose != "uniform"), "loss.name",
         "it takes all candidates of other groups; set negatives.num_sampled=0 and "
         "negatives.choose=uniform"),
        (low >= high, "negatives.temperature_low negatives.temperature_high",
         "the limits must ascend"),
        (options.temperature_rule != "fixed" and not low < options.temperature < high,
         "negatives.temperature negatives.temperature_low negatives.temperature_high",
         "a temperature that changes starts between its limits"),
        (options.queue and options.rule == "own_sequence", "negatives.queue negatives.rule",
         "the rule takes none of its latents; set negatives.queue=0, or choose another rule"),
        (options.queue and options.shards != 1, "negatives.queue negatives.shards",
         "a shard takes none of its latents; set negatives.queue=0 or negatives.shards=1"),
        (needs_number and not options.num_sampled, "negatives.choose",
         "it needs a number; set negatives.num_sampled"),
    )  # fmt: skip


def takes_number(options: Config) -> bool:
    """Return whether the sampler of a config draws `negatives.num_sampled`."""
    return "num_sampled" in negatives.SAMPLERS[options.choose].options


def make_rule(config: Config) -> Rule:
    """Return the negative rule of a config, with its window and its shards."""
    options, batch_size = config.negatives, config.data.batch_size
    word = "batch" if options.rule == "auto" else options.rule  # until a kind knows its data
    rule = negatives.RULES[word]
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.shards != 1:
        rule = rule & negatives.within_shards(options.shards, batch_size)
    return rule


def make_sampler(options: Config) -> NegativeSampler | None:
    """Return what chooses among the allowed negatives of an anchor; None for all."""
    sampler, k = negatives.SAMPLERS[options.choose], options.num_sampled
    if takes_number(options) and not k:
        return None
    choose = sampler.make(*(options[name] for name in sampler.options))
    if not options.queue:
        return choose

    # A queue allows more than a batch has, which the audit and evaluations make do with.
    def choose_of_fewer(rng, positive, scores, where):
        more = [(0, 0), (0, max(0, k - scores.shape[-1]))]
        return choose(rng, positive, jnp.pad(scores, more), jnp.pad(where, more))

    return choose_of_fewer


def check_window(config: Config, rule: Rule, geometry: Geometry) -> None:
    """Check that at every offset up to the furthest some anchor of a window has a negative."""
    length = geometry.num_latents
    # Rules depend only on distances and sameness: a few anchors and candidates stand for all.
    furthest = max(max(branch.offsets) for branch in geometry.branches)
    if length < 2:
        raise UserError(
            f"a window has {length} latent, so no other is ahead of it: raise {geometry.window}"
        )
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
