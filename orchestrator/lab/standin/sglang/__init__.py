"""A stand-in for SGLang 0.5.23: the same command line, processes, log lines, HTTP answers and exit codes, without a model.

It exists so that the whole program can be tried and tested on a machine without a GPU. Everything it computes is made up:
decode speeds are read from a table (:mod:`sglang.standin.backends`), texts come from a word list. What it imitates was
captured from the real 0.5.23 on CPU and 0.5.17 on an H200; what can be set about it is in :mod:`sglang.standin.settings`.

Standard library only, Python >= 3.9.
"""

from sglang.version import __version__ as __version__
