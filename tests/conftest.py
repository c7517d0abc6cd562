import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "krogh-test-programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
sys.path.insert(0, str(Path(__file__).parent))

from jaxtyping import install_import_hook  # noqa: E402

hook = install_import_hook(["krogh.tasks", "krogh.nn", "krogh.theory", "krogh.probes"], "shape_checks.checker")
