from .graph import GraphConfig as GraphConfig
