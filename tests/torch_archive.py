"""Files as torch.save writes them, opcode by opcode, so that tests need no torch."""

import io
import pickle
import struct
import zipfile

import numpy as np

KINDS = {"f8": "Double", "f4": "Float", "f2": "Half", "i8": "Long", "i4": "Int", "i2": "Short",
         "i1": "Char", "u1": "Byte", "b1": "Bool"}  # fmt: skip
OPEN, TUPLE, REDUCE, STOP = b"(", b"t", b"R", b"."


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def name(full):
    module, _, last = full.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def tuple_of(*parts):
    return OPEN + b"".join(parts) + TUPLE


def tensor(key, kind, numel, offset, shape, strides):
    place = tuple_of(
        text("storage"), name(f"torch.{kind}Storage"), text(key), text("cpu"), number(numel)
    )
    ordered = name("collections.OrderedDict") + b")" + REDUCE
    sizes = (tuple_of(*map(number, values)) for values in (shape, strides))
    arguments = tuple_of(place + b"Q", number(offset), *sizes, b"\x89", ordered)
    return name("torch._utils._rebuild_tensor_v2") + arguments + REDUCE


def opcodes(content, storages):
    """The opcodes of a content; its arrays are added to the storages."""
    if isinstance(content, bytes):  # opcodes of the test's own
        return content
    if isinstance(content, np.ndarray | np.generic):
        array = np.asarray(content)
        key = str(len(storages))
        storages[key] = array
        steps = [step // array.itemsize for step in np.ascontiguousarray(array).strides]
        steps = steps if array.ndim else []
        kind = "BFloat16" if array.dtype.name == "bfloat16" else KINDS[array.dtype.str[1:]]
        return tensor(key, kind, array.size, 0, array.shape, steps)
    if isinstance(content, dict):
        pairs = (opcodes(part, storages) for pair in content.items() for part in pair)
        return b"}" + OPEN + b"".join(pairs) + b"u"
    if isinstance(content, list):
        return b"]" + OPEN + b"".join(opcodes(one, storages) for one in content) + b"e"
    if isinstance(content, tuple):
        return tuple_of(*(opcodes(one, storages) for one in content))
    if isinstance(content, str):
        return text(content)
    if isinstance(content, float):
        return b"G" + struct.pack(">d", content)
    constants = {None: b"N", True: b"\x88", False: b"\x89"}
    if content is None or isinstance(content, bool):
        return constants[content]
    return number(content)


def members(content, order="little"):
    """Name -> content of the members of an archive."""
    storages = {}
    written = {"data.pkl": b"\x80\x02" + opcodes(content, storages) + STOP}
    swap = order == "big"
    written["byteorder"] = order.encode()
    for key, array in storages.items():
        plain = np.ascontiguousarray(array).view(f"u{array.itemsize}")
        written[f"data/{key}"] = (plain.byteswap() if swap else plain).tobytes()
    return {**written, "version": b"3\n"}


def write_zip(path, written, compression=zipfile.ZIP_STORED, root="archive"):
    with zipfile.ZipFile(path, "w", compression) as file:
        for member, content in written.items():
            file.writestr(f"{root}/{member}", content)
    return path


def write_torch(path, content, order="little"):
    """Write a content as torch does since 1.6."""
    return write_zip(path, members(content, order))


def write_sequence(path, content):
    """Write a content as torch did before."""
    storages = {}
    main = b"\x80\x02" + opcodes(content, storages) + STOP
    file = io.BytesIO()
    for head in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        file.write(pickle.dumps(head, protocol=2))
    file.write(main)
    file.write(pickle.dumps(list(storages), protocol=2))
    for array in storages.values():
        file.write(struct.pack("<q", array.size) + np.ascontiguousarray(array).tobytes())
    path.write_bytes(file.getvalue())
    return path


def write_released(path):
    """Write a checkpoint as the hub of CPC_audio has it, of width 8; return its path."""
    rng, width = np.random.default_rng(0), 8
    entries = {}
    for i, kernel in enumerate((10, 8, 4, 4, 4)):
        shape = (width, width if i else 1, kernel)
        entries[f"gEncoder.conv{i}.weight"] = rng.normal(size=shape) / np.sqrt(shape[1] * kernel)
        entries[f"gEncoder.conv{i}.bias"] = np.zeros(width)
        for kind, value in (("weight", 1.0), ("bias", 0.0)):
            entries[f"gEncoder.batchNorm{i}.{kind}"] = np.full((1, width, 1), value)
    for i in range(2):
        for kind, shape in (("weight_ih", (32, 8)), ("weight_hh", (32, 8)), ("bias_ih", (32,)),
                            ("bias_hh", (32,))):  # fmt: skip
            entries[f"gAR.baseNet.{kind}_l{i}"] = 0.5 * rng.normal(size=shape)
    weights = {name: array.astype("f4") for name, array in entries.items()}
    return write_torch(path, {"config": {"arMode": "LSTM"}, "weights": weights})
