from .base import Engine as Engine, TaskPool as TaskPool
from .local import LocalEngine as LocalEngine
from .ray_engine import RayEngine as RayEngine
