"""What the criterion costs a device as devices are added: arithmetic, and the compiled program.

Weak scaling: each device has its own windows, and negatives come from all. With m anchors a device,
n = p m keys of width d, k offsets and 4 bytes a number, a device

    gathers   2 (p - 1) / p n d numbers: keys in, the sum of their gradients out; 6 k m n d FLOP
    rings     about 3 n d numbers: keys twice round, gradients once; 8 k m n d FLOP, hidden behind

so that both grow with p, and their ratio does not: a link binds, or it never does.
"""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cpc import negatives
from cpc.losses.blocks import Plan
from cpc.losses.tiles import Latents
from cpc.parallel import gathered_losses, ring_losses, takes_ring
from cpc.train import BATCH_AXIS, batch_sharding, make_mesh
from cpc.types import Position
from experiments.bench.table import Row

#: The paper's: 8 windows of 128 latents a device, 12 offsets, width 512.
ANCHORS, OFFSETS, WIDTH = 8 * 128, 12, 512
#: FLOP of encoder and context a window, forward and backward (performance of the audio step).
WINDOW_FLOP = 19.1e9
#: Assumed, not measured: 40 % of an H100 SXM's 989 TFLOP/s in bfloat16 (NVIDIA data sheet).
FLOP_PER_SECOND = 0.4 * 989e12
#: Assumed: NVLink 4, 900 GB/s both ways together; between machines one 400 Gb/s port a GPU.
NVLINK_BYTES, NETWORK_BYTES, GPUS_PER_MACHINE = 450e9, 50e9, 8


class Cost(NamedTuple):
    """Of a device and step."""

    sent_bytes: float
    flop: float
    held_bytes: float
    """Keys and their gradients."""


def criterion_cost(
    form: str, p: int, anchors: int = ANCHORS, offsets: int = OFFSETS, width: int = WIDTH
) -> Cost:
    """Of the criterion, forward and backward, on p devices.

    >>> criterion_cost("gather", 2, anchors=3, offsets=1, width=1)
    Cost(sent_bytes=24, flop=108, held_bytes=48)
    >>> criterion_cost("ring", 2, anchors=3, offsets=1, width=1)
    Cost(sent_bytes=84, flop=144, held_bytes=48)
    """
    share = 4 * anchors * width
    pairs = offsets * anchors * (p * anchors) * width
    if form == "gather":
        return Cost(2 * (p - 1) * share, 6 * pairs, (1 + offsets) * p * share)
    # p hops of the keys forward; backward p of keys and p + 1 of their gradients.
    return Cost((3 * p + 1) * share, 8 * pairs, 4 * share)


def seconds(p: int) -> tuple[str, float, float, float]:
    """The form chosen on p devices, and seconds of its products, its link and the encoder."""
    form = "ring" if takes_ring(OFFSETS, p * ANCHORS, WIDTH) else "gather"
    cost = criterion_cost(form, p)
    link = NVLINK_BYTES if p <= GPUS_PER_MACHINE else NETWORK_BYTES
    encoder = ANCHORS / 128 * WINDOW_FLOP / FLOP_PER_SECOND
    return form, cost.flop / FLOP_PER_SECOND, cost.sent_bytes / link, encoder


def scaling_rows() -> list[Row]:
    """What 8, 64 and 512 devices would do on the assumed speeds; what binds."""
    rows = []
    for p in (8, 64, 512):
        form, products, link, encoder = seconds(p)
        criterion = max(products, link) if form == "ring" else products + link
        parts = {"encoder": encoder, "products": products, "link": link}
        if form == "ring":  # the shorter of the two is hidden
            parts.pop(min(("products", "link"), key=parts.__getitem__))
        figures = {
            "form": form,
            "sent_megabytes": criterion_cost(form, p).sent_bytes / 1e6,
            "criterion_gflop": criterion_cost(form, p).flop / 1e9,
            "held_megabytes": criterion_cost(form, p).held_bytes / 1e6,
            "encoder_milliseconds": 1e3 * encoder,
            "products_milliseconds": 1e3 * products,
            "link_milliseconds": 1e3 * link,
            "efficiency": encoder / (encoder + criterion),
            "binds": max(parts, key=parts.__getitem__),
        }
        text = (
            "{}: {:,.0f} MB sent, {:,.0f} GFLOP, {:,.0f} MB held; encoder {:.2f} ms, products "
            "{:.2f} ms, link {:.2f} ms; {:.0%} of the step is encoder; {} binds"
        ).format(*figures.values())
        rows.append(Row(f"{p} devices, arithmetic only", figures, text))
    return rows


def compile_criterion(form: str, p: int, b: int, length: int, width: int, offsets: int) -> Any:
    """The compiled value and gradient of a form on p devices."""
    mesh = make_mesh(p)
    place = [jnp.arange(b)[:, None], jnp.arange(length)[None], *jnp.zeros((2, 1, 1), jnp.int32)]
    anchors = Latents(
        Position(*(jnp.broadcast_to(x, (b, length)) for x in place)), jnp.ones((b, length), bool)
    )
    steps = tuple(range(1, offsets + 1))
    plan = Plan(negatives.batch, None, None, steps, b * length, None)
    criterion = ring_losses if form == "ring" else gathered_losses

    def loss(predictions, z):
        args = predictions, z.reshape(-1, width), anchors, jax.tree.map(jnp.ravel, anchors)
        return criterion(*args, plan, mesh, BATCH_AXIS)[0].sum()

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    rows = jax.NamedSharding(mesh, jax.P(None, BATCH_AXIS))
    shapes = (
        shape((offsets, b, length, width), sharding=rows),
        shape((b, length, width), sharding=batch_sharding(mesh)),
    )
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return step.lower(*shapes).compile()


def collectives(text: str) -> dict[str, list[int]]:
    """Numbers that each collective of float matrices puts out, by its name."""
    found: dict[str, list[int]] = {}
    pattern = r"= f32\[([\d,]+)\]\S* (all-gather|reduce-scatter|collective-permute|all-reduce)\("
    for shape, name in re.findall(pattern, text):
        numbers = [int(size) for size in shape.split(",")]
        if len(numbers) > 1:
            found.setdefault(name, []).append(functools.reduce(int.__mul__, numbers))
    return found
