"""Asks every target every question, within the limits of providers and of a purse."""
