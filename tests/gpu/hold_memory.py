"""``python hold_memory.py MEGABYTES``: hold that much memory of the first GPU until standard input ends. Says ``held`` once it has it."""

import sys

import torch  # type: ignore[import-not-found]  # of the Python under test

block = torch.empty(int(sys.argv[1]) * 1024 * 1024, dtype=torch.uint8, device="cuda")
block.fill_(1)
torch.cuda.synchronize()
sys.stdout.write("held\n")
sys.stdout.flush()
sys.stdin.read()
