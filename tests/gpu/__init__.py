"""The main job on a real GPU: ``python -m tests.gpu --python PYTHON --folder FOLDER``. No tier of pytest's: it changes servers for minutes.

It needs a Linux machine with an NVIDIA GPU and a Python that can import sglang, and nothing else. The machine is reached over the lab's SSH
server, and every change is one of the program's own verbs, as an operator would type it. ``docs/gpu-run.md`` tells how a run went.
"""
