"""Configs with extreme values: rejected or started, within limits of time and memory."""

import contextlib
import importlib
import multiprocessing
import resource

from cpc.files import flatten
from cpc.train import check_batch_size, make_mesh
from experiments.command.config import with_settings
from experiments.kinds.registry import CONTRASTIVE
from experiments.training.contrastive import interpret
from tests.endurance.tries import CRASHED, HUNG, LIMIT_SECONDS, Try, attempt

CARDS = {"audio": "audio_synthetic", "image": "image_fashion_mnist", "series": "series_ar1"}
NUMBERS = (-1, 0, 1, 2, 3, 7, 1000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**10, 10**25)
REALS = (-1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, 1e10, 1e300, float("inf"), float("nan"))
TEXTS = ("", "none", "x", "~nobody/x", "a\nb", "<b>", "../..", "/dev/zero", "grün", "0" * 5000)
#: Values by the type of a key's default.
VALUES = {bool: (False, True), int: NUMBERS, float: REALS, str: TEXTS}
#: More than any config should need, less than the machine has.
MEMORY_BYTES = 16 * 2**30


def tries(rng, folder):
    """Yield configs with one to three changed keys, checked like at a start in a fork."""
    context = multiprocessing.get_context("fork")
    while True:
        kind = str(rng.choice(list(CARDS)))
        keys = flatten(CONTRASTIVE[kind].KEYS)
        choices = [name for name in keys if name != "kind"]
        names = map(str, rng.choice(choices, int(rng.integers(1, 4)), replace=False))
        settings = {name: draw_value(rng, keys[name]) for name in names}
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=answer, args=(theirs, kind, settings), daemon=True)
        process.start()
        theirs.close()
        one = Try(f"{kind}: {settings}", HUNG)
        if ours.poll(LIMIT_SECONDS):
            try:
                one = ours.recv()
            except EOFError:
                process.join()
                one = one._replace(outcome=CRASHED, said=f"ended with {process.exitcode}")
        process.kill()
        process.join()
        yield one


def draw_value(rng, key):
    is_tuple = isinstance(key.default, tuple)
    if key.words and rng.random() < 0.7:
        word = key.words[rng.integers(len(key.words))]
        return (word,) if is_tuple else word
    values = VALUES.get(type(key.default[0] if is_tuple and key.default else key.default), TEXTS)
    drawn = tuple(values[i] for i in rng.integers(0, len(values), rng.integers(0, 4)))
    return drawn if is_tuple else values[rng.integers(len(values))]


def answer(pipe, kind, settings):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def use(said):
        with contextlib.suppress(MemoryError):  # commands report it
            check(kind, settings)

    try:
        pipe.send(attempt(f"{kind}: {settings}", use))
    except BaseException as error:  # for example SystemExit
        pipe.send(Try(f"{kind}: {settings}", CRASHED, repr(error)))


def check(kind, settings):
    modality = CONTRASTIVE[kind]
    card = importlib.import_module(f"configs.{CARDS[kind]}").get_config()
    config = with_settings(card, settings)
    check_batch_size(config.data.batch_size, make_mesh(1))
    plan = interpret(modality, config)
    if kind == "image" or config.data.source == "voices":  # these data would be downloaded
        return
    modality.make_problem(plan, modality.load_data(config, lambda text: None)).draw(0)
