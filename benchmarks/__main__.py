"""Runs every benchmark, one after another; each writes its figures to benchmarks/results."""

import argparse
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
"""The exit code of a benchmark that this machine can't run."""


def main() -> None:
    """Run the scripts of this folder, or those named on the command line."""
    here = Path(__file__).parent
    every = sorted(path.stem for path in here.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(every)}")
    names = parser.parse_args().names or every
    for name in names:
        if name not in every:
            parser.error(f"there is no benchmark {name}; name some of {', '.join(every)}")
    for name in names:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if done.returncode not in (0, SKIPPED):
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
