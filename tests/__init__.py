"""Tests of the whole project: its documentation, its deployment, and all commands together."""
