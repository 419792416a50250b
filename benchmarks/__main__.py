"""Runs every benchmark, one after another; each writes its figures to benchmarks/results."""

import subprocess
import sys
from pathlib import Path

SKIPPED = 77
"""The exit code of a benchmark that this machine can't run."""


def main() -> None:
    """Run the scripts of this folder, or those named on the command line."""
    here = Path(__file__).parent
    every = sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_"))
    for name in sys.argv[1:] or [n for n in every if n != "common"]:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if done.returncode not in (0, SKIPPED):
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
