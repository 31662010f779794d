"""Values of a config that do not go together: each mistake is its keys, and what to do."""

from typing import Any

from cpc.files import flatten
from cpc.types import UserError
from experiments.command.config import Config


def reject(config: Config, *mistakes: tuple[Any, str, str]) -> None:
    """Raise a UserError for the first mistake that a config makes.

    Args:
        config: the config.
        mistakes: for each, whether it is made, its keys, and what is wrong and what to do.

    >>> from configs.series import get_config
    >>> reject(get_config(), (True, "log_every eval_every", "set eval_every to a multiple"))
    Traceback (most recent call last):
    cpc.types.UserError: log_every is 50 and eval_every is 250: set eval_every to a multiple
    """
    for is_made, keys, advice in mistakes:
        if is_made:
            values = flatten(config)
            given = " and ".join(f"{key} is {values[key]!r}" for key in keys.split())
            raise UserError(f"{given}: {advice}")


def check_batch_norm(config: Config) -> None:
    """Check that the statistics of batch norm are those of the model that is evaluated."""
    is_batch = config.model.norm == "batch"
    reject(config,
        (is_batch and config.optim.name == "schedule_free", "model.norm optim.name",
         "an average of the parameters is evaluated, and the statistics are of others; choose "
         "another model.norm, or another optimizer"),
        (is_batch and config.optim.accumulate > 1, "model.norm optim.accumulate",
         "batch norm would see a part of the batch at a time; choose another model.norm, or set "
         "optim.accumulate to 1"),
    )  # fmt: skip


def check_lists(config: Config) -> None:
    """Check that training and test data are both named by lists, or none is."""
    lists = config.data.train_list, config.data.test_list
    reject(config,
        (bool(lists[0]) != bool(lists[1]), "data.train_list data.test_list",
         "set both, or neither"),
    )  # fmt: skip


def check_probes(config: Config) -> None:
    """Check that probes have features, and as many frames as labels."""
    has_tasks = bool(config.probe.tasks)
    reject(config,
        (has_tasks and not config.probe.features, "probe.features",
         "name one or more, or set probe.tasks to ()"),
        (has_tasks and config.model.get("padding") == "valid", "model.padding",
         "there are fewer latents than labels; probe with causal or same padding, or set "
         "probe.tasks to ()"),
    )  # fmt: skip


def check_refit(config: Config, key: str) -> None:
    """Check that a network trained on labels is not trained again at each evaluation."""
    section, name = key.split(".")
    reject(config,
        (config.probe.every and "supervised" in config[section][name], f"probe.every {key}",
         "the supervised network would be trained anew each time, with the same result; set "
         f"probe.every to 0, or take supervised out of {key}"),
    )  # fmt: skip
