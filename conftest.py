"""Eight virtual CPU devices, shapes checked at every public boundary, compilations cached."""

import gc
import os
import pathlib

from tests.commands import QUICK_COMPILATION

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = (os.environ.get("XLA_FLAGS", ""), QUICK_COMPILATION)
    os.environ["XLA_FLAGS"] = " ".join((*flags, "--xla_force_host_platform_device_count=8"))

import jaxtyping
import pytest
from jaxtyping import install_import_hook

install_import_hook("cpc", "beartype.beartype")

import jax  # noqa: E402 (after the flags and the hook)

CACHE = pathlib.Path(__file__).parent / ".cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
# Tests do not need source locations, which take a tenth of the lowering time.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Tracing makes millions of small objects and few cycles: by default a tenth of the time is garbage
# collection.
gc.set_threshold(200_000, 20, 100)


@pytest.fixture
def unchecked():
    """Disable the check of annotations in tests, which would raise first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_collection_modifyitems(items):
    """Sort files with whole runs first, so that none starts last."""
    long = {item.path for item in items if item.get_closest_marker("whole")}
    items.sort(key=lambda item: item.path not in long)
