"""Runs every benchmark, one after another; each writes its figures to benchmarks/results."""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Run the scripts of this folder, or those named on the command line."""
    here = Path(__file__).parent
    every = sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_"))
    for name in sys.argv[1:] or [n for n in every if n != "common"]:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
