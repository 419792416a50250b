"""Exact nearest neighbours by Euclidean distance (FAISS flat L2)."""
