"""Expected values of other implementations; each file names its source."""

import json
import pathlib

import numpy as np


def load_golden(name):
    """Read a json or npz file: meta and {case: (params, inputs, outputs)}."""
    path = pathlib.Path(__file__).parent / name
    if path.suffix == ".json":
        data = json.loads(path.read_text())
        return data["meta"], {c["name"]: (c["params"], c["in"], c["out"]) for c in data["cases"]}
    with np.load(path, allow_pickle=False) as arrays:
        meta = json.loads(str(arrays["meta"]))
        cases = {case: (params, {}, {}) for case, params in meta["cases"].items()}
        for key in arrays.files:
            if key != "meta":
                case, kind, entry = key.split("/", 2)
                cases[case][1 if kind == "in" else 2][entry] = arrays[key]
    return meta, cases
