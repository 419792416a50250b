from .base import Engine as Engine, LocalEngine as LocalEngine, TaskPool as TaskPool
from .ray_engine import RayEngine as RayEngine
