"""Stand-in for torchvision: no wheel imports beside PyTorch's CPU build, and a text-only server only imports its names."""

from _standin import install

__version__ = "0.28.0"
install(__name__)
