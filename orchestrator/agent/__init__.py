"""The program that runs in a place. Standard library only, Python >= 3.9; imports nothing above itself.

Nothing is imported here: each verb pays only for the modules that it needs.
"""
