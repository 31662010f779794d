"""Configs with extreme values: rejected or started, within limits of time and memory."""

import multiprocessing
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from configs.keys import Key
from cpc.files import flatten
from cpc.types import UserError
from experiments.command.config import with_settings
from experiments.kinds.registry import CONTRASTIVE
from tests.endurance.tries import CRASHED, HUNG, LIMIT_SECONDS, SURVIVED, Try, describe

CARDS = {"audio": "audio_synthetic", "image": "image_fashion_mnist", "series": "series_ar1"}
NUMBERS = (-1, 0, 1, 2, 3, 7, 1000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**10, 10**25)
REALS = (-1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, 1e10, 1e300, float("inf"), float("nan"))
TEXTS = ("", "none", "x", "~nobody/x", "a\nb", "<b>", "../..", "/dev/zero", "grün", "0" * 5000)
#: More than any config should need, less than the machine has.
MEMORY_BYTES = 16 * 2**30


def tries(rng: np.random.Generator, folder: Path) -> Iterator[Try]:
    """Yield configs with one to three changed keys, checked like at a start."""
    context = multiprocessing.get_context("fork")
    while True:
        kind = str(rng.choice(list(CARDS)))
        settings = draw(rng, kind)
        yield run_apart(context, f"{kind}: {settings}", kind, settings)


def draw(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    keys = {name: key for name, key in flatten(CONTRASTIVE[kind].KEYS).items() if name != "kind"}
    names = rng.choice(list(keys), int(rng.integers(1, 4)), replace=False)
    return {str(name): draw_value(rng, keys[str(name)]) for name in names}


def draw_value(rng: np.random.Generator, key: Key) -> Any:
    if key.words and rng.random() < 0.7:
        word = key.words[rng.integers(len(key.words))]
        return (word,) if isinstance(key.default, tuple) else word
    if isinstance(key.default, bool):
        return bool(rng.integers(2))
    if isinstance(key.default, int):
        return NUMBERS[rng.integers(len(NUMBERS))]
    if isinstance(key.default, float):
        return REALS[rng.integers(len(REALS))]
    if isinstance(key.default, tuple):
        entry = key.default[0] if key.default else "x"
        some = NUMBERS if isinstance(entry, int) else REALS if isinstance(entry, float) else TEXTS
        return tuple(some[i] for i in rng.integers(0, len(some), rng.integers(0, 4)))
    return TEXTS[rng.integers(len(TEXTS))]


def run_apart(context: Any, what: str, kind: str, settings: dict[str, Any]) -> Try:
    """Check a config in its own process, with limits of time and memory."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs, kind, settings), daemon=True)
    process.start()
    theirs.close()
    outcome = HUNG, ""
    if ours.poll(LIMIT_SECONDS):
        try:
            outcome = ours.recv()
        except EOFError:
            process.join()
            outcome = CRASHED, f"the process ended with {process.exitcode}"
    process.kill()
    process.join()
    return Try(what, *outcome)


def answer(pipe: Any, kind: str, settings: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: PTH123, SIM115
    try:
        check(kind, settings)
        pipe.send((SURVIVED, ""))
    except (UserError, MemoryError) as error:  # commands report both
        pipe.send((SURVIVED, str(error)))
    except BaseException as error:
        pipe.send((CRASHED, describe(error)))


def check(kind: str, settings: dict[str, Any]) -> None:
    import importlib

    from cpc.train import check_batch_size, make_mesh
    from experiments.training.contrastive import interpret

    modality = CONTRASTIVE[kind]
    card = importlib.import_module(f"configs.{CARDS[kind]}").get_config()
    config = with_settings(card, settings)
    mesh = make_mesh(1)
    check_batch_size(config.data.batch_size, mesh)
    plan = interpret(modality, config)
    if kind == "image" or config.data.source == "voices":  # these data would be downloaded
        return
    data = modality.load_data(config, lambda text: None)
    modality.make_problem(plan, data).draw(0)
