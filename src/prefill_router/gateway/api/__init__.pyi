from .server import run as run, serving_gateway as serving_gateway
