"""Fits routers, by recipes."""

from prefill_router.fitting.config import FitConfig
from prefill_router.fitting.fit import RouterFit, draw, fit_router, learn
from prefill_router.fitting.reading import read_recipe, read_recipes, recipe_from_dict
from prefill_router.fitting.recipe import Recipe, SoftLabels
from prefill_router.fitting.states import gather

__all__ = [
    "FitConfig",
    "Recipe",
    "RouterFit",
    "SoftLabels",
    "draw",
    "fit_router",
    "gather",
    "learn",
    "read_recipe",
    "read_recipes",
    "recipe_from_dict",
]
