"""Descriptions: every loss has one, partials are looked into, two critics are no bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpc import losses
from cpc.losses import describe

LOG_Q = jnp.log(jnp.array([0.2, 0.8]))
bind = functools.partial

CONTRASTED = (
    *("info_nce", "ranking_nce", "nce", "negative_sampling", "sampled_softmax", "sampled_logistic"),
    *("full_softmax", "full_logistic", "nt_xent", "sup_con", "decoupled", "debiased"),
    *("hard_weighted", "sigmoid", "triplet"),
)
BOUNDS = {"info_nce", "ranking_nce", "sampled_softmax"}


def test_every_loss_is_in_the_table():
    described = {name: describe(getattr(losses, name)) for name in CONTRASTED}
    assert len({one.name for one in described.values()}) == len(CONTRASTED)
    for name, description in described.items():
        assert description != losses.Description(description.name)
        assert description.bounds == ("I(x; c)" if name in BOUNDS else None)
        assert description.is_bound(independent_negatives=True) == (name in BOUNDS)
        assert not description.is_bound(independent_negatives=False)


OPTIONS = {
    "nce": {"log_noise_positive": 0.0, "log_noise_negatives": 0.0},
    "nt_xent": {"temperature": 1.0},
    "debiased": {"prior": 0.1},
    "hard_weighted": {"prior": 0.1, "concentration": 1.0},
    "triplet": {"margin": 1.0},
}


@pytest.mark.parametrize("name", sorted(set(CONTRASTED) - {"full_softmax", "full_logistic"}))
def test_log_n_is_the_loss_at_chance_and_nothing_is_it_at_best(name):
    """Decoupled has no floor; SupCon has both, but with one positive alone."""
    loss = bind(getattr(losses, name), **OPTIONS.get(name, {}))
    chance, best = jax.jit(lambda *scores: loss(*scores))(jnp.array([0.0, 50.0]), jnp.zeros((2, 9)))
    has_both = np.isclose(chance, np.log(10)) and np.isclose(best, 0, atol=1e-5)
    assert describe(loss).has_log_n == (has_both and name != "sup_con")


def test_partials_are_looked_into():
    once = bind(losses.triplet, margin=0.2)
    assert describe(bind(once, mining="all")) == describe(losses.triplet)
    assert describe(bind(losses.info_nce, temperature=0.1)).bounds == "I(x; c)"


@pytest.mark.parametrize(
    ("loss", "prefix"), [(losses.ranking_nce, "log_noise"), (losses.sampled_softmax, "log_q")]
)
def test_a_correction_is_part_of_the_critic_on_every_candidate_or_none(loss, prefix):
    positive, negatives = f"{prefix}_positive", f"{prefix}_negatives"
    for keywords in (
        {},
        {positive: -3.0, negatives: -3.0},
        {positive: LOG_Q, negatives: LOG_Q},
        {positive: np.float32(-0.1), negatives: jnp.float32(-0.1)},
    ):
        assert describe(bind(loss, **keywords)).bounds == "I(x; c)", keywords
    for keywords in (
        {negatives: LOG_Q},
        {positive: LOG_Q},
        {negatives: -3.0},
        {positive: -1.0, negatives: -3.0},
        {positive: jnp.float32(-1), negatives: -3.0},
    ):
        description = describe(bind(loss, **keywords))
        assert description.bounds is None, keywords
        assert description.optimum is None
        assert not description.is_bound(independent_negatives=True)
    within = bind(bind(loss, **{positive: LOG_Q}), **{negatives: LOG_Q})
    assert describe(within).bounds == "I(x; c)"


def test_noise_corrections_leave_other_losses_as_they_are():
    bound = bind(losses.nce, log_noise_positive=-1.0, log_noise_negatives=LOG_Q)
    assert describe(bound) == describe(losses.nce)


class Unhashable:
    __hash__ = None

    def __call__(self, positive, negatives, where=None):
        return positive


def test_unknown_functions_are_scores():
    def my_loss(positive, negatives, where=None):
        return positive

    for loss, name in (
        (my_loss, "my_loss"),
        (bind(my_loss), "my_loss"),
        (Unhashable(), "Unhashable"),
        (lambda *x: x[0], "<lambda>"),
    ):
        description = describe(loss)
        assert description.name == name
        assert description.bounds is None
        assert not description.is_bound(independent_negatives=True)
