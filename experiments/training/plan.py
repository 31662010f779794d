"""The plan of a run: the loss, negatives and sizes that a validated config determines.

Configs and geometries are plain values, so plans can be compared and printed without JAX.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from ml_collections import FrozenConfigDict

from cpc import negatives
from cpc.losses import LOSSES, AnchorLoss, Description, describe, describe_aligned
from cpc.types import NegativeSampler, Position, Rule, UserError
from experiments.command.config import Config
from experiments.training.checks import reject


class Branch(NamedTuple):
    """A set of predictions with a loss term of its own."""

    name: str
    offsets: tuple[int, ...]
    """Distance from the anchor latent to each prediction's target, in latents."""
    shared: tuple[float, ...] = ()
    """Fraction of each target's input that its context has already seen, or () if unknown."""


class Geometry(NamedTuple):
    """The numbers of latents and predictions for one sequence or image."""

    num_latents: int
    width: int
    """Width of a latent."""
    branches: tuple[Branch, ...]
    window: str = ""
    """Config key of the window's length, or "" if latents are not consecutive in a window."""
    apart: int = 0
    """Window length for excluding negatives from overlapping windows, or 0 to allow them."""
    excludes_anchor: bool = False
    """Whether to exclude the latent at the anchor's own time from the negatives."""
    is_aligned: bool = False
    """Whether predictions are aligned, in order, to the latents up to the last offset (ACPC)."""

    @property
    def num_offsets(self) -> int:
        """Number of predictions per latent, over all branches."""
        return sum(len(branch.offsets) for branch in self.branches)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config and everything derived from it.

    Plans are compared by config and geometry. These determine the other fields.
    """

    config: Config
    """All keys of the run, frozen."""
    geometry: Geometry
    rule: Rule = dataclasses.field(compare=False)
    """Rule that admits latents as negatives."""
    sampler: NegativeSampler | None = dataclasses.field(compare=False)
    """Sampler of the admitted negatives, or None to use all of them."""
    loss: AnchorLoss = dataclasses.field(compare=False, repr=False)
    """Loss per anchor with its options bound, as a function of scores divided by temperature."""
    description: Description
    """Properties of the loss, such as its optimum and whether log N - L is meaningful."""
    negatives: str
    """Name of the negative sampling scheme, as recorded."""
    is_bound: bool
    """Whether log N - L is a lower bound on mutual information."""
    start: Any = dataclasses.field(default=None, compare=False, repr=False)
    """Weights to start from (`experiments.training.weights.Start`), or None."""


def make_plan(config: Config, geometry: Geometry) -> Plan:
    """Return the plan of a config, after validating its loss and negatives."""
    options = config.negatives
    check_objective(config)
    base_rule, sampler = make_rule(config), make_sampler(options)
    rule = base_rule & negatives.outside_overlap(geometry.apart) if geometry.apart else base_rule
    rule = rule & negatives.outside_anchor() if geometry.excludes_anchor else rule
    loss = LOSSES[config.loss.name].bind(dict(config.loss))
    description = describe(loss)
    description = describe_aligned(description) if geometry.is_aligned else description
    if geometry.window:
        check_window(config, base_rule, geometry)
    number = f"{options.num_sampled} " if takes_number(options) else ""
    name = base_rule.name if sampler is None else f"{base_rule.name}, {number}{options.choose}"
    # A bound needs independent draws from the marginal.
    is_current = rule.is_bound and not options.queue and not options.momentum
    is_independent = is_current and (sampler is None or options.choose == "uniform")
    return Plan(
        config=FrozenConfigDict(config.to_dict()),  # a copy that callers cannot modify
        geometry=geometry,
        rule=rule,
        sampler=sampler,
        loss=loss,
        description=description,
        negatives=name + (f", queue of {options.queue:,}" if options.queue else ""),
        is_bound=description.is_bound(is_independent),
    )


def check_objective(config: Config) -> None:
    """Validate combinations of `loss` keys and `negatives` keys."""
    loss, options = config.loss, config.negatives
    description, is_sup_con = LOSSES[loss.name].description, loss.name == "sup_con"
    low, high = options.temperature_low, options.temperature_high
    needs_number = options.choose != "uniform" and takes_number(options)
    reject(config,
        (description.needs_cosines and not loss.cosine, "loss.name",
         "this loss scores by cosine; set loss.cosine=True"),
        (description.has_floor and (loss.bias or loss.learn_bias), "loss.name",
         "the floor of this loss assumes cosines without a bias; set loss.bias=0 and "
         "loss.learn_bias=False, or set loss.name to sigmoid or nce"),
        (is_sup_con and options.rule in ("same_group", "own_sequence"), "loss.name negatives.rule",
         "all candidates share the positive's group; set negatives.rule to batch, "
         "excluding_sequence or one_per_sequence"),
        (is_sup_con and (options.num_sampled or options.choose != "uniform"), "loss.name",
         "this loss uses all candidates of other groups; set negatives.num_sampled=0 and "
         "negatives.choose=uniform"),
        (low >= high, "negatives.temperature_low negatives.temperature_high",
         "set the lower limit below the upper limit"),
        (options.temperature_rule != "fixed" and not low < options.temperature < high,
         "negatives.temperature negatives.temperature_low negatives.temperature_high",
         "set the initial temperature between its limits"),
        (options.queue and options.rule == "own_sequence", "negatives.queue negatives.rule",
         "this rule admits no latents of a queue; set negatives.queue=0 or choose another "
         "negatives.rule"),
        (options.queue and options.shards != 1, "negatives.queue negatives.shards",
         "shards cannot use the latents of a queue; set negatives.queue=0 or negatives.shards=1"),
        (needs_number and not options.num_sampled, "negatives.choose",
         "this sampler needs a number of negatives; set negatives.num_sampled"),
    )  # fmt: skip


def takes_number(options: Config) -> bool:
    """Return whether the sampler of `options` draws `num_sampled` negatives."""
    return "num_sampled" in negatives.SAMPLERS[options.choose].options


def make_rule(config: Config) -> Rule:
    """Return a config's rule that admits negatives, including its window and shards."""
    options, batch_size = config.negatives, config.data.batch_size
    name = "batch" if options.rule == "auto" else options.rule  # a kind resolves auto from its data
    rule = negatives.RULES[name]
    if options.window:
        rule = rule & negatives.outside_window(options.window)
    if options.shards != 1:
        rule = rule & negatives.within_shards(options.shards, batch_size)
    return rule


def make_sampler(options: Config) -> NegativeSampler | None:
    """Return the sampler of negatives, or None to use all negatives that the rule admits."""
    kind, k = negatives.SAMPLERS[options.choose], options.num_sampled
    if takes_number(options) and not k:
        return None
    sampler = kind.make(*(options[name] for name in kind.options))
    if not options.queue:
        return sampler

    # With a queue, num_sampled may exceed the candidates in a batch. The audit and evaluations use
    # only candidates in the batch, so pad them with masked ones.
    def sample_padded(rng, positive, scores, where):
        more = [(0, 0), (0, max(0, k - scores.shape[-1]))]
        return sampler(rng, positive, jnp.pad(scores, more), jnp.pad(where, more))

    return sample_padded


def check_window(config: Config, rule: Rule, geometry: Geometry) -> None:
    """Check that at every offset, at least one anchor of a window has a negative."""
    length = geometry.num_latents
    # Rules depend only on distances and equality, so a few anchors and candidates are enough.
    furthest = max(max(branch.offsets) for branch in geometry.branches)
    if length < 2:
        raise UserError(f"a window must have 2 latents (got {length}): raise {geometry.window}")
    batch_size = config.data.batch_size
    sequence = np.unique([0, min(1, batch_size - 1), batch_size - 1])[:, None]
    for k in range(1, min(furthest, length - 1) + 1):
        first = np.array([0, length - 1 - k])[:, None, None]
        time = np.clip([0, 1, k - 1, k, k + 1, length - 2, length - 1], 0, length - 1)
        anchors = Position(0 * first, first, 0 * first, 0 * first)
        candidates = Position(sequence, time, 0 * time, 0 * time)
        if not np.any(rule(anchors, candidates, k)):
            raise UserError(
                f"rule {rule.name} leaves a batch of {batch_size} windows no negatives at offset "
                f"{k}: raise data.batch_size, or choose another negatives.rule or negatives.window"
            )
