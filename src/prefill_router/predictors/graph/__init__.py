"""GraphRouter and its training; importing it loads neither torch nor torch-geometric."""

from prefill_router.predictors.graph.config import GraphConfig
from prefill_router.predictors.graph.predictor import GraphRouter
from prefill_router.predictors.registry import Entry

ENTRY = Entry(GraphConfig, GraphRouter, "GraphRouter", "Feng et al. 2025, GraphRouter")

__all__ = ["ENTRY", "GraphConfig", "GraphRouter"]
