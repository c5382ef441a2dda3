"""The shape of SGLang 0.5.6's server_args.py, with a dozen of its flags: the parser is made anew for a config file, and
building ServerArgs needs a GPU."""

import argparse
import json
import os
import time

print("a line that an import prints to stdout", flush=True)

if os.environ.get("SMALL_SGLANG_IMPORTS"):
    with open(os.environ["SMALL_SGLANG_IMPORTS"], "a") as stream:
        stream.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}\n")
if os.environ.get("SMALL_SGLANG_HANGS"):
    time.sleep(600)
if os.environ.get("SMALL_SGLANG_BROKEN"):
    import no_such_module_of_this_test  # noqa: F401


class ServerArgs:
    def __init__(self, **values):
        raise RuntimeError("building ServerArgs probes the GPU")

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", required=True)
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=30000)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
        parser.add_argument("--nnodes", type=int, default=1)
        parser.add_argument("--quantization", choices=["fp8", "modelopt_fp4"])
        parser.add_argument("--moe-runner-backend", choices=["auto", "triton", "flashinfer_cutedsl"], default="auto")
        parser.add_argument("--cuda-graph-max-bs-decode", type=int)
        parser.add_argument("--cuda-graph-max-bs-prefill", type=int)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--api-key")
        parser.add_argument("--config")

    @classmethod
    def from_cli_args(cls, args):
        args.tp_size = args.tensor_parallel_size
        return cls(**vars(args))


def merge_config(argv):
    index = argv.index("--config")
    with open(argv[index + 1]) as stream:
        values = json.load(stream)
    given = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return given + argv[:index] + argv[index + 2 :]


def prepare_server_args(argv):
    if "--config" in argv:
        ServerArgs.add_cli_args(argparse.ArgumentParser())
        argv = merge_config(argv)
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))
