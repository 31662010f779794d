"""What a step costs by the size of the vocabulary, and what a draw costs."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from configs.keys import make_config
from configs.words import KEYS
from cpc.data import Corpus, Vocabulary
from cpc.negatives import AliasTable, alias_table, draw, log_uniform
from experiments.bench.timing import median_times, time_rounds
from experiments.command.config import with_settings
from experiments.kinds.words import run
from experiments.kinds.words.text import Text
from experiments.studies.from_ngram_to_infonce.fit import LANGUAGE_MODEL
from experiments.studies.nce.findings import Finding, check, finding

CASES = {
    "full softmax": {"objective.name": "full_softmax"},
    "NCE, 25 words of its own": {"objective.name": "nce", "objective.k": 25},
    "NCE, 512 words shared": {
        "objective.name": "nce", "objective.k": 25, "objective.share": 0, "objective.draws": 512,
    },
}  # fmt: skip


def step_cost(sizes: Sequence[int], positions: int, width: int, calls: int) -> Finding:
    """Time steps on a Zipfian text, by the words of the vocabulary."""
    rows: dict[str, list[float]] = {name: [] for name in CASES}
    for num_words in sizes:
        text, cases = zipfian(num_words, 4 * positions), {}
        for name, given in CASES.items():
            settings = {
                **LANGUAGE_MODEL, "data.positions": positions, "steps_per_launch": 2,
                "model.width": width, "optim.rule": "sgd", "optim.learning_rate": 1e-3, **given,
            }  # fmt: skip
            made = run.make(with_settings(make_config(KEYS), settings), text)
            cases[name] = stepper(made)
        for name, seconds in median_times(time_rounds(cases, calls)).items():
            rows[name].append(1000 * seconds / 2)
        del cases
    full, shared = (np.array(rows[name]) for name in ("full softmax", "NCE, 512 words shared"))
    growth = np.log(full[-1] / full[0]) / np.log(sizes[-1] / sizes[0])
    pays = next((size for size, ratio in zip(sizes, full / shared, strict=True) if ratio > 1), 0)
    checks = [
        check("growth of the full softmax, log-log over the sizes", growth, 0.5, 0.0,
              "its fixed costs weigh at small sizes", ">="),
        check(f"full softmax over NCE with shared words, {sizes[-1]:,} words",
              full[-1] / shared[-1], 1.0, 0.0, "", ">="),
    ]  # fmt: skip
    return finding(
        f"Milliseconds of a step of {positions} words, by the vocabulary",
        "the full softmax grows with the vocabulary, and sampled objectives hardly",
        f"{full[0]:.2g} to {full[-1]:.2g} ms against {shared[0]:.2g} to {shared[-1]:.2g} ms with "
        + (f"shared words; sampling pays from {pays:,} words on" if pays else "shared words"),
        checks,
        {"sizes": list(sizes), "rows": rows},
    )


def zipfian(num_words: int, num_tokens: int) -> Text:
    """Return independent draws of Zipf's law."""
    p = 1 / np.arange(1, num_words)
    rng = np.random.default_rng(0)
    tokens = (1 + rng.choice(num_words - 1, num_tokens, p=p / p.sum())).astype(np.int32)
    counts = np.append(0, np.maximum(1, 1e9 * p / p.sum())).astype(np.int64)
    starts = np.array([0, num_tokens])
    corpus = Corpus(tokens, starts, np.array([0, 1]), Vocabulary(("",) * num_words, counts), [])
    return Text(corpus, corpus)


def stepper(made):
    """Return a call that does a launch and waits for it."""
    held, batch = [made.state], made.stream.launch(0)

    def call():
        held[0] = made.launch(held[0], batch)
        jax.block_until_ready(held[0])

    return call


def draw_cost(sizes: Sequence[int], num_draws: int, calls: int) -> Finding:
    """Time draws of Zipfian noise: alias table, roulette by binary search, categorical."""
    rows: dict[str, list[float]] = {"alias": [], "roulette": [], "categorical": []}
    key = jax.random.key(0)
    for size in sizes:
        q = log_uniform(size)
        table = AliasTable(*map(jnp.asarray, alias_table(q)))
        upto, log_q = jnp.cumsum(jnp.asarray(q)), jnp.log(jnp.asarray(q))
        few = max(1, min(num_draws, 2_000_000 // size))  # categorical holds draws x classes
        by_alias = jax.jit(lambda key, table=table: draw(key, table, (num_draws,)))
        roulette = jax.jit(
            lambda key, upto=upto: jnp.searchsorted(upto, jax.random.uniform(key, (num_draws,)))
        )
        categorical = jax.jit(
            lambda key, log_q=log_q, few=few: jax.random.categorical(key, log_q, shape=(few,))
        )
        cases = {
            "alias": lambda f=by_alias: jax.block_until_ready(f(key)),
            "roulette": lambda f=roulette: jax.block_until_ready(f(key)),
            "categorical": lambda f=categorical: jax.block_until_ready(f(key)),
        }
        seconds = median_times(time_rounds(cases, calls))
        for name, num in (("alias", num_draws), ("roulette", num_draws), ("categorical", few)):
            rows[name].append(num / seconds[name])
    alias, roulette, categorical = (np.array(one) for one in rows.values())
    checks = [
        check(f"alias over categorical, {sizes[-1]:,} classes", alias[-1] / categorical[-1], 10, 0,
              "O(1) against O(V)", ">="),
        check(f"alias over roulette, {sizes[-1]:,} classes", alias[-1] / roulette[-1], 1, 0,
              "O(1) against O(log V)", ">="),
    ]  # fmt: skip
    return finding(
        "Draws a second by the number of classes",
        "an alias table draws in a time that does not depend on the classes, the roulette in one "
        "that grows with their logarithm, categorical draws with their number",
        f"{alias[-1]:.2g}, {roulette[-1]:.2g} and {categorical[-1]:.2g} draws a second from "
        f"{sizes[-1]:,} classes",
        checks,
        {"sizes": list(sizes), "rows": rows},
    )
