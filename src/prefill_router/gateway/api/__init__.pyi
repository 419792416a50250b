from .server import run as run
