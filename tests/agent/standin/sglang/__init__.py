"""A stand-in for SGLang's processes, reached as the real one is (``python -m sglang.launch_server``). It serves nothing."""
