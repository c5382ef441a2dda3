"""The version that the stand-in claims, as the real package spells it."""

__version__ = "0.5.23"
