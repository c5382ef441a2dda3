"""A stand-in for Hugging Face's datasets: SGLang's benchmarks import it, and with random prompts none of it is used."""


def load_dataset(*arguments: object, **keywords: object) -> None:
    raise NotImplementedError("stand-in only, not the real thing")
