"""What there is to read besides the program: commented examples of the configuration, and the pages of ``docs/`` that it prints.

`pages.py` finds and reads them, with nothing but the standard library; the rest makes those that are made (``make docs``).
"""
