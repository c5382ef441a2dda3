"""How the real SGLang comes to run on a machine without a GPU."""
