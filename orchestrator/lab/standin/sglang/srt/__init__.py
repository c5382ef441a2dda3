"""The part of SGLang's module tree that others look into: ``sglang.srt.server_args``."""
