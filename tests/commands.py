"""Commands run by tests, forked from a process that has imported the libraries."""

import atexit
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[1]
#: Without LLVM optimization, the test of a training step takes 6 s instead of 15 s.
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0"
    # Tests use all cores; parallel code generation would take a sixth longer.
    " --xla_cpu_parallel_codegen_split_count=1"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    # The older loop emitters take half the time; optimized commands use the default.
    QUICK_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
#: One device like a laptop, not the tests' eight.
ONE_DEVICE = {
    "XLA_FLAGS": QUICK_COMPILATION,
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # as in conftest.py
}
#: For commands that run long enough to need optimized code.
ONE_DEVICE_POLISHED = {**ONE_DEVICE, "XLA_FLAGS": ""}

_server: list[subprocess.Popen] = []


def flags_of(settings: Mapping[str, object]) -> list[str]:
    return [f"--config.{name}={value}" for name, value in settings.items()]


def run(
    module: str, *flags: object, status: int = 0, how: Mapping[str, str] = ONE_DEVICE
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module flags` in the repository; assert its exit status."""
    done = run_anyhow(module, *flags, how=how)
    words = " ".join(done.args)
    assert done.returncode == status, (
        f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done


def run_anyhow(
    module: str,
    *flags: object,
    how: Mapping[str, str] = ONE_DEVICE,
    signals: Sequence[tuple[float, int]] = (),
    limit: float = 1200.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command with any exit status; signals are sent the given seconds after each other."""
    words = [module, *map(str, flags)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / name for name in ("stdout", "stderr")]
        request = {
            "words": words,
            "environment": {**os.environ, **how},
            "outputs": list(map(str, outputs)),
            "signals": [[seconds, int(number)] for seconds, number in signals],
            "limit": limit,
        }
        code = _ask(request)
        texts = [
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            for path in outputs
        ]
    return subprocess.CompletedProcess(words, code, *texts)


def _ask(request: dict) -> int:
    if not _server:
        _server.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.command_server"],
                cwd=ROOT,
                env={**os.environ, **ONE_DEVICE},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        atexit.register(_server[0].stdin.close)
    _server[0].stdin.write(json.dumps(request) + "\n")
    return int(_server[0].stdout.readline())
