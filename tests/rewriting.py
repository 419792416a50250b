"""Rewrites a file or folder for ever, to be killed: `python rewriting.py FOLDER file|folder`."""

import itertools
import sys
from pathlib import Path

from crashes import KINDS

write = KINDS[sys.argv[2]][0]
for turn in itertools.count():
    write(Path(sys.argv[1]), "ab"[turn % 2])
    sys.stdout.write("written\n")
    sys.stdout.flush()
