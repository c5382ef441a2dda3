"""Remote orchestration of SGLang on LXC-hosted GPU servers."""

__version__ = "0.1.0"
