"""Receipts: one row for each request, in SQLite or PostgreSQL."""
