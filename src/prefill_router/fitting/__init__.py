"""Fits routers, by recipes."""

from prefill_router.fitting.fit import RouterFit, draw, fit_router, learn
from prefill_router.fitting.inputs import gather
from prefill_router.fitting.recipe import (
    FitConfig,
    Recipe,
    SoftLabels,
    read_recipe,
    read_recipes,
    recipe_from_dict,
)

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
