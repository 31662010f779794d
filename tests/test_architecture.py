"""Architecture: one-way imports, libraries per package, no work at import."""

import ast
import functools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
#: Packages of cpc that each package may import.
ALLOWED = {
    "types": (), "about": (), "__main__": ("about",),
    **dict.fromkeys(("files", "mel", "losses", "negatives", "rl"), ("types",)),
    **dict.fromkeys(("estimators", "parallel"), ("types", "losses")),
    **dict.fromkeys(("data", "train", "results"), ("types", "files")),
    "models": ("types", "files", "mel"), "evaluate": ("types", "results", "mel"),
    "report": ("types", "files", "results"),
}  # fmt: skip
#: Exceptions: a loaded model preprocesses arrays like the data.
ALSO = {"cpc/models/embedder.py": {"data"}}
#: The only path that may import a library.
ONLY = {
    "flax": "cpc/models/", "orbax": "cpc/train/checkpoint.py", "soundfile": "cpc/data/",
    "PIL": "cpc/data/", "matplotlib": "cpc/report/",
    "sklearn": ("cpc/report/", "cpc/evaluate/units.py"),
    "ml_collections": "experiments/", "absl": "experiments/",
}  # fmt: skip
#: Files of cpc/data that may use jax: augmentation.
ON_DEVICE = ("augment.py", "augment_sound.py")
FILES = sorted((ROOT / "cpc").rglob("*.py"))
#: Folders whose functions have a limited size.
ROOMS = "cpc", "experiments", "configs"


@functools.cache
def parse(path):
    return [*ast.walk(ast.parse(path.read_text()))]


def imported(path):
    for node in parse(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            yield node.module
            if node.module in ("cpc", "jax"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_point_one_way():
    for path in FILES:
        relative = path.relative_to(ROOT)
        room = relative.parts[1].removesuffix(".py")
        assert room in {*ALLOWED, "__init__"}, f"{room} is not in ALLOWED"
        allowed = {room, *ALLOWED.get(room, ()), *ALSO.get(str(relative), ())}
        for name in imported(path):
            top, *rest = name.split(".")
            if top == "cpc" and rest and room != "__init__":
                assert rest[0] in allowed, f"{relative} imports {name}"
            assert top not in ("experiments", "configs"), f"{relative} imports {name}"
            if top in ONLY:
                assert str(relative).startswith(ONLY[top]), f"{relative} imports {name}"
            if room == "data" and path.name not in ON_DEVICE:
                assert top != "jax", f"{relative} imports {name}"


def test_functions_are_short():
    """At most 60 lines of code, without docstrings and comments, and 10 parameters."""
    for path in sorted(one for room in ROOMS for one in (ROOT / room).rglob("*.py")):
        lines = path.read_text().splitlines()
        for node in parse(path):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[ast.get_docstring(node) is not None :] or node.body
            code = lines[node.lineno - 1 : node.body[0].lineno - 1]
            code += lines[first[0].lineno - 1 : node.end_lineno]
            size = sum(bool(line.split("#")[0].strip()) for line in code)
            assert size <= 60, f"{path}:{node.lineno} has {size} lines"
            names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            number = sum(name.arg not in ("self", "cls") for name in names)
            assert number <= 10, f"{path}:{node.lineno} has {number} parameters"


def test_forbidden_words():
    for path in FILES:
        text = path.read_text()
        if path.name != "mesh.py":
            assert "PartitionSpec" not in text
            assert "axis_name" not in text
        for line in text.splitlines():
            code = line.split("#")[0].split("allow_pickle=False")[0]
            words = [w for w in ("pickle", "tensorflow ", "pmap", "eval(") if w in code]
            assert not words, f"{path}: {line}"


def test_importing_creates_no_backend():
    code = (
        "import sys, cpc, cpc.data, cpc.losses, cpc.negatives, cpc.estimators, cpc.models, "
        "cpc.train, cpc.evaluate, cpc.report, cpc.parallel, cpc.rl\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, xla_bridge._backends\n"
        "assert 'tensorflow' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
