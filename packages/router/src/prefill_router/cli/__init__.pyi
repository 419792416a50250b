from .application import app as app, main as main
from .commands import CommandEntry as CommandEntry, list_commands as list_commands
