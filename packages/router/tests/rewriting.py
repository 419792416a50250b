"""Rewrites for ever, to be killed.

Run as `python -m packages.router.tests.rewriting FOLDER file|folder`.
"""

import itertools
import sys
from pathlib import Path

from packages.router.tests.crashes import KINDS

write = KINDS[sys.argv[2]][0]
for turn in itertools.count():
    write(Path(sys.argv[1]), "ab"[turn % 2])
    sys.stdout.write("written\n")
    sys.stdout.flush()
