"""Stand-in for sgl_kernel, for a server with ``--device cpu``: its CPU build is not published as a wheel.

Without the AMX operators the server takes plain PyTorch paths of its own, so the names only have to import.
``convert_weight_packed`` must stay unregistered with torch: that is how the server tells that the AMX kernels are missing.
"""

from _standin import install

install(__name__)
