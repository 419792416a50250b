from .openapi import PATHS as PATHS
from .server import run as run, serving_gateway as serving_gateway
from .supervisor import run_workers as run_workers
