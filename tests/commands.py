"""How tests start commands: processes of their own, forked from one that has imported already."""

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
#: Most of a test's time is compilation, and most of that is LLVM polishing loops that run once:
#: without it, the 15 s of a training step's test are 6.
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0"
    # Both cores have tests of their own: parts of a program that wait for threads are a sixth more.
    " --xla_cpu_parallel_codegen_split_count=1"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    # The older emitters of loops take half the time. What users run is tested by what is polished.
    QUICK_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
#: One device, as a laptop has, and not the tests' own eight.
ONE_DEVICE = {
    "XLA_FLAGS": QUICK_COMPILATION,
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # as in conftest.py
}
#: For what trains or measures long enough that polished loops pay.
ONE_DEVICE_POLISHED = {**ONE_DEVICE, "XLA_FLAGS": ""}

_server: list[subprocess.Popen] = []


def flags_of(settings: Mapping[str, object]) -> list[str]:
    """Return the flags that set keys of a config."""
    return [f"--config.{name}={value}" for name, value in settings.items()]


def run(
    module: str, *flags: object, status: int = 0, how: Mapping[str, str] = ONE_DEVICE
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module flags`, from the top of the repository; it has to end with `status`."""
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
    """Run a command that may end in any way; signals come each so many seconds after the last."""
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
