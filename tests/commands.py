"""How tests start commands."""

import importlib.metadata

#: Most of a test's time is compilation, and most of that is LLVM polishing loops that run once:
#: without it, the 15 s of a training step's test are 6.
QUICK_COMPILATION = "--xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    # The older emitters of loops take half the time. What users run is tested by what is polished.
    QUICK_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
#: One device, as a laptop has, and not the tests' own eight.
ONE_DEVICE = {"XLA_FLAGS": QUICK_COMPILATION, "JAX_PLATFORMS": "cpu"}
#: For what trains or measures long enough that polished loops pay.
ONE_DEVICE_POLISHED = {**ONE_DEVICE, "XLA_FLAGS": ""}
